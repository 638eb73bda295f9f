"""Checks of options against the account before a submission.

Starts the local AWS emulator, because queues, roles and compute environments are looked up there.
"""

from __future__ import annotations

from collections.abc import Callable

import boto3
import pytest

import farcall_local
from farcall import BatchExecutor, ServiceError, SettingsError
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def embedded(own_embedded: farcall_local.LocalAWS) -> farcall_local.LocalAWS:
    return own_embedded


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("s3_bucket_name", "create it"),
        ("queue", "there are farcall-local"),
        ("batch_job_role_name", "trust policy for ecs-tasks"),
        ("batch_execution_role_name", "trust policy for ecs-tasks"),
        ("batch_job_log_group_name", "create-log-group"),
    ],
)
async def test_what_does_not_exist_is_named_with_the_option_and_the_remedy(
    make_executor: Callable[..., BatchExecutor], option: str, remedy: str
) -> None:
    before = boto3.client("batch").list_jobs(jobQueue="farcall-local", jobStatus="SUCCEEDED")

    with pytest.raises(SettingsError, match=f"{option} is 'not-there'.*{remedy}") as caught:
        async with make_executor(**{option: "not-there"}):
            pass

    assert option == caught.value.option
    after = boto3.client("batch").list_jobs(jobQueue="farcall-local", jobStatus="SUCCEEDED")
    assert before["jobSummaryList"] == after["jobSummaryList"]


async def test_the_image_of_a_named_definition_is_used(
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


async def test_missing_credentials_say_what_to_do(
    make_executor: Callable[..., BatchExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ServiceError, match="no AWS credentials were found; run `aws configure`"):
        async with make_executor():
            pass


async def test_a_profile_that_does_not_exist_is_named(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    with pytest.raises(SettingsError, match="profile is 'nobodys'"):
        async with make_executor(profile="nobodys"):
            pass


async def test_a_credentials_file_that_does_not_exist_is_named(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    with pytest.raises(SettingsError, match="credentials is '/nowhere'"):
        async with make_executor(credentials="/nowhere"):
            pass


async def test_an_endpoint_nobody_listens_on_is_a_service_error(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    with pytest.raises(ServiceError):
        async with make_executor(endpoint_url="http://127.0.0.1:9"):
            pass


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


async def test_what_no_compute_environment_could_run_is_refused_as_things_are(
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
                with pytest.raises(SettingsError, match=f"{name} is .* wait forever") as caught:
                    await executor.task(abs, **options)(-1)
                assert caught.value.option == name
            assert await executor.task(abs)(-1) == 1
            assert await executor.task(abs)(-2) == 2
        # At first, and again after each refusal: maxvCpus may have been raised meanwhile.
        assert proxy.counts["batch describecomputeenvironments"] == 4
        assert proxy.counts["batch submitjob"] == 2
