"""Cheap jobs that run shell scripts and look like a farcall client's."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import boto3

import farcall_local


@contextmanager
def submitting(aws: farcall_local.LocalAWS, client: str) -> Iterator[Callable[..., str]]:
    """Yield a function that submits a script like a farcall job; terminate the jobs at the end.

    Args:
        aws: Local AWS emulator.
        client: Default run name: ``<user>-<date>-<time>-<random>``.
    """
    batch = boto3.client("batch")
    aws.configure(submit_rate=None, api_rate=None)
    submitted: list[str] = []
    definitions: dict[tuple[str, str, int], str] = {}

    def define(name: str, script: str, vcpu: int) -> str:
        container = {
            "image": "none",
            "command": ["sh", "-c", script],
            "resourceRequirements": [
                {"type": "VCPU", "value": str(vcpu)},
                {"type": "MEMORY", "value": "128"},
            ],
        }
        reply = batch.register_job_definition(
            jobDefinitionName=f"{name}-{uuid.uuid4().hex}",
            type="container",
            containerProperties=container,
        )
        return str(reply["jobDefinitionArn"])

    def submit(
        script: str,
        *,
        vcpu: int = 1,
        size: int = 0,
        run: str = client,
        workflow: str = "shell",
        name: str = "task",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        wanted = "farcall" if run else "foreign", script, vcpu
        if wanted not in definitions:
            definitions[wanted] = define(*wanted)
        bundle = f"s3://farcall-local/farcall/v1/{run}/bundles/{name}-0"
        said = {"FARCALL_BUNDLE": bundle, "FARCALL_WORKFLOW": workflow} if run else {}
        said |= environment
        more: dict[str, Any] = {"arrayProperties": {"size": size}} if size else {}
        reply = batch.submit_job(
            jobName=f"{name}-{uuid.uuid4().hex[:8]}",
            jobQueue=aws.environment["FARCALL_QUEUE"],
            jobDefinition=definitions[wanted],
            containerOverrides={"environment": [{"name": n, "value": v} for n, v in said.items()]},
            **more,
        )
        submitted.append(reply["jobId"])
        return submitted[-1]

    try:
        yield submit
    finally:
        for job_id in submitted:
            batch.terminate_job(jobId=job_id, reason="the test has ended")
        aws.configure(submit_rate=50.0, api_rate=50.0)
