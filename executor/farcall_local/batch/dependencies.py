"""Which jobs wait for which: dependsOn with its two array types.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/job_dependencies.html
    https://docs.aws.amazon.com/batch/latest/userguide/array_jobs.html
"""

from __future__ import annotations

from farcall_local.batch.errors import ClientError
from farcall_local.batch.jobs import Job, Jobs, Node, Status

#: A job that waits, and whether what it waited for succeeded.
News = list[tuple[Job, bool]]

SEQUENTIAL, N_TO_N = "SEQUENTIAL", "N_TO_N"


class Dependencies:
    """Who is to be told when a job ends.

    Whole jobs are kept by name; what the children of arrays wait for follows from their index,
    so that an array costs one entry.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._waiting: dict[Job, list[Job]] = {}
        self._paired: dict[Job, list[Job]] = {}

    def connect(self, job: Job) -> News:
        """Count what a new job waits for, in `Job.waiting_for` of it and of its children.

        Returns:
            News of the dependencies that have already ended.

        Raises:
            ClientError: An unknown job, or a type that does not fit the arrays. Nothing is
                changed then.
        """
        targets = [
            (self._target(item, job), item.get("type")) for item in job.submission.depends_on
        ]
        news: News = []
        for target, kind in targets:
            if target is not None:
                news += self._pair(job, target) if kind == N_TO_N else self._wait(job, target)
        for child in job.children:
            child.waiting_for += bool(job.waiting_for)
            child.waiting_for += child.index > 0 and _sequential(job)
        return news

    def ended(self, job: Job) -> News:
        """Return news for everything that waits for a job that has ended."""
        succeeded = job.status is Status.SUCCEEDED
        waiting = self._waiting.pop(job, [])
        if job.parent is not None:
            following = job.parent.children[job.index + 1 : job.index + 2]
            waiting += following if _sequential(job) else []
            waiting += [array.children[job.index] for array in self._paired.get(job.parent, ())]
        return [(waiter, succeeded) for waiter in waiting]

    def _wait(self, job: Job, target: Job) -> News:
        job.waiting_for += 1
        if target.status.final:
            return [(job, target.status is Status.SUCCEEDED)]
        self._waiting.setdefault(target, []).append(job)
        return []

    def _pair(self, job: Job, target: Job) -> News:
        self._paired.setdefault(target, []).append(job)
        for child in job.children:
            child.waiting_for += 1
        return [
            (child, other.status is Status.SUCCEEDED)
            for child, other in zip(job.children, target.children, strict=True)
            if other.status.final
        ]

    def _target(self, item: dict[str, str], job: Job) -> Job | None:
        kind = item.get("type")
        if kind not in (None, SEQUENTIAL, N_TO_N):
            raise ClientError(f"Dependency type {kind} is not valid.")
        if kind == SEQUENTIAL and not job.children:
            raise ClientError("A SEQUENTIAL dependency is for array jobs only.")
        if not item.get("jobId"):
            if kind == SEQUENTIAL:
                return None
            raise ClientError("A dependency must have a jobId.")
        target = self._jobs.find(item["jobId"])
        if target is None:
            raise ClientError(f"Job dependency {item['jobId']} not found.")
        if isinstance(target, Node):
            raise ClientError(
                f"Job dependency {item['jobId']} is a node. Depend on the whole job instead."
            )
        if kind == N_TO_N and (not job.children or len(job.children) != len(target.children)):
            raise ClientError("An N_TO_N dependency needs two array jobs of the same size.")
        return target


def _sequential(job: Job) -> bool:
    return any(item.get("type") == SEQUENTIAL for item in job.submission.depends_on)
