"""Whether each task of a chaos run came to exactly one end, and whether nothing is left."""

from __future__ import annotations

import re
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass

from farcall_runtime.contract import ExitCode
from tests.chaos.evidence import Evidence
from tests.chaos.plan import ATTEMPTS, RETRIES, TAKEN

_KEY = re.compile(
    r"chaos/\d+/v1/(?P<run>[^/]+)/(?P<kind>[a-z]+)/(?P<bundle>[^/.]+)"
    r"(\.(delivered|cancelled)/\d+|\.retried/[^/.]+|/(?P<index>\d+).*)?"
)
_SHARED = re.compile(
    r"(?P<prefix>chaos/\d+/v1/)shared/[0-9a-f]{64}/(data|held|condemned)/[A-Za-z0-9-]+"
)
_COMPLAINTS = ("never retrieved", "was destroyed", "nclosed", "Traceback")
_MOST_TEXT = 2000


@dataclass(frozen=True)
class Wrong:
    """Something that must not be.

    Attributes:
        what: A sentence.
        task: Which task it is about; None for none.
        known: What else is known of it.
    """

    what: str
    task: int | None = None
    known: str = ""


class Account:
    """Goes through what is left of a run.

    Args:
        record: What is left, see `run.Record`.

    Attributes:
        wrong: All that is wrong.
        ends: How each task ended at last, by number.
        retries: Which of its retries that was, by number; 0 for none.
        withdrawn: Jobs that turned up late, when another had their place already.
        unfinished: Keys of uploads that killed clients have begun: a lifecycle rule's to abort.
        left: Keys of objects that killed clients were about to delete: a lifecycle rule's, too.
    """

    def __init__(self, record):
        self.wrong = []
        self.ends = {}
        self.retries = {}
        self.withdrawn = set()
        self.unfinished = []
        self.left = []
        self._record = record
        self._known = Evidence(record)
        self._sizes = {}  # of bundles

    def check(self):
        """Look at everything; return `wrong`."""
        if self._record.late:
            self._say("the run was cut off: not all clients had ended")
        self._check_processes()
        for number in sorted(self._known.works):
            self._check_ends(number)
            self._check_retries(number)
            self._check_executions(number)
        self._check_jobs()
        self._check_bucket()
        return self.wrong

    def check_happened(self, *, kubernetes=False):
        """See that nothing was spared; a long run meets everything."""
        dealt = Counter(blow["kind"] for blow in self._record.dealt)
        kinds = Counter(name.partition(" ")[0] for name, n in self._record.injected.items() if n)
        for kind in ("container", "child", "host", *(() if kubernetes else ("start",)), "client"):
            if not dealt[kind]:
                self._say(f"no {kind} was hit: the run shows nothing of it")
        for service in ("api" if kubernetes else "batch", "s3"):
            if not kinds[service]:
                self._say(f"no request to {service} failed: the run shows nothing of it")
        values = {nth > 0 for n, nth in self.retries.items() if self.ends[n] == "value"}
        for happened, what in (
            (any("jobs" in line for line in self._record.told), "run was recovered"),
            ("cancelled" in self.ends.values(), "task was cancelled"),
            (True in values, "retry gave a value"),
            (self._known.attached, "job was retried by the command"),
        ):
            if not happened:
                self._say(f"no {what}: the run shows nothing of it")

    def _say(self, what, task=None):
        self.wrong.append(
            Wrong(what, task, self._known.describe(task) if task is not None else "")
        )

    # --- tasks --------------------------------------------------------------------------------

    def _check_ends(self, number):
        self.retries[number] = last = self._known.retries(number)[-1]
        for nth in self._known.retries(number):
            self._check_end(number, nth, is_last=nth == last)

    def _check_end(self, number, nth, *, is_last):
        work, order = self._known.works[number]
        found = {line["end"] for line in self._known.told_at(number, nth)}
        if "cancelled" in found and order.cancel_s is not None and len(found) > 1:
            found.discard("cancelled")  # by a client that was killed then; the job had ended
        if len(found) > 1:
            self._say(f"two different ends: {', '.join(sorted(found))}", number)
        if not found and order.way == "complete" and not is_last:
            return  # its owner was told of the first error alone
        if not found:
            found = {self._end_untold(number, nth)}
        end = self.ends[number] = min(found)
        allowed = self._allowed(work, order, nth)
        if order.way == "complete" and (not is_last or self._known.is_of_killed(number)):
            allowed |= {"cancelled"}  # with the others, when one of them had failed
        if order.way == "complete":
            allowed |= {"value"}  # of what was fixed when it had not been ended yet
        if end not in allowed:
            self._say(f"ended as {end}, not as {' or '.join(sorted(allowed))}", number)

    def _end_untold(self, number, nth):
        """Return what became of a task that nobody told of.

        A client that is killed takes with it what it was given and had not noted yet; then the
        job has succeeded, and its outcome is gone.
        """
        truth = self._record.truth
        if not self._known.is_of_killed(number):
            return "no end at all"
        if not self._known.jobs[number]:
            return "never submitted"
        for job_id in self._known.jobs_at(number, nth) & truth.jobs.keys():
            parent, _, index = job_id.partition(":")
            outcome = truth.bundle_of(parent).replace("/bundles/", "/outcomes/")
            is_there = f"{outcome}/{index or 0}" in truth.keys
            # A container that is started again after the delivery may find the bundle gone.
            is_gone = truth.exit_code(job_id) == ExitCode.BUNDLE_MISSING
            if (truth.jobs[job_id]["status"] == "SUCCEEDED" or is_gone) and not is_there:
                return "delivered, not told"
        return "no end at all"

    def _allowed(self, work, order, nth):
        allowed = {work.end(nth)}
        jobs = self._known.jobs_at(work.number, nth)
        if order.cancel_s is not None and (order.way not in ("await", "submit")):
            allowed.add("cancelled")
        if order.chunksize > 1:
            at = order.works.index(work)
            before = order.works[at - at % order.chunksize : at]
            allowed |= {"segfault"} if any(w.kind == "segfault" for w in before) else set()
        if any(self._known.hit(job_id, ATTEMPTS) for job_id in jobs):
            allowed |= TAKEN
        if any(map(self._known.is_ended_by_blow, jobs)):
            allowed |= {"OutOfMemoryError"}
        if self._known.is_of_killed(work.number):
            allowed |= {"never submitted"}
            allowed |= {"delivered, not told"} if "value" in allowed else set()
        return allowed

    def _check_retries(self, number):
        """See that what failed was run again where that was wanted, and nothing else."""
        work, order = self._known.works[number]
        *before, last = self._known.retries(number)
        if last and not order.retried:
            self._say("was run again, which nobody has asked for", number)
        for nth in before:
            jobs = self._known.jobs_at(number, nth)
            have_succeeded = any(
                self._record.truth.jobs.get(job_id, {}).get("status") == "SUCCEEDED"
                for job_id in jobs
            )
            told = {line["end"] for line in self._known.told_at(number, nth)}
            # A call with a value runs again if another call of its chunk has failed.
            if have_succeeded or ("value" in told and order.chunksize == 1):
                self._say("was run again although it had succeeded", number)
        is_owed = (
            order.retried and last < RETRIES and work.is_to_run_again(last, self.ends[number])
        )
        if is_owed and not self._known.is_of_killed(number):
            self._say("has failed and was not run again", number)

    def _check_executions(self, number):
        begun = self._known.begun[number]
        for nth in self._known.retries(number):
            jobs = {line["job"] for line in begun} & self._known.jobs_at(number, nth)
            if len(jobs) > 1:
                self._say(f"ran in {len(jobs)} jobs", number)
        attempts = Counter((line["job"], line["attempt"]) for line in begun)
        if any(count > 1 for count in attempts.values()):
            self._say("ran twice in one attempt", number)
        if any(attempt > ATTEMPTS for _, attempt in attempts):
            self._say(f"had more than {ATTEMPTS} attempts", number)
        for line in begun:
            delivered_at = self._known.delivered_at(number, self._record.truth.nth(line["job"]))
            if delivered_at is not None and line["at"] > delivered_at:
                self._say("ran again after its value was delivered", number)

    # --- the account --------------------------------------------------------------------------

    def _check_jobs(self):
        truth = self._record.truth
        for job_id in truth.unfinished:
            self._say(
                f"job {job_id} is still {truth.jobs[job_id]['status']}: {self._known.who(job_id)}"
            )
        bundles = Counter(truth.bundle_of(job_id) for job_id in truth.submitted)
        for bundle, count in bundles.items():
            if count > 1:
                self._say(f"{count} jobs carry the bundle {bundle}")
        for number, jobs in sorted(self._known.jobs.items()):
            for job_id in jobs - truth.jobs.keys():
                self._say(f"Batch has no job {job_id}", number)
        self._check_recovered()

    def _check_recovered(self):
        truth = self._record.truth
        known = set().union(*self._known.jobs.values())
        for job_id in truth.leaves:
            client = int(truth.bundle_of(job_id.partition(":")[0]).split("/")[1])
            if job_id in known:
                continue
            if truth.exit_code(job_id) == ExitCode.BUNDLE_MISSING:
                self.withdrawn.add(job_id)
            elif client in self._known.killed:
                self._say(f"job {job_id} of client {client}, which was killed, was not recovered")

    def _check_bucket(self):
        truth = self._record.truth
        owners = defaultdict(set)  # tasks, and of which retry it is, by bundle and index
        for number, jobs in self._known.jobs.items():
            for job_id in jobs & truth.jobs.keys():
                parent, _, index = job_id.partition(":")
                name = truth.bundle_of(parent).rpartition("/")[2]
                owners[name, int(index or 0)].add((number, truth.nth(job_id)))
                size = truth.jobs[parent].get("arrayProperties", {}).get("size", 1)
                self._sizes[name] = size
        for key in truth.keys:
            self._check_key(key, owners)
        for key in truth.uploads:
            found = _KEY.fullmatch(key)
            if found and found["kind"] == "bundles" and self._is_of_killed(key):
                self.unfinished.append(key)
            else:
                self._say(f"the multipart upload of {key} was never finished")

    def _check_key(self, key, owners):
        shared = _SHARED.fullmatch(key)
        if shared is not None:
            self._check_shared(key, shared["prefix"])
            return
        found = _KEY.fullmatch(key)
        if found is None:
            self._say(f"nobody knows the object {key}")
            return
        bundle = found["bundle"]
        indexes = range(self._sizes.get(bundle, 1))
        if found["index"] is not None:
            indexes = [int(found["index"])]
        tasks = set().union(*(owners[bundle, index] for index in indexes))
        # Of a task that was cancelled before it began nobody knows which job it was.
        are_known = all(owners[bundle, index] for index in indexes)
        if not (are_known and all(self._is_done(*each) for each in tasks)):
            return
        kind = found["kind"]
        if kind == "bundles" and bundle in self._known.attached:
            return
        delivered_at = max(self._known.delivered_at(*each) for each in tasks)
        tasks = {number for number, _ in tasks}
        is_again = self._record.truth.keys[key] > delivered_at
        bundle_key = f"{key.partition(f'/{kind}/')[0]}/bundles/{bundle}"
        if self._is_of_killed(key) and bundle_key not in self._record.truth.keys and not is_again:
            self.left.append(key)
            return
        what = "stored again after its delivery" if is_again else "left"
        self._say(
            f"{key} is {what} although all of its tasks were delivered: "
            f"{', '.join(map(str, sorted(tasks)))}",
            min(tasks),
        )

    def _check_shared(self, key, prefix):
        """See that what calls share is there for the sake of somebody who may still ask for it."""
        bundles = (k for k in self._record.truth.keys if k.startswith(prefix) and "/bundles/" in k)
        if not self._is_of_killed(key) and not any(bundles):
            self._say(f"{key} is left although nothing refers to it")

    def _is_of_killed(self, key):
        return int(key.split("/")[1]) in self._known.killed

    def _is_done(self, number, nth):
        """Return whether a task must have left nothing in one of its retries."""
        return self.ends.get(number) == "value" and self.retries[number] == nth

    # --- processes ----------------------------------------------------------------------------

    def _check_processes(self):
        for process in self._record.processes:
            self._say(f"a process is left: {process}")
        over = {line["by"]: line for line in self._record.told if "over" in line}
        for name, (code, complaints) in self._record.clients.items():
            if name in over:  # also one that was killed just then, on its way out
                self._check_client(over[name], complaints)
            was_killed = code == -signal.SIGKILL and self._was_to_be_killed(name)
            if not was_killed and (code != 0 or name not in over):
                self._say(f"{name} ended with {code}: {complaints[-_MOST_TEXT:]}")
        for line in self._record.told:
            if "unknown" in line:
                self._say(f"{line['by']} does not know job {line['unknown']}: {line['text']}")

    def _check_client(self, over, complaints):
        if over["leaked"]:
            self._say(f"{over['by']} has leaked {over['leaked']}")
        for word in _COMPLAINTS:
            if word in complaints:
                self._say(f"{over['by']} complains ({word!r}): {complaints[-_MOST_TEXT:]}")

    def _was_to_be_killed(self, name):
        kind, client, *_ = name.split()
        return {"kind": kind, "client": int(client)} in self._record.dealt
