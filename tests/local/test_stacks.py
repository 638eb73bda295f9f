"""Stacks of the embedded CloudFormation, asked for with boto3 in an account without anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest

import farcall.local
from tests.support.patience import until

TEMPLATE = (Path(__file__).parent / "stack.yaml").read_text()


class Account:
    """An account of the embedded AWS, by its API and with its own key."""

    def __init__(self, aws: farcall.local.LocalAWS) -> None:
        self.aws = aws
        self.cloudformation = self.client("cloudformation")
        ec2 = self.client("ec2")
        found = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])
        self.vpc = found["Vpcs"][0]["VpcId"]
        subnets = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [self.vpc]}])
        self.subnets = [each["SubnetId"] for each in subnets["Subnets"]]

    def client(self, service: str, keys: dict[str, str] | None = None) -> Any:
        keys = keys or self.aws.environment
        return boto3.client(
            service,
            endpoint_url=self.aws.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        )

    def request(self, name: str = "tried", template: str = TEMPLATE, **parameters: str) -> Any:
        given = {"VpcId": self.vpc, "SubnetIds": ",".join(self.subnets), **parameters}
        return {
            "StackName": name,
            "TemplateBody": template,
            "Capabilities": ["CAPABILITY_IAM"],
            "Parameters": [
                {"ParameterKey": key, "ParameterValue": value}
                for key, value in given.items()
                if f"{key}:" in template
            ],
        }

    def create(self, *args: str, client: Any = None, **parameters: str) -> str:
        """Ask for a stack and return its ID."""
        client = client or self.cloudformation
        stack_id: str = client.create_stack(**self.request(*args, **parameters))["StackId"]
        return stack_id

    def settled(self, stack: str) -> Any:
        """Wait until nothing is done with a stack any more; return it."""

        def look() -> Any:
            [found] = self.cloudformation.describe_stacks(StackName=stack)["Stacks"]
            return None if found["StackStatus"].endswith("_IN_PROGRESS") else found

        return until(look)

    def events(self, stack: str) -> list[tuple[str, str, str]]:
        """Return logical ID, status and reason of the events, the first one first."""
        pages = self.cloudformation.get_paginator("describe_stack_events")
        found = [e for page in pages.paginate(StackName=stack) for e in page["StackEvents"]]
        return [
            (
                each["LogicalResourceId"],
                each["ResourceStatus"],
                each.get("ResourceStatusReason", ""),
            )
            for each in reversed(found)
        ]

    def delete(self, stack: str) -> Any:
        self.cloudformation.delete_stack(StackName=stack)
        return self.settled(stack)


@pytest.fixture(scope="module")
def account():
    with farcall.local.start(empty=True, cpus=4) as aws:
        yield Account(aws)


@pytest.fixture
def deployed(account):
    stack = account.create()
    assert account.settled(stack)["StackStatus"] == "CREATE_COMPLETE"
    yield stack
    account.delete(stack)
    assert account.aws.resources() == {}


def test_a_template_is_made_told_and_taken_away(account, deployed):
    [stack] = account.cloudformation.describe_stacks(StackName="tried")["Stacks"]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    assert set(outputs) == {"Bucket", "JobRole", "Queue"}
    s3, bucket = account.client("s3"), outputs["Bucket"]
    encryption = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]
    assert encryption["Rules"][0]["BucketKeyEnabled"] is True
    blocked = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert all(blocked.values())
    ownership = s3.get_bucket_ownership_controls(Bucket=bucket)["OwnershipControls"]
    assert ownership == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    rules = s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert {rule["ID"]: rule.get("Expiration") for rule in rules} == {
        "uploads": None,
        "runs": {"Days": 30},
    }
    policy = json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])
    assert policy["Statement"][0]["Resource"] == [
        f"arn:aws:s3:::{bucket}",
        f"arn:aws:s3:::{bucket}/*",
    ]
    [group] = account.client("logs").describe_log_groups()["logGroups"]
    assert (group["logGroupName"], group["retentionInDays"]) == ("/tried", 30)
    iam, role = account.client("iam"), outputs["JobRole"].rpartition("/")[2]
    inline = iam.get_role_policy(RoleName=role, PolicyName="objects")["PolicyDocument"]
    assert inline["Statement"][0]["Resource"] == f"arn:aws:s3:::{bucket}/*"
    attached = iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
    assert [each["PolicyName"] for each in attached] == ["AmazonEC2ContainerServiceforEC2Role"]
    [environment] = account.client("batch").describe_compute_environments()["computeEnvironments"]
    assert environment["computeResources"]["maxvCpus"] == 16
    assert environment["computeResources"]["subnets"] == account.subnets
    [queue] = account.client("batch").describe_job_queues()["jobQueues"]
    assert queue["jobQueueArn"] == outputs["Queue"]


def test_events_tell_each_resource_after_those_it_needs(account, deployed):
    events = account.events(deployed)
    assert events[0] == ("tried", "CREATE_IN_PROGRESS", "User Initiated")
    assert events[-1][:2] == ("tried", "CREATE_COMPLETE")
    complete = [name for name, status, _ in events if status == "CREATE_COMPLETE"]
    for first, second in (
        ("Bucket", "BucketPolicy"),
        ("JobRole", "InstanceProfile"),
        ("InstanceProfile", "Environment"),
        ("LaunchTemplate", "Environment"),
        ("Environment", "Queue"),
    ):
        assert complete.index(first) < complete.index(second)
    assert "Nothing" not in complete
