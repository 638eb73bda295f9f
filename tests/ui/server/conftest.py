"""The page's server by HTTP, with a proxy between it and the embedded AWS."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import aiohttp
import boto3
import pytest

from tests.support.proxy import Proxy
from tests.ui import serving
from tests.ui.server.screen import get


@pytest.fixture(scope="module")
def proxy(embedded) -> Iterator[Proxy]:
    """Between the page and the embedded AWS: it counts."""
    with Proxy(embedded.endpoint_url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def served(embedded, proxy, tmp_path_factory):
    environment = {**embedded.environment, "AWS_ENDPOINT_URL": proxy.url}
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    with serving.page({**environment, **home}) as served:
        yield served


@pytest.fixture
async def page(served):
    """Requests that have the token."""
    async with aiohttp.ClientSession(served.url, headers=served.headers) as session:
        yield session


@pytest.fixture
async def client(page):
    """A client process in whose name jobs are submitted, of the user who looks."""
    about = await get(page, "/api/about")
    return f"{about['user']}-20260101-000000-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def submit(aws, client):
    """Submit a job that runs a shell script, as farcall would; return its ID."""
    batch = boto3.client("batch")
    aws.configure(submit_rate=None, api_rate=None)
    submitted, definitions = [], {}

    def define(name, script, vcpu):
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
        return reply["jobDefinitionArn"]

    def submit(script, *, vcpu=1, size=0, run=client, workflow="shell", name="task"):
        wanted = "farcall" if run else "foreign", script, vcpu
        if wanted not in definitions:
            definitions[wanted] = define(*wanted)
        bundle = f"s3://farcall-local/farcall/v1/{run}/bundles/{name}-0"
        environment = {"FARCALL_BUNDLE": bundle, "FARCALL_WORKFLOW": workflow} if run else {}
        more = {"arrayProperties": {"size": size}} if size else {}
        reply = batch.submit_job(
            jobName=f"{name}-{uuid.uuid4().hex[:8]}",
            jobQueue=aws.environment["FARCALL_BATCH_QUEUE"],
            jobDefinition=definitions[wanted],
            containerOverrides={
                "environment": [{"name": n, "value": v} for n, v in environment.items()]
            },
            **more,
        )
        submitted.append(reply["jobId"])
        return reply["jobId"]

    yield submit
    for job_id in submitted:
        batch.terminate_job(jobId=job_id, reason="the test has ended")
    aws.configure(submit_rate=50.0, api_rate=50.0)
