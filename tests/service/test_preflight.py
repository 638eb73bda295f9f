"""Checks of options against the account before a submission.

Starts the local AWS emulator, because queues, roles and compute environments are looked up there.
"""

from __future__ import annotations

from collections.abc import Callable

import boto3
import pytest

import farcall_local
from farcall import BatchExecutor, SettingsError
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def embedded(own_embedded: farcall_local.LocalAWS) -> farcall_local.LocalAWS:
    return own_embedded


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("s3_bucket_name", "create it"),
        ("queue", "its queues are farcall-local"),
        ("batch_job_role_name", "trust policy for ecs-tasks"),
        ("batch_execution_role_name", "trust policy for ecs-tasks"),
        ("batch_job_log_group_name", "create-log-group"),
    ],
)
async def test_missing_resource_names_its_option(
    make_executor: Callable[..., BatchExecutor], option: str, remedy: str
) -> None:
    before = boto3.client("batch").list_jobs(jobQueue="farcall-local", jobStatus="SUCCEEDED")

    with pytest.raises(SettingsError, match=f"{option} is 'not-there'.*{remedy}") as caught:
        async with make_executor(**{option: "not-there"}):
            pass

    assert option == caught.value.option
    after = boto3.client("batch").list_jobs(jobQueue="farcall-local", jobStatus="SUCCEEDED")
    assert before["jobSummaryList"] == after["jobSummaryList"]


async def test_named_definition_provides_the_image(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    boto3.client("batch").register_job_definition(
        jobDefinitionName="the-teams-own",
        type="container",
        containerProperties={
            "image": "farcall-local-process",
            "resourceRequirements": [
                {"type": "VCPU", "value": "1"},
                {"type": "MEMORY", "value": "128"},
            ],
        },
    )
    options = {"image": "", "batch_job_definition_name": "the-teams-own"}
    async with make_executor(**options) as executor:
        assert await executor.task(len)("abc") == 3


async def test_error_in_job_names_missing_options(aws, monkeypatch):
    monkeypatch.setenv("AWS_BATCH_JOB_ID", "6f1c")
    monkeypatch.delenv("FARCALL_QUEUE")
    with pytest.raises(SettingsError, match="This code runs in a job") as caught:
        await BatchExecutor(vcpu=1, memory=1).task(abs)(-1)
    assert caught.value.option == "queue"


@pytest.mark.parametrize("options", [{"vcpu": 500}, {"num_gpus": 9}])
async def test_emulator_has_limits_of_compute_environment(make_executor, aws, options):
    with pytest.raises(SettingsError, match="farcall-local has .*at most"):
        await make_executor(**options).task(abs)(-1)


async def test_oversized_job_is_rejected(
    make_executor: Callable[..., BatchExecutor],
    aws: farcall_local.LocalAWS,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = boto3.client("batch")
    resources = {
        "type": "EC2",
        "maxvCpus": 16,
        "instanceTypes": ["m5", "c5"],
        "instanceRole": "ecsInstanceRole",
        "subnets": [],
    }
    batch.create_compute_environment(
        computeEnvironmentName="small", type="MANAGED", computeResources=resources
    )
    batch.create_job_queue(
        jobQueueName="small",
        priority=1,
        computeEnvironmentOrder=[{"order": 1, "computeEnvironment": "small"}],
    )
    with Proxy(aws.endpoint_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BATCH", proxy.url)
        async with make_executor(queue="small") as executor:
            for options in ({"vcpu": 500}, {"memory": 4096}, {"num_gpus": 1}):
                (name,) = options
                with pytest.raises(
                    SettingsError, match=f"{name} is .* wait indefinitely"
                ) as caught:
                    await executor.task(abs, **options)(-1)
                assert caught.value.option == name
            assert await executor.task(abs)(-1) == 1
            assert await executor.task(abs)(-2) == 2
        # Once at first, and again after each rejection, because maxvCpus may have been raised.
        assert proxy.counts["batch describecomputeenvironments"] == 4
        assert proxy.counts["batch submitjob"] == 2
