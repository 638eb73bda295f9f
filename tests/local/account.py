"""Batch of the local AWS emulator or of a real account, and common steps of the tests."""

from __future__ import annotations

import os
import time
import uuid

import boto3
from botocore.config import Config

from tests.support.clients import client
from tests.support.patience import PATIENCE_S

FINAL = ("SUCCEEDED", "FAILED")


class Account:
    """Batch clients and common steps of the tests."""

    def __init__(self, local, image=None):
        self.local = local
        env = local.environment if local else os.environ
        self.queue = env["FARCALL_QUEUE" if local else "FARCALL_TEST_AWS_QUEUE"]
        self.image = image or env["FARCALL_IMAGE" if local else "FARCALL_TEST_AWS_IMAGE"]
        self.patience_s = PATIENCE_S if local else 900
        self.batch = self.client("batch")
        self.logs = self.client("logs")
        self._definitions = []

    def client(self, service):
        config = Config(retries={"total_max_attempts": 1 if self.local else 10})
        if not self.local:
            return boto3.client(service, config=config)
        return client(service, self.local.environment, config=config)

    def tune(self, **options):
        """Shorten the emulator's delays; no-op for a real account."""
        if self.local:
            self.local.configure(**options)

    def definition(self, *command, vcpu="1", container=None, **document):
        """Register a definition whose container runs a command."""
        properties = {**self._container(command, vcpu), **(container or {})}
        return self.register(type="container", containerProperties=properties, **document)

    def nodes(self, scripts, count, main=0, container=None, group=None, **document):
        """Register a multi-node parallel definition: shell scripts by their target nodes."""
        groups = [
            {
                "targetNodes": targets,
                "container": {**self._container(("sh", "-c", script)), **(container or {})},
                **(group or {}),
            }
            for targets, script in scripts.items()
        ]
        properties = {"numNodes": count, "mainNode": main, "nodeRangeProperties": groups}
        return self.register(type="multinode", nodeProperties=properties, **document)

    def _container(self, command, vcpu="1"):
        return {
            "image": self.image,
            "command": list(command),
            "resourceRequirements": [
                {"type": "VCPU", "value": vcpu},
                {"type": "MEMORY", "value": "128"},
            ],
            # PID 1 ignores SIGTERM unless it handles it, and cannot be killed from inside.
            "linuxParameters": {"initProcessEnabled": True},
        }

    def register(self, name=None, **document):
        """Register a definition, by default with a unique name."""
        name = name or f"farcall-test-{uuid.uuid4().hex[:12]}"
        reply = self.batch.register_job_definition(jobDefinitionName=name, **document)
        self._definitions.append(reply["jobDefinitionArn"])
        return reply["jobDefinitionArn"]

    def submit(self, definition, **document):
        """Submit a job and return its ID."""
        return self.batch.submit_job(
            **{
                "jobName": f"farcall-test-{uuid.uuid4().hex[:12]}",
                "jobQueue": self.queue,
                "jobDefinition": definition,
                **document,
            }
        )["jobId"]

    def run(self, *command, document=None, **options):
        """Run a command to its end and return the job's description."""
        return self.wait(self.submit(self.definition(*command, **(document or {})), **options))

    def shell(self, script, **options):
        """Run a shell script to its end and return the job's description."""
        return self.run("sh", "-c", script, **options)

    def start(self, script, **options):
        """Submit a shell script; return its job's ID when it has printed "ready"."""
        job_id = self.submit(self.definition("sh", "-c", f"echo ready; {script}"), **options)
        detail = self.wait(job_id, "RUNNING")
        self.wait_for(lambda: "ready" in self.output(detail))
        return job_id

    def describe(self, job_id):
        return self.batch.describe_jobs(jobs=[job_id])["jobs"][0]

    def status(self, job_id):
        return self.describe(job_id)["status"]

    def wait(self, job_id, *statuses):
        """Wait for a status, by default a final one; return the description."""
        statuses = statuses or FINAL
        found = []

        def there():
            found[:] = self.batch.describe_jobs(jobs=[job_id])["jobs"]
            return bool(found) and found[0]["status"] in statuses

        self.wait_for(there)
        return found[0]

    def wait_for(self, condition):
        deadline = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.03 if self.local else 3)

    def output(self, detail, group="/aws/batch/job"):
        """Return a job's log lines."""
        stream = detail["container"].get("logStreamName")
        if stream is None:
            return []
        events = self.logs.get_log_events(
            logGroupName=group, logStreamName=stream, startFromHead=True
        )["events"]
        return [event["message"] for event in events]

    def close(self):
        if not self.local:
            for arn in self._definitions:
                self.batch.deregister_job_definition(jobDefinition=arn)
        self.batch.close()
        self.logs.close()
