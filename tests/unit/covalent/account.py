"""Scripted Batch and bucket for Covalent's task groups."""

import asyncio

from farcall import Settings
from tests.unit.fakes import Client

SETTINGS = Settings(s3_bucket_name="bucket", image="repo/image:1", linger_s=0.1)


class Bucket:
    """Bucket that accepts all objects, and lists the outcomes that a test sets."""

    def __init__(self):
        self.arrived = []

    async def check(self, root):
        pass

    async def put(self, key, pieces, *, quick, on_sent):
        await asyncio.sleep(0.01)
        assert sum(map(len, pieces)) > 0

    async def list_outcomes(self, root, bundle="", after=""):
        return [outcome for outcome in self.arrived if bundle in ("", outcome.bundle)], ""

    def delete_later(self, keys): ...

    async def flush(self): ...


class Account:
    """Batch that accepts jobs, and terminates them on request."""

    def __init__(self):
        self.client = Client(
            describe_job_definitions=lambda **_: {
                "jobDefinitions": [{"jobDefinitionArn": "arn:1", "status": "ACTIVE"}]
            },
            submit_job=self._submit,
            terminate_job=self._terminate,
            describe_jobs=lambda jobs: {"jobs": []},
        )
        self.open = {"submit_job": asyncio.Event(), "terminate_job": asyncio.Event()}
        for event in self.open.values():
            event.set()
        self.sizes = {}
        self.terminated = []
        self.on_submitted = lambda: None
        self.failure = None

    async def _submit(self, **request):
        await self.open["submit_job"].wait()
        if self.failure is not None:
            return self.failure
        job_id = f"job-{len(self.sizes)}"
        self.sizes[job_id] = request.get("arrayProperties", {}).get("size", 1)
        self.on_submitted()
        return {"jobId": job_id}

    async def _terminate(self, **request):
        await self.open["terminate_job"].wait()
        self.terminated.append(request["jobId"])
        return {}

    @property
    def running(self):
        """Tasks whose jobs were accepted and not terminated."""
        return {
            task
            for job, size in self.sizes.items()
            for task in ([job] if size == 1 else [f"{job}:{n}" for n in range(size)])
            if task not in self.terminated and job not in self.terminated
        }
