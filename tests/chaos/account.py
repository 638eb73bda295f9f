"""Whether each task of a chaos run has exactly one end, and whether anything is left behind."""

from __future__ import annotations

import itertools
import re
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass

from farcall_runtime.contract import ExitCode
from tests.chaos.plan import ATTEMPTS, TAKEN
from tests.chaos.storm import NO_START

_KEY = re.compile(
    r"chaos/\d+/v1/(?P<run>[^/]+)/(?P<kind>[a-z]+)/(?P<bundle>[^/.]+)"
    r"(\.(delivered|cancelled)/\d+|\.retried/[^/]+|/(?P<index>\d+).*)?"
)
_SHARED = re.compile(r"(?P<prefix>chaos/\d+/v1/)shared/[0-9a-f]{64}/data/[0-9a-f]+")
_COMPLAINTS = ("never retrieved", "was destroyed", "nclosed", "Traceback")
_MAX_TEXT = 2000


@dataclass(frozen=True)
class Wrong:
    """One error of a run.

    Attributes:
        what: A sentence.
        task: Number of the task; None for none.
        known: Everything known about the task.
    """

    what: str
    task: int | None = None
    known: str = ""


class Account:
    """Checks the record of a run.

    Args:
        record: See `run.Record`.

    Attributes:
        wrong: All errors.
        ends: How each task ended, by number.
    """

    def __init__(self, record):
        self.wrong = []
        self.ends = {}
        self._record = record
        self._works = record.plan.works()
        self._killed = {blow["client"] for blow in record.dealt if blow["kind"] == "client"}
        self._told = defaultdict(list)  # ends that clients noted, by task
        self._begun = defaultdict(list)  # executions, by task
        self._jobs = defaultdict(set)  # job IDs, by task
        self._sizes = {}  # of bundles
        self._retried = set()  # names of bundles whose failed tasks had a second chance
        for line in record.told:
            if "task" in line:
                self._told[line["task"]].append(line)
                self._jobs[line["task"]].update(filter(None, [line["job"]]))
        for line in record.ledger:
            self._jobs[line["task"]].add(line["job"])
            if line["what"] == "begin":
                self._begun[line["task"]].append(line)

    def check(self):
        """Check everything; return `wrong`."""
        if self._record.late:
            self._say("the run was cut off: not all clients had ended")
        self._check_processes()
        for number in sorted(self._works):
            self._check_end(number)
            self._check_executions(number)
        self._check_jobs()
        self._check_bucket()
        return self.wrong

    def check_happened(self, *, kubernetes=False):
        """Check that a long run met every kind of failure."""
        dealt = Counter(blow["kind"] for blow in self._record.dealt)
        kinds = Counter(name.partition(" ")[0] for name, n in self._record.injected.items() if n)
        for kind in ("container", "child", "host", *(() if kubernetes else ("start",)), "client"):
            if not dealt[kind]:
                self._say(f"the run has hit no {kind}")
        for service in ("api" if kubernetes else "batch", "s3"):
            if not kinds[service]:
                self._say(f"no request to {service} has failed")
        self._check_rungs(kubernetes=kubernetes)
        if not any("jobs" in line for line in self._record.told):
            self._say("no run was recovered")
        if "cancelled" not in self.ends.values():
            self._say("no task was cancelled")

    def _check_rungs(self, *, kubernetes):
        truth = self._record.truth
        rungs = " ".join(truth.chances_of(job_id)[0] for job_id in truth.submitted)
        options = ("memory",) if kubernetes else ("memory", "queue")
        for option in (each for each in options if f"{each}=2" not in rungs):
            self._say(f"no task has had the second value of {option}")

    def report(self):
        """Return the errors and the figures of the run."""
        record = self._record
        dealt = Counter(blow["kind"] for blow in record.dealt)
        recovered = [line["jobs"] for line in record.told if "jobs" in line]
        requests = sum(record.requests.values())
        lines = [
            f"WRONG  {'' if wrong.task is None else f'task {wrong.task}: '}{wrong.what}"
            + "".join(f"\n       {line}" for line in wrong.known.splitlines())
            for wrong in self.wrong
        ]
        failed = Counter()
        for name, count in record.injected.items():
            failed[name.partition(" ")[0]] += count
        executions = sum(map(len, self._begun.values()))
        rungs = Counter(record.truth.chances_of(job_id)[0] for job_id in record.truth.submitted)
        lines += [
            f"jobs by values: {_figures(rungs)}",
            f"ends: {_figures(Counter(self.ends.values()))}",
            f"hit: {_figures(dealt)}; recovered: {len(recovered)} runs, {sum(recovered)} tasks",
            f"failed requests: {_figures(failed)} of {requests}",
            f"{len(self.ends)} tasks, {executions} executions, {len(record.truth.submitted)} jobs",
        ]
        return "\n".join(lines)

    def _say(self, what, task=None):
        self.wrong.append(Wrong(what, task, self._describe(task) if task is not None else ""))

    # --- tasks --------------------------------------------------------------------------------

    def _check_end(self, number):
        work, order = self._works[number]
        found = {line["end"] for line in self._told[number]}
        if "cancelled" in found and order.cancel_s is not None and len(found) > 1:
            found.discard("cancelled")  # by a client that was killed then; the job had ended
        if len(found) > 1:
            self._say(f"two different ends: {', '.join(sorted(found))}", number)
        if not found:
            found = {self._end_untold(number)}
        end = self.ends[number] = min(found)
        allowed = self._allowed(work, order)
        if end not in allowed:
            self._say(f"ended as {end}, not as {' or '.join(sorted(allowed))}", number)

    def _end_untold(self, number):
        """Return the end of a task that no client has noted.

        A client may be killed between the receipt of a result and its note; then the job has
        succeeded, and its outcome is deleted.
        """
        truth = self._record.truth
        if not self._is_killed(number):
            return "no end at all"
        if not self._jobs[number]:
            return "never submitted"
        for job_id in self._jobs[number] & truth.jobs.keys():
            parent, _, index = job_id.partition(":")
            outcome = truth.bundle_of(parent).replace("/bundles/", "/outcomes/")
            is_there = f"{outcome}/{index or 0}" in truth.keys
            # A container that is started again after the delivery may find no bundle.
            is_gone = truth.exit_code(job_id) == ExitCode.BUNDLE_MISSING
            if (truth.jobs[job_id]["status"] == "SUCCEEDED" or is_gone) and not is_there:
                return "delivered, not told"
        return "no end at all"

    def _allowed(self, work, order):
        allowed = {work.end}
        jobs = self._jobs[work.number]
        if order.cancel_s is not None and order.way not in ("await", "submit"):
            allowed.add("cancelled")
        if work.kind == "forever":  # cancelled while it moved to the next queue
            allowed.add("JobStuckError")
        if order.chunksize > 1:
            at = order.works.index(work)
            before = order.works[at - at % order.chunksize : at]
            allowed |= {"segfault"} if any(w.kind == "segfault" for w in before) else set()
        if any(self._is_hit(job_id, ATTEMPTS) for job_id in jobs):
            allowed |= TAKEN
        if any(map(self._is_ended_by_blow, jobs)):
            allowed |= {"OutOfMemoryError"}
        # A pod that is deleted at once ends with SIGKILL, which is not retried. If no client sees
        # that, the cause is unknown.
        if any(blow["kind"] == "pod" and blow["job"] in jobs for blow in self._record.dealt):
            allowed |= {"cancelled", "JobError"}
        if self._is_killed(work.number):
            allowed |= {"never submitted"}
            allowed |= {"delivered, not told"} if "value" in allowed else set()
        return allowed

    def _check_executions(self, number):
        begun = self._begun[number]
        self._check_chances(number, list(dict.fromkeys(line["job"] for line in begun)))
        attempts = Counter((line["job"], line["attempt"]) for line in begun)
        if any(count > 1 for count in attempts.values()):
            self._say("ran twice in one attempt", number)
        if any(attempt > ATTEMPTS for _, attempt in attempts):
            self._say(f"had more than {ATTEMPTS} attempts", number)
        delivered_at = self._delivered_at(number)
        if delivered_at is not None and any(line["at"] > delivered_at for line in begun):
            self._say("ran again after its value was delivered", number)

    def _check_chances(self, number, jobs):
        """Check that each job of a task runs the former one again, with another value.

        A job in between may have waited in vain for an instance.
        """
        truth = self._record.truth
        for before, after in itertools.pairwise(jobs):
            rungs_before, rungs = truth.chances_of(before)[0], truth.chances_of(after)[0]
            if before.partition(":")[0] not in truth.retried_by(after) or rungs == rungs_before:
                self._say(f"ran in job {before} ({rungs_before}) and in {after} ({rungs})", number)
            stopped, created = truth.times(before)[1], truth.times(after)[0]
            if created and (stopped is None or stopped > created):
                self._say(f"job {after} was submitted before {before} had ended", number)

    # --- jobs and objects ---------------------------------------------------------------------

    def _check_jobs(self):
        truth = self._record.truth
        for job_id in truth.unfinished:
            tasks = [str(number) for number, jobs in self._jobs.items() if job_id in jobs]
            self._say(
                f"job {job_id} is still {truth.jobs[job_id]['status']}: "
                f"task {', '.join(tasks) or 'unknown'}"
            )
        bundles = Counter(truth.bundle_of(job_id) for job_id in truth.submitted)
        for bundle, count in bundles.items():
            if count > 1:
                self._say(f"{count} jobs carry the bundle {bundle}")
        for number, jobs in sorted(self._jobs.items()):
            for job_id in jobs - truth.jobs.keys():
                self._say(f"the job {job_id} does not exist", number)
        known = set().union(*self._jobs.values())
        for job_id in truth.leaves.keys() - known:
            client = int(truth.bundle_of(job_id.partition(":")[0]).split("/")[1])
            # A late duplicate of a submission finds no bundle, and ends at once.
            is_withdrawn = truth.exit_code(job_id) == ExitCode.BUNDLE_MISSING
            has_failed = truth.jobs[job_id]["status"] == "FAILED"
            is_retried = has_failed and job_id.partition(":")[0] in truth.retried
            if client in self._killed and not is_withdrawn and not is_retried:
                self._say(f"job {job_id} of the killed client {client} was not recovered")

    def _check_bucket(self):
        truth = self._record.truth
        self._retried = {truth.bundle_of(i).rpartition("/")[2] for i in truth.retried}
        owners = defaultdict(set)  # tasks, by bundle and index
        for number, jobs in self._jobs.items():
            for job_id in jobs & truth.jobs.keys():
                parent, _, index = job_id.partition(":")
                name = truth.bundle_of(parent).rpartition("/")[2]
                owners[name, int(index or 0)].add(number)
                size = truth.jobs[parent].get("arrayProperties", {}).get("size", 1)
                self._sizes[name] = size
        for key in truth.keys:
            shared, found = _SHARED.fullmatch(key), _KEY.fullmatch(key)
            if shared is not None:
                self._check_shared(key, shared["prefix"])
            elif found is not None:
                self._check_key(key, found, owners)
            else:
                self._say(f"unknown object {key}")
        for key in truth.uploads:
            found = _KEY.fullmatch(key)
            # The bucket's lifecycle rule aborts the uploads of a killed client.
            if not (found and found["kind"] == "bundles" and self._is_of_killed(key)):
                self._say(f"the multipart upload of {key} was never finished")

    def _check_key(self, key, found, owners):
        bundle = found["bundle"]
        indexes = range(self._sizes.get(bundle, 1))
        # The objects of failed attempts are deleted together with their bundle.
        if found["index"] is not None and bundle not in self._retried:
            indexes = [int(found["index"])]
        tasks = set().union(*(owners[bundle, index] for index in indexes))
        # The job of a task that was cancelled before it began is unknown.
        are_known = all(owners[bundle, index] for index in indexes)
        if not (are_known and all(self.ends.get(number) == "value" for number in tasks)):
            return
        delivered_at = [at for at in map(self._delivered_at, tasks) if at is not None]
        if len(delivered_at) < len(tasks):
            return
        is_again = self._record.truth.keys[key] > max(delivered_at)
        before = key.partition(f"/{found['kind']}/")[0]
        bundle_key = f"{before}/bundles/{bundle}"
        if self._is_of_killed(key) and bundle_key not in self._record.truth.keys and not is_again:
            return  # its client was killed while it deleted; the lifecycle rule deletes the rest
        what = "stored again after its delivery" if is_again else "left"
        numbers = ", ".join(map(str, sorted(tasks)))
        self._say(f"{key} is {what} although its tasks were delivered: {numbers}", min(tasks))

    def _check_shared(self, key, prefix):
        """Check that a shared argument exists only as long as a bundle may refer to it."""
        bundles = (k for k in self._record.truth.keys if k.startswith(prefix) and "/bundles/" in k)
        if not self._is_of_killed(key) and not any(bundles):
            self._say(f"{key} is left although no bundle refers to it")

    # --- processes ----------------------------------------------------------------------------

    def _check_processes(self):
        for process in self._record.processes:
            self._say(f"a process is left: {process}")
        over = {line["by"]: line for line in self._record.told if "over" in line}
        for name, (code, complaints) in self._record.clients.items():
            if name in over:  # perhaps killed just then, at its exit
                self._check_client(over[name], complaints)
            kind, client, *_ = name.split()
            is_killed = {"kind": kind, "client": int(client)} in self._record.dealt
            if not (is_killed and code == -signal.SIGKILL) and (code != 0 or name not in over):
                self._say(f"{name} ended with {code}: {complaints[-_MAX_TEXT:]}")
        for line in self._record.told:
            if "unknown" in line:
                self._say(f"{line['by']} does not know job {line['unknown']}: {line['text']}")

    def _check_client(self, over, complaints):
        if over["leaked"]:
            self._say(f"{over['by']} has leaked {over['leaked']}")
        for word in _COMPLAINTS:
            if word in complaints:
                self._say(f"{over['by']} complains ({word!r}): {complaints[-_MAX_TEXT:]}")

    # --- what is known ------------------------------------------------------------------------

    def _is_killed(self, number):
        return self._record.plan.client_of(number) in self._killed

    def _is_of_killed(self, key):
        return int(key.split("/")[1]) in self._killed

    def _is_hit(self, job_id, attempt):
        """Return whether an attempt was ended by a blow."""
        made = self._record.truth.jobs.get(job_id, {}).get("attempts", ())
        if any(a["container"].get("reason") == NO_START for a in made[attempt - 1 : attempt]):
            return True
        blows = self._record.dealt
        return any((b.get("job"), b.get("attempt")) == (job_id, attempt) for b in blows)

    def _is_ended_by_blow(self, job_id):
        """Return whether a blow ended the last attempt.

        A killed container looks as if it had too little memory, which is not retried.
        """
        made = len(self._record.truth.jobs.get(job_id, {}).get("attempts", ()))
        return bool(made) and self._is_hit(job_id, made)

    def _delivered_at(self, number):
        """Return when a client first received a task's result, or None."""
        told = self._told[number]
        return min((each["at"] for each in told if each["end"] == "value"), default=None)

    def _describe(self, number):
        """Return everything known about a task."""
        work, order = self._works[number]
        truth = self._record.truth
        client = self._record.plan.client_of(number)
        lines = [
            f"{work}",
            f"of client {client}{' (killed)' if client in self._killed else ''}",
            f"by {order.way}, {len(order.works)} calls, chunks of {order.chunksize}",
            f"started after {order.start_s:.1f} s, cancelled after {order.cancel_s}",
        ]
        lines += [
            f"noted by {t['by']} at {t['at']:.2f}: {t['end']} {t['text'][:600]}"
            for t in self._told[number]
        ]
        lines += [
            f"begun at {b['at']:.2f}: {b['job']}, attempt {b['attempt']}"
            for b in self._begun[number]
        ]
        for job_id in sorted(self._jobs[number]):
            lines += [f"dealt: {d}" for d in self._record.dealt if d.get("job") == job_id]
            job = truth.jobs.get(job_id, {})
            lines.append(f"job {job_id}: {job.get('status')}, {job.get('statusReason')!r}")
            lines += [
                f"  attempt: {a.get('container', {}).get('exitCode')}, {a.get('statusReason')!r}"
                for a in job.get("attempts", ())
            ]
        return "\n".join(lines)


def _figures(counts):
    return ", ".join(f"{name} {counts[name]}" for name in sorted(counts) if counts[name])
