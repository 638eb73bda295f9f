"""What is known of each task of a chaos run, from all who noted something."""

from __future__ import annotations

from collections import defaultdict

from tests.chaos.events import NO_START


class Evidence:
    """What clients, tasks and the account say, by task.

    Args:
        record: What is left of a run, see `run.Record`.

    Attributes:
        works: Call and order by the task's number.
        killed: Numbers of the clients that were killed.
        told: Which ends clients noted, by task.
        begun: Which executions began, by task.
        jobs: IDs of the jobs that are known to be a task's, by task.
        attached: Names of the bundles of jobs that a command has submitted. Who joins such a job
            by its ID gets its value, and the bundle stays.
    """

    def __init__(self, record):
        self.works = record.plan.works()
        self.killed = {blow["client"] for blow in record.dealt if blow["kind"] == "client"}
        self.told = defaultdict(list)
        self.begun = defaultdict(list)
        self.jobs = defaultdict(set)
        self.attached = set()
        self._record = record
        for line in record.told:
            if "attached" in line and line["attached"] in record.truth.jobs:
                self.attached.add(record.truth.bundle_of(line["attached"]).rpartition("/")[2])
            if "task" in line:
                self.told[line["task"]].append(line)
                self.jobs[line["task"]].update(filter(None, [line["job"]]))
        for line in record.ledger:
            self.jobs[line["task"]].add(line["job"])
            if line["what"] == "begin":
                self.begun[line["task"]].append(line)

    def nth_of(self, told):
        """Return of which retry an end was told, 0 for none: what Batch says is more certain."""
        is_known = told["job"] in self._record.truth.jobs
        return self._record.truth.nth(told["job"]) if is_known else told.get("nth", 0)

    def told_at(self, number, nth):
        """Return which ends clients noted of a task, of one of its retries; 0 for none."""
        return [told for told in self.told[number] if self.nth_of(told) == nth]

    def jobs_at(self, number, nth):
        """Return the jobs of a task, of one of its retries; 0 for none."""
        return {job_id for job_id in self.jobs[number] if self._record.truth.nth(job_id) == nth}

    def retries(self, number):
        """Return which of a task's retries there were, and 0 for its first run."""
        told = {self.nth_of(told) for told in self.told[number]}
        return sorted({0} | told | {self._record.truth.nth(j) for j in self.jobs[number]})

    def is_of_killed(self, number):
        """Return whether a task's client was killed."""
        return self._record.plan.client_of(number) in self.killed

    def hit(self, job_id, attempt):
        """Return whether an attempt was ended by a blow."""
        made = self._record.truth.jobs.get(job_id, {}).get("attempts", ())
        if any(a["container"].get("reason") == NO_START for a in made[attempt - 1 : attempt]):
            return True
        blows = self._record.dealt
        return any((b.get("job"), b.get("attempt")) == (job_id, attempt) for b in blows)

    def is_ended_by_blow(self, job_id):
        """Return whether the last attempt that was made was a blow's.

        A container that is killed looks as if it had too little memory, which is final.
        """
        made = len(self._record.truth.jobs.get(job_id, {}).get("attempts", ()))
        return bool(made) and self.hit(job_id, made)

    def delivered_at(self, number, nth):
        """Return when a client first received a task's value from one of its retries, or None."""
        told = self.told_at(number, nth)
        return min((each["at"] for each in told if each["end"] == "value"), default=None)

    def who(self, job_id):
        """Say whose a job is."""
        tasks = [number for number, jobs in self.jobs.items() if job_id in jobs]
        return f"task {', '.join(map(str, tasks))}" if tasks else "no task is known of it"

    def describe(self, number):
        """Write down all that is known of a task."""
        work, order = self.works[number]
        truth = self._record.truth
        client = self._record.plan.client_of(number)
        lines = [
            f"{work}",
            f"of client {client}{' (killed)' if client in self.killed else ''}",
            f"by {order.way}, {len(order.works)} calls, chunks of {order.chunksize}",
            f"started after {order.start_s:.1f} s, cancelled after {order.cancel_s}",
            f"{'' if order.retried else 'not '}to be run again",
        ]
        lines += [
            f"told by {t['by']} at {t['at']:.2f}, retry {self.nth_of(t)}: {t['end']} "
            f"{t['text'][:600]}"
            for t in self.told[number]
        ]
        lines += [
            f"begun at {b['at']:.2f}: {b['job']}, attempt {b['attempt']}"
            for b in self.begun[number]
        ]
        for job_id in sorted(self.jobs[number]):
            lines += [f"dealt: {d}" for d in self._record.dealt if d.get("job") == job_id]
            job = truth.jobs.get(job_id, {})
            lines.append(
                f"job {job_id}, retry {truth.nth(job_id)}: {job.get('status')}, "
                f"{job.get('statusReason')!r}"
            )
            lines += [
                f"  attempt: {a.get('container', {}).get('exitCode')}, {a.get('statusReason')!r}, "
                f"{a.get('startedAt')} to {a.get('stoppedAt')}"
                for a in job.get("attempts", ())
            ]
        return "\n".join(lines)
