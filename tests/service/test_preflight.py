"""What the options name is looked up before a job is paid for."""

from __future__ import annotations

from collections.abc import Callable

import boto3
import pytest

from farcall import BatchExecutor, ServiceError, SettingsError


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("s3_bucket_name", "create it"),
        ("batch_queue", "describe-job-queues"),
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


async def test_an_image_has_to_be_named(make_executor: Callable[..., BatchExecutor]) -> None:
    async with make_executor(container_image_uri="") as executor:
        with pytest.raises(SettingsError, match="container_image_uri is empty.*Dockerfile"):
            await executor.submit(print)


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
    options = {"container_image_uri": "", "batch_job_definition_name": "the-teams-own"}
    async with make_executor(**options) as executor:
        assert await executor.task(len)("abc") == 3


async def test_a_part_of_a_vcpu_is_refused_on_ec2(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    async with make_executor(vcpu=0.5) as executor:
        with pytest.raises(SettingsError, match="vcpu is 0.5.*whole number"):
            await executor.submit(print)


async def test_a_profile_that_does_not_exist_is_named(
    make_executor: Callable[..., BatchExecutor],
) -> None:
    with pytest.raises(SettingsError, match="profile is 'nobodys'"):
        async with make_executor(profile="nobodys"):
            pass


async def test_missing_credentials_say_what_to_do(
    make_executor: Callable[..., BatchExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ServiceError, match="no AWS credentials were found; run `aws configure`"):
        async with make_executor():
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
