"""Stacks of the farcall template: order, events, rollback, failed deletion.

Starts an empty local AWS account, because a stack makes its resources through the other services.
Slow, because stacks are made and deleted step by step.
"""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from farcall.deploy.stack import template
from tests import emulators
from tests.support.patience import until

pytestmark = pytest.mark.slow

TEMPLATE = template()
DELETES_ALL = TEMPLATE.replace("DeletionPolicy: RetainExceptOnCreate", "DeletionPolicy: Delete")


class Account:
    """An account of the local AWS emulator, by its API and with its own key."""

    def __init__(self, aws: emulators.TestAWS) -> None:
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

    def request(self, name: str = "tried", template: str = DELETES_ALL, **parameters: str) -> Any:
        given = {"VpcId": self.vpc, "SubnetIds": ",".join(self.subnets), **parameters}
        return {
            "StackName": name,
            "TemplateBody": template,
            "Capabilities": ["CAPABILITY_IAM"],
            "Parameters": [
                {"ParameterKey": key, "ParameterValue": value} for key, value in given.items()
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

    def environment(self) -> Any:
        """Return the one compute environment."""
        found = self.client("batch").describe_compute_environments()["computeEnvironments"]
        [environment] = found
        return environment

    def prefixes(self, bucket: str) -> dict[str, str]:
        """Return the prefixes of a bucket's lifecycle rules, by their IDs."""
        found = self.client("s3").get_bucket_lifecycle_configuration(Bucket=bucket)
        return {rule["ID"]: rule["Filter"].get("Prefix", "") for rule in found["Rules"]}

    def delete(self, stack: str) -> Any:
        self.cloudformation.delete_stack(StackName=stack)
        return self.settled(stack)


@pytest.fixture(scope="module")
def account():
    with emulators.start(empty=True, cpus=4) as aws:
        yield Account(aws)


@pytest.fixture
def deployed(account):
    stack = account.create()
    assert account.settled(stack)["StackStatus"] == "CREATE_COMPLETE"
    yield stack
    account.delete(stack)
    assert account.aws.resources() == {}


def test_created_resources_have_their_properties(account, deployed):
    [stack] = account.cloudformation.describe_stacks(StackName="tried")["Stacks"]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    assert set(outputs) == {"Bucket", "Ec2Queue", "ExecutionRole", "JobRole", "LogGroup"}
    s3, bucket = account.client("s3"), outputs["Bucket"]
    encryption = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]
    [rule] = encryption["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    blocked = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert all(blocked.values())
    ownership = s3.get_bucket_ownership_controls(Bucket=bucket)["OwnershipControls"]
    assert ownership == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    assert account.prefixes(bucket) == {"objects-of-farcall": "farcall/", "unfinished-uploads": ""}
    policy = json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])
    assert policy["Statement"][0]["Resource"] == [
        f"arn:aws:s3:::{bucket}",
        f"arn:aws:s3:::{bucket}/*",
    ]
    [group] = account.client("logs").describe_log_groups()["logGroups"]
    assert (group["logGroupName"], group["retentionInDays"]) == ("/farcall/tried", 30)
    iam = account.client("iam")
    inline = iam.get_role_policy(RoleName=outputs["JobRole"], PolicyName="farcall")
    fetch = inline["PolicyDocument"]["Statement"][0]
    assert f"arn:aws:s3:::{bucket}/farcall/v1/packages/*" in fetch["Resource"]
    [role] = [each for each in account.aws.resources()["roles"] if "InstanceRole" in each]
    attached = iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
    assert [each["PolicyName"] for each in attached] == ["AmazonEC2ContainerServiceforEC2Role"]
    environment = account.environment()
    assert environment["computeResources"]["maxvCpus"] == 256
    assert environment["computeResources"]["subnets"] == account.subnets
    [queue] = account.client("batch").describe_job_queues()["jobQueues"]
    assert queue["jobQueueName"] == outputs["Ec2Queue"]


def test_a_failed_update_is_rolled_back(account, deployed):
    events = len(account.events(deployed))
    changes = {"KeyPrefix": "other/", "WarmMinutes": "5"}
    account.cloudformation.update_stack(**account.request(**changes))
    stack = account.settled(deployed)
    assert stack["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    updated = account.events(deployed)[events:]
    [reason] = [
        reason
        for name, status, reason in updated
        if (name, status) == ("Ec2Environment", "UPDATE_FAILED")
    ]
    assert "minScaleDownDelayMinutes must be 0, or between 20 and 10080" in reason
    assert ("Bucket", "UPDATE_COMPLETE") in {each[:2] for each in updated}
    assert ("tried", "UPDATE_ROLLBACK_IN_PROGRESS") in {each[:2] for each in updated}
    [bucket] = account.aws.resources()["buckets"]
    assert account.prefixes(bucket)["objects-of-farcall"] == "farcall/"
    account.cloudformation.update_stack(**account.request(WarmMinutes="30"))
    assert account.settled(deployed)["StackStatus"] == "UPDATE_COMPLETE"


def test_a_failed_creation_leaves_nothing(account):
    logs = account.client("logs")
    logs.create_log_group(logGroupName="/farcall/failing")
    stack = account.create("failing", TEMPLATE)
    settled = account.settled(stack)
    assert settled["StackStatus"] == "ROLLBACK_COMPLETE"
    events = account.events(stack)
    failed = [each for each in events if each[1].endswith("_FAILED")]
    name, status, reason = failed[0]
    assert (name, status) == ("LogGroup", "CREATE_FAILED")
    assert "already exists" in reason
    assert {reason for _, _, reason in failed[1:]} == {"Resource creation cancelled"}
    [why] = [reason for _, status, reason in events if status == "ROLLBACK_IN_PROGRESS"]
    assert why.startswith("The following resource(s) failed to create: [LogGroup]. ")
    logs.delete_log_group(logGroupName="/farcall/failing")
    assert account.aws.resources() == {"stacks": ["failing"]}
    with pytest.raises(ClientError, match="ROLLBACK_COMPLETE state and can not be updated"):
        account.cloudformation.update_stack(**account.request("failing"))
    with pytest.raises(ClientError, match="AlreadyExistsException"):
        account.create("failing", TEMPLATE)
    assert account.delete(stack)["StackStatus"] == "DELETE_COMPLETE"
    assert account.aws.resources() == {}
