"""Checks of options against the account before a submission.

Starts the local AWS emulator, because queues, roles and compute environments are looked up there.
"""

import boto3
import pytest

from farcall import SettingsError


@pytest.fixture(scope="module")
def embedded(own_embedded):
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
async def test_missing_resource_names_its_option(make_executor, option, remedy):
    before = boto3.client("batch").list_jobs(jobQueue="farcall-local", jobStatus="SUCCEEDED")

    with pytest.raises(SettingsError, match=f"{option} is 'not-there'.*{remedy}") as caught:
        async with make_executor(**{option: "not-there"}):
            pass

    assert option == caught.value.option
    after = boto3.client("batch").list_jobs(jobQueue="farcall-local", jobStatus="SUCCEEDED")
    assert before["jobSummaryList"] == after["jobSummaryList"]


async def test_emulator_has_limits_of_compute_environment(make_executor, aws):
    with pytest.raises(SettingsError, match="farcall-local has .*at most"):
        await make_executor(vcpu=500).task(abs)(-1)
