"""A tracker with a scripted inbox and Batch, for tests in virtual time."""

import asyncio
import bisect
import collections
import functools
import itertools
from types import SimpleNamespace

from farcall import Settings
from farcall.backends.batch.describe import from_describe
from farcall.engine.tracker import Tracker
from farcall.model.submission import CommandSubmission, Submission
from farcall.storage.store import Arrived, number_in
from farcall_runtime.contract import Location
from tests.unit.fakes import TIMING, Client, ScriptedBatch

ROOT = "farcall/v1/run"
HOST_LOST = "Host EC2 (instance i-1) terminated."
PAGE = 1000
REQUEST_S = 0.01

settings = functools.cache(Settings)


class Inbox:
    """Objects of one bucket, and the requests that list them: sorted pages of 1000.

    Attributes:
        requests: Time, root and bundle of each request.
        objects: Objects by key, except outcomes.
        failures: Errors to raise, by root.
        while_listing: Called after a listing is made and before it is returned.
        request_s: Duration of a request in seconds.
    """

    bucket = "bucket"
    request_s = REQUEST_S

    def __init__(self):
        self._names = collections.defaultdict(list)
        self.requests = []
        self.objects = {}
        self.failures = {}
        self.while_listing = lambda: None

    def put(self, bundle, index, root=ROOT):
        bisect.insort(self._names[root], f"{bundle}/{index}")

    def delete(self, bundle, index, root=ROOT):
        self._names[root].remove(f"{bundle}/{index}")

    async def list_outcomes(self, root, bundle="", after=""):
        self.requests.append((asyncio.get_running_loop().time(), root, bundle))
        prefix = f"{bundle}/" if bundle else ""
        names = self._names[root]
        first = max(bisect.bisect_right(names, after), bisect.bisect_left(names, prefix))
        page = list(itertools.takewhile(lambda n: n.startswith(prefix), names[first:][:PAGE]))
        self.while_listing()
        await asyncio.sleep(self.request_s)
        if root in self.failures:
            raise self.failures[root]
        found = [(owner, number_in(index)) for owner, index in (name.split("/") for name in page)]
        last = page[-1] if len(page) == PAGE else ""
        return [Arrived(owner, number, 10) for owner, number in found if number is not None], last

    async def list_keys(self, prefix):
        self.requests.append((asyncio.get_running_loop().time(), prefix, "keys"))
        found = [(k, len(data)) for k, data in self.objects.items() if k.startswith(prefix)]
        await asyncio.sleep(REQUEST_S)
        if prefix in self.failures:
            raise self.failures[prefix]
        return sorted(found)

    async def get_dated(self, key, size=None):
        await asyncio.sleep(REQUEST_S)
        return (self.objects[key], None) if key in self.objects else None

    def listed(self, bundle=None):
        """Return when a bundle was listed; by default, when anything was."""
        return [at for at, _, listed in self.requests if bundle in (None, listed)]


class Jobs:
    """Batch: its jobs, and the received calls.

    Attributes:
        known: DescribeJobs documents by job ID.
        log: Time, operation and parameters of each call.
        failure: Error that DescribeJobs raises.
        request_s: Duration of a request in seconds.
        refusal: Error that TerminateJob raises.
    """

    def __init__(self):
        self.known = {}
        self.log = []
        self.failure = self.refusal = None
        self.request_s = REQUEST_S
        client = Client(
            describe_jobs=self._describe, list_jobs=self._list, terminate_job=self._terminate
        )
        self.backend = ScriptedBatch(client)

    def set(self, job_id, status, reason="", summary=None, **more):
        job = {"jobId": job_id, "jobName": "n", "status": status, "statusReason": reason, **more}
        if summary is not None:
            size = sum(summary.values())
            job["arrayProperties"] = {"size": size, "statusSummary": dict(summary)}
        self.known[job_id] = job

    def detail(self, job_id):
        return from_describe(self.known[job_id])

    def asked(self, operation, since=0.0):
        return [
            parameters for at, name, parameters in self.log if name == operation and at >= since
        ]

    def _note(self, operation, parameters):
        self.log.append((asyncio.get_running_loop().time(), operation, parameters))

    async def _describe(self, *, jobs):
        self._note("describe", jobs)
        assert 1 <= len(jobs) <= 100
        found = [dict(self.known[job_id]) for job_id in jobs if job_id in self.known]
        await asyncio.sleep(self.request_s)
        if self.failure is not None:
            raise self.failure
        return {"jobs": found}

    async def _list(self, *, arrayJobId, jobStatus="RUNNING", nextToken="0"):  # noqa: N803
        self._note("list", arrayJobId)
        first = int(nextToken)
        children = [
            {"jobId": job_id, "jobName": "n", "status": job["status"]}
            for job_id, job in reversed(self.known.items())
            if job_id.startswith(f"{arrayJobId}:") and job["status"] == jobStatus
        ]
        await asyncio.sleep(self.request_s)
        reply = {"jobSummaryList": children[first : first + PAGE]}
        if first + PAGE < len(children):
            reply["nextToken"] = str(first + PAGE)
        return reply

    async def _terminate(self, *, jobId, reason):  # noqa: N803
        self._note("terminate", (jobId, reason))
        if self.refusal is not None:
            raise self.refusal
        self.set(jobId, "FAILED", reason, isTerminated=True)
        return {}


class World:
    """A tracker with its inbox and Batch.

    Attributes:
        notified: Job, index and arrival of each reported end.
    """

    def __init__(self, clock, timing=TIMING):
        self.clock = clock
        self.jobs = Jobs()
        self.inbox = Inbox()
        self.notified = []
        stores = SimpleNamespace(of=lambda bucket: self.inbox)
        self.tracker = Tracker(self.jobs.backend, stores, timing)

    def watch(self, job_id, size=1, indexes=None, tell=None, is_full=None, root=ROOT, **options):
        where = Location("bucket", root, f"bundle-of-{job_id}")
        self.tracker.watch(
            Submission(job_id, "n", where, b"key", size),
            range(size) if indexes is None else indexes,
            settings(**options),
            tell or (lambda index, arrival: self.notified.append((job_id, index, arrival))),
            is_full,
        )

    def watch_command(self, job_id, **options):
        """Follow a command job, which stores no outcome."""
        self.tracker.watch(
            CommandSubmission(job_id, "n"),
            [0],
            settings(**options),
            lambda index, arrival: self.notified.append((job_id, index, arrival)),
        )

    def store(self, job_id, *indexes, root=ROOT):
        for index in indexes or (0,):
            self.inbox.put(f"bundle-of-{job_id}", index, root)

    async def until(self, count, at_most_s=3600.0):
        """Wait for a number of ends; return how long it took."""
        begin = self.clock.now()
        while len(self.notified) < count:
            assert self.clock.now() - begin < at_most_s, len(self.notified)
            await asyncio.sleep(0.05)
        return self.clock.now() - begin

    def tasks(self):
        """Return the tasks whose end was reported."""
        return [(job_id, index) for job_id, index, _ in self.notified]


def arrived(job_id, index=0):
    """Return the notification of an outcome."""
    return Arrived(f"bundle-of-{job_id}", index, 10)
