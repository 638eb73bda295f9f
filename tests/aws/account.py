"""The account under test: a real one, or a local AWS emulator that starts empty."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import boto3

from farcall import BatchExecutor
from farcall.config.settings import read
from farcall.engine.session import session_for
from tests import emulators
from tests.docs.pages import ROOT, run_installed

REQUESTS = "FARCALL_TEST_AWS_REQUESTS"
VCPU_MINUTES = "FARCALL_TEST_AWS_VCPU_MINUTES"
STACK = "farcall-test"
BUSYBOX = "public.ecr.aws/docker/library/busybox:stable"
_POLL_S = 0.5
_KINDS = {
    "job queues": ("batch", "describe_job_queues", "jobQueues", "jobQueueName"),
    "compute environments": (
        *("batch", "describe_compute_environments", "computeEnvironments"),
        "computeEnvironmentName",
    ),
    "job definitions": (
        *("batch", "describe_job_definitions", "jobDefinitions"),
        "jobDefinitionName",
    ),
    "log groups": ("logs", "describe_log_groups", "logGroups", "logGroupName"),
    "buckets": ("s3", "list_buckets", "Buckets", "Name"),
    "roles": ("iam", "list_roles", "Roles", "RoleName"),
    "launch templates": (
        *("ec2", "describe_launch_templates", "LaunchTemplates"),
        "LaunchTemplateName",
    ),
    "security groups": ("ec2", "describe_security_groups", "SecurityGroups", "GroupName"),
}
"""Resources of a stack: service, operation, field of the list and of the name."""


class Account:
    """The account, with the suite's clients, options and budget.

    Args:
        emulator: The local AWS emulator; None for a real account.
        environment: Variables of clients and of commands.

    Attributes:
        observed: Name of an assumption to the observation.
        requests: Number of requests sent by the tests, except those of commands.
    """

    def __init__(self, emulator: emulators.TestAWS | None, environment: dict[str, str]) -> None:
        self.emulator = emulator
        self.environment = environment
        self.observed: dict[str, str] = {}
        self.requests = 0
        self.options: dict[str, Any] = {}
        self._most_requests = int(os.environ.get(REQUESTS, "5000"))
        self._most_vcpu_minutes = float(os.environ.get(VCPU_MINUTES, "60"))
        self._began = time.time()
        self._clients: dict[str, Any] = {}
        self._used = 0.0
        self.job_ids: list[str] = []

    @property
    def patience_s(self) -> float:
        """Maximum duration of a wait in seconds."""
        return 300.0 if self.emulator else 1200.0

    def client(self, service: str) -> Any:
        """Return a client whose requests are counted."""
        if service not in self._clients:
            made = self._clients[service] = boto3.Session().client(service)
            made.meta.events.register("before-send", self._count)
        return self._clients[service]

    def _count(self, **_: Any) -> None:
        self.requests += 1

    def farcall(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        return run_installed("farcall", *words)

    def load_options(self) -> None:
        """Read the options that ``farcall deploy`` wrote."""
        self.options = read(Path(self.environment["FARCALL_CONFIG"]))["batch"]

    @contextlib.asynccontextmanager
    async def executor(self, **options: Any) -> AsyncIterator[BatchExecutor]:
        """Open an executor of small jobs, and count its requests."""
        small = {"vcpu": 1, "memory": 0.5, "retry_attempts": 1, "time_limit": 600}
        executor = BatchExecutor(**{**self.options, "packages": None, **small, **options})
        async with executor:
            session = await session_for(executor.settings)
            try:
                yield executor
            finally:
                self.requests += session.requests

    def observe(self, name: str, value: str) -> None:
        """Record what was observed about an assumption."""
        self.observed[name] = value

    def job(self, job_id: str) -> dict[str, Any]:
        """Wait until a job has ended, and return its description."""
        self.job_ids.append(job_id)
        return self.until(lambda: self._ended(job_id))

    def _ended(self, job_id: str) -> dict[str, Any] | None:
        jobs = self.client("batch").describe_jobs(jobs=[job_id])["jobs"]
        return next((job for job in jobs if job["status"] in ("SUCCEEDED", "FAILED")), None)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Poll slowly, because requests count, and return the condition's true value."""
        deadline = time.monotonic() + self.patience_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not true after {self.patience_s:g} s"
            time.sleep(_POLL_S if self.emulator else 10 * _POLL_S)
        return value

    @contextlib.contextmanager
    def tuned(self, **options: Any) -> Iterator[None]:
        """Shorten waits of the emulator; no-op on a real account."""
        if self.emulator is not None:
            self.emulator.configure(**options)
        try:
            yield
        finally:
            if self.emulator is not None:
                self.emulator.configure(timeout_scale=1.0, stop_grace_s=30.0, delays={})

    def lose_host(self, job: dict[str, Any]) -> None:
        """Terminate the instance of a running job."""
        if self.emulator is not None:
            self.emulator.reclaim(job["jobId"])
            return
        arn = job["container"]["containerInstanceArn"]
        found = self.client("ecs").describe_container_instances(
            cluster=arn.split("/")[-2], containerInstances=[arn]
        )
        instance = found["containerInstances"][0]["ec2InstanceId"]
        self.client("ec2").terminate_instances(InstanceIds=[instance])

    def remains(self) -> list[str]:
        """Return the stack's resources that exist."""
        found = []
        for kind, (service, operation, field, name) in _KINDS.items():
            pages = self.client(service).get_paginator(operation).paginate()
            there = [each for page in pages for each in page[field] if _exists(each)]
            found += [f"{kind}: {each[name]}" for each in there if STACK in each[name].lower()]
        return found

    def exhausted(self) -> str:
        """Return which budget is exhausted; empty if none is."""
        if self.requests >= self._most_requests:
            return f"{self.requests} requests were sent; the maximum is {REQUESTS}"
        if self.vcpu_minutes() >= self._most_vcpu_minutes:
            return f"jobs used {self.vcpu_minutes():.1f} vCPU-minutes; see {VCPU_MINUTES}"
        return ""

    def vcpu_minutes(self) -> float:
        """Return the vCPU-minutes of the suite's own jobs, which have 1 vCPU each."""
        total = 0.0
        ids = [*dict.fromkeys(self.job_ids)]
        for start in range(0, len(ids), 100):
            reply = self.client("batch").describe_jobs(jobs=ids[start : start + 100])
            for job in reply["jobs"]:
                if "startedAt" in job:
                    stopped = job.get("stoppedAt", time.time() * 1000)
                    size = job.get("arrayProperties", {}).get("size", 1)
                    total += (stopped - job["startedAt"]) / 60_000 * size
        return total

    def facts(self) -> dict[str, str]:
        """Return the report's facts."""
        return {
            "account": "local AWS emulator (dry run)" if self.emulator else "AWS",
            "region": self.environment["AWS_REGION"],
            "farcall": subprocess.run(
                ["git", "describe", "--always", "--dirty"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            ).stdout.strip(),
            "requests, without those of commands": f"{self.requests} of {self._most_requests}",
            "vCPU-minutes, without those of commands": (
                f"{self._used:.1f} of {self._most_vcpu_minutes:g}"
            ),
            "duration": f"{(time.time() - self._began) / 60:.1f} minutes",
        }

    def close(self) -> None:
        """Record the vCPU-minutes while the jobs can be described."""
        self._used = self.vcpu_minutes()


def _exists(resource: dict[str, Any]) -> bool:
    """Return whether a listed resource exists: Batch lists deleted ones for a while."""
    return resource.get("status") not in ("DELETED", "DELETING", "INACTIVE")
