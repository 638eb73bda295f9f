"""Checks of options against the account before a submission.

Starts the local AWS emulator, because queues, roles and compute environments are looked up there.
"""

import boto3
import pytest

from farcall import BatchExecutor, SettingsError


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
