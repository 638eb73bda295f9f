"""Stacks of the embedded CloudFormation, asked for with boto3 in an account without anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

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


def test_what_changed_is_updated_where_it_stands_and_what_did_not_is_no_update(account, deployed):
    with pytest.raises(ClientError, match=r"ValidationError.*No updates are to be performed"):
        account.cloudformation.update_stack(**account.request())
    events = len(account.events(deployed))
    account.cloudformation.update_stack(**account.request(MaxVcpus="32", Days="7"))
    assert account.settled(deployed)["StackStatus"] == "UPDATE_COMPLETE"
    told = account.events(deployed)[events:]
    assert {name for name, status, _ in told if status == "UPDATE_COMPLETE"} == {
        "Bucket",
        "Environment",
        "LogGroup",
        "tried",
    }
    [environment] = account.client("batch").describe_compute_environments()["computeEnvironments"]
    assert environment["computeResources"]["maxvCpus"] == 32
    [group] = account.client("logs").describe_log_groups()["logGroups"]
    assert group["retentionInDays"] == 7


def test_what_a_condition_takes_away_is_deleted_and_what_is_renamed_is_replaced(account, deployed):
    before = {r["LogicalResourceId"]: r["PhysicalResourceId"] for r in resources(account)}
    account.cloudformation.update_stack(**account.request(Instances="false", Name="renamed"))
    assert account.settled(deployed)["StackStatus"] == "UPDATE_COMPLETE"
    left = {
        r["LogicalResourceId"]: r["PhysicalResourceId"]
        for r in resources(account)
        if r["ResourceStatus"] != "DELETE_COMPLETE"
    }
    assert before.keys() - left.keys() == {"Environment", "LaunchTemplate", "Queue"}
    assert left["LogGroup"] == "/renamed"
    [group] = account.client("logs").describe_log_groups()["logGroups"]
    assert group["logGroupName"] == "/renamed"
    [stack] = account.cloudformation.describe_stacks(StackName="tried")["Stacks"]
    assert "Queue" not in {each["OutputKey"] for each in stack["Outputs"]}


def resources(account):
    found = account.cloudformation.list_stack_resources(StackName="tried")
    return found["StackResourceSummaries"]


def test_an_update_that_fails_is_taken_back(account, deployed):
    template = TEMPLATE.replace("MinScaleDownDelayMinutes: 30", "MinScaleDownDelayMinutes: 5")
    events = len(account.events(deployed))
    account.cloudformation.update_stack(**account.request("tried", template, Days="7"))
    stack = account.settled(deployed)
    assert stack["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    told = account.events(deployed)[events:]
    [reason] = [
        r for name, status, r in told if (name, status) == ("Environment", "UPDATE_FAILED")
    ]
    assert "minScaleDownDelayMinutes must be 0, or between 20 and 10080" in reason
    assert ("tried", "UPDATE_ROLLBACK_IN_PROGRESS") in {each[:2] for each in told}
    [group] = account.client("logs").describe_log_groups()["logGroups"]
    assert group["retentionInDays"] == 30
    account.cloudformation.update_stack(**account.request(Days="14"))
    assert account.settled(deployed)["StackStatus"] == "UPDATE_COMPLETE"


def test_a_creation_that_fails_leaves_nothing_and_its_first_failure_says_why(account):
    template = TEMPLATE.replace("DeletionPolicy: Delete", "DeletionPolicy: RetainExceptOnCreate")
    logs = account.client("logs")
    logs.create_log_group(logGroupName="/tried")
    stack = account.create("failing", template)
    settled = account.settled(stack)
    assert settled["StackStatus"] == "ROLLBACK_COMPLETE"
    events = account.events(stack)
    failed = [each for each in events if each[1].endswith("_FAILED")]
    name, status, reason = failed[0]
    assert (name, status) == ("LogGroup", "CREATE_FAILED")
    assert "already exists" in reason
    assert "HandlerErrorCode: AlreadyExists" in reason
    assert {reason for _, _, reason in failed[1:]} <= {"Resource creation cancelled"}
    [why] = [r for name, status, r in events if status == "ROLLBACK_IN_PROGRESS"]
    assert why.startswith("The following resource(s) failed to create: [LogGroup]. ")
    logs.delete_log_group(logGroupName="/tried")
    assert account.aws.resources() == {"stacks": ["failing"]}
    with pytest.raises(ClientError, match="ROLLBACK_COMPLETE state and can not be updated"):
        account.cloudformation.update_stack(**account.request("failing", template))
    with pytest.raises(ClientError, match="AlreadyExistsException"):
        account.create("failing")
    assert account.delete(stack)["StackStatus"] == "DELETE_COMPLETE"
    assert account.aws.resources() == {}


def test_a_bucket_with_objects_is_not_deleted_until_it_is_empty(account):
    stack = account.create()
    outputs = account.settled(stack)["Outputs"]
    [bucket] = [each["OutputValue"] for each in outputs if each["OutputKey"] == "Bucket"]
    s3 = account.client("s3")
    s3.put_object(Bucket=bucket, Key="tried/value", Body=b"x")
    settled = account.delete(stack)
    assert settled["StackStatus"] == "DELETE_FAILED"
    assert settled["StackStatusReason"] == (
        "The following resource(s) failed to delete: [Bucket]. "
    )
    [reason] = [r for name, status, r in account.events(stack) if status == "DELETE_FAILED"][:1]
    assert "The bucket you tried to delete is not empty" in reason
    assert account.aws.resources() == {"buckets": [bucket], "stacks": ["tried"]}
    s3.delete_object(Bucket=bucket, Key="tried/value")
    assert account.delete(stack)["StackStatus"] == "DELETE_COMPLETE"
    assert account.aws.resources() == {}


def test_a_bucket_that_is_to_outlive_its_stack_does(account):
    template = TEMPLATE.replace("DeletionPolicy: Delete", "DeletionPolicy: RetainExceptOnCreate")
    stack = account.create("tried", template)
    account.settled(stack)
    assert account.delete(stack)["StackStatus"] == "DELETE_COMPLETE"
    assert ("Bucket", "DELETE_SKIPPED", "") in account.events(stack)
    [bucket] = account.aws.resources().pop("buckets")
    account.client("s3").delete_bucket(Bucket=bucket)
    assert account.aws.resources() == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"Capabilities": []},
            r"InsufficientCapabilities.*Requires capabilities : \[CAPABILITY_IAM",
        ),
        ({"StackName": "a_b"}, "stackName"),
        ({"TemplateBody": "Resources: {}"}, "At least one Resources member"),
        ({"TemplateBody": "- a"}, "Template format error"),
        ({"TemplateBody": "a: [}"}, "YAML not well-formed"),
        ({"TemplateBody": " " * 51_201}, "templateBody"),
        ({"TemplateBody": "Resources: {A: {Type: 'AWS::SQS::Queue'}}"}, "AWS::SQS::Queue"),
        (
            {"TemplateBody": "Resources: {A: {Type: 'AWS::S3::Bucket', DependsOn: B}}"},
            "Unresolved",
        ),
        ({"TemplateURL": "https://s3/x", "TemplateBody": ""}, "TemplateURL"),
        ({"Parameters": []}, r"Parameters: \[SubnetIds, VpcId\] must have values"),
        ({"MaxVcpus": "0"}, "not less than 1"),
        ({"MaxVcpus": "many"}, "must be a number"),
        ({"Instances": "perhaps"}, "must be one of AllowedValues"),
        ({"Name": "ABC"}, "small letters"),
        ({"VpcId": "vpc-0123"}, "parameter value vpc-0123 for parameter name VpcId does not"),
        ({"SubnetIds": "subnet-0123"}, "parameter value subnet-0123 for parameter name SubnetIds"),
        ({"Other": "x"}, r"Parameters: \[Other\] do not exist in the template"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_made_is_refused_before_anything_is(account, change, message):
    request = account.request()
    for name, value in change.items():
        if name not in ("Capabilities", "Parameters", "StackName", "TemplateBody", "TemplateURL"):
            given = {
                each["ParameterKey"]: each["ParameterValue"] for each in request["Parameters"]
            }
            request["Parameters"] = [
                {"ParameterKey": key, "ParameterValue": text}
                for key, text in {**given, name: value}.items()
            ]
        else:
            request[name] = value
    with pytest.raises(ClientError, match=message):
        account.cloudformation.create_stack(**{k: v for k, v in request.items() if v != ""})
    assert account.aws.resources() == {}


def test_what_is_not_there_is_told_and_deleting_it_is_no_error(account):
    with pytest.raises(ClientError, match="Stack with id absent does not exist"):
        account.cloudformation.describe_stacks(StackName="absent")
    account.cloudformation.delete_stack(StackName="absent")
    with pytest.raises(ClientError, match="does not support 'CreateChangeSet'"):
        account.cloudformation.create_change_set(
            StackName="absent", ChangeSetName="c", TemplateBody=TEMPLATE
        )


def test_a_property_that_is_not_known_fails_the_resource_by_name(account):
    template = TEMPLATE.replace("RetentionInDays", "RetentionDays")
    stack = account.create("tried", template)
    assert account.settled(stack)["StackStatus"] == "ROLLBACK_COMPLETE"
    [reason] = [r for n, s, r in account.events(stack) if (n, s) == ("LogGroup", "CREATE_FAILED")]
    assert "extraneous key [RetentionDays] is not permitted" in reason
    account.delete(stack)


def test_calls_that_come_too_fast_or_hit_a_fault_are_made_again(account):
    for operation in ("CreateComputeEnvironment", "CreateJobQueue", "UpdateJobQueue"):
        account.aws.fault(operation, "throttle", 2)
        account.aws.fault(operation, "error")
    stack = account.create()
    assert account.settled(stack)["StackStatus"] == "CREATE_COMPLETE"
    assert account.delete(stack)["StackStatus"] == "DELETE_COMPLETE"
    assert account.aws.resources() == {}


def test_the_account_has_the_quotas_of_a_new_one(account):
    quotas = account.client("service-quotas")
    quota = quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-1216C47A")["Quota"]
    assert quota["Value"] == 5
    with pytest.raises(ClientError, match="NoSuchResourceException"):
        quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-0")


def test_a_protected_stack_is_deleted_by_nobody(account):
    template = "Resources: {Group: {Type: 'AWS::Logs::LogGroup'}}"
    stack = account.cloudformation.create_stack(
        StackName="kept", TemplateBody=template, EnableTerminationProtection=True
    )["StackId"]
    account.settled(stack)
    with pytest.raises(ClientError, match="TerminationProtection is enabled"):
        account.cloudformation.delete_stack(StackName="kept")
    account.cloudformation.update_termination_protection(
        StackName="kept", EnableTerminationProtection=False
    )
    assert account.delete(stack)["StackStatus"] == "DELETE_COMPLETE"


def test_deleting_a_queue_ends_its_jobs_first(account):
    stack = account.create()
    account.settled(stack)
    account.aws.configure(stop_grace_s=0.1)
    batch = account.client("batch")
    job = submitted(batch, "sleep 600")
    until(lambda: described(batch, job)["status"] == "RUNNING")
    assert account.delete(stack)["StackStatus"] == "DELETE_COMPLETE"
    assert described(batch, job)["status"] == "FAILED"
    assert "was deleted" in described(batch, job)["statusReason"]
    batch.deregister_job_definition(jobDefinition="tried:1")
    account.client("logs").delete_log_group(logGroupName="/aws/batch/job")
    assert account.aws.resources() == {}


def submitted(batch, script, **container):
    """Submit a shell script to the template's queue."""
    resources = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "128"}]
    properties = {
        "image": "any",
        "command": ["sh", "-c", script],
        "resourceRequirements": resources,
        **container,
    }
    batch.register_job_definition(
        jobDefinitionName="tried", type="container", containerProperties=properties
    )
    return batch.submit_job(jobName="t", jobQueue="tried-queue", jobDefinition="tried")["jobId"]


def described(batch, job):
    return batch.describe_jobs(jobs=[job])["jobs"][0]


def test_a_default_network_can_be_missing():
    with farcall.local.start(empty=True) as aws:
        account = Account(aws)
        ec2 = account.client("ec2")
        for subnet in account.subnets:
            ec2.delete_subnet(SubnetId=subnet)
        ec2.delete_vpc(VpcId=account.vpc)
        assert ec2.describe_vpcs()["Vpcs"] == []


def test_the_end_of_the_aws_ends_the_work_on_a_stack():
    with farcall.local.start(empty=True) as aws:
        account = Account(aws)
        account.create()
    assert not aws.running


# Permissions ----------------------------------------------------------------------------------


ACTIONS = [
    "batch:*",
    "cloudformation:*",
    "ec2:*",
    "iam:*",
    "logs:*",
    "s3:*",
]


@pytest.fixture(scope="module")
def enforced():
    with farcall.local.start(empty=True, cpus=4, enforce_iam=True) as aws:
        yield Account(aws)


@pytest.fixture
def deployer(enforced):
    """A user who may do everything, and what takes an action away."""
    iam = enforced.client("iam")
    iam.create_user(UserName="deployer")
    key = iam.create_access_key(UserName="deployer")["AccessKey"]
    keys = {
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }

    def deny(*actions):
        allow = {"Effect": "Allow", "Action": ACTIONS, "Resource": "*"}
        denied = [{"Effect": "Deny", "Action": list(actions), "Resource": "*"}] if actions else []
        document = json.dumps({"Version": "2012-10-17", "Statement": [allow, *denied]})
        iam.put_user_policy(UserName="deployer", PolicyName="all", PolicyDocument=document)

    deny()
    yield enforced.client("cloudformation", keys), deny
    for each in enforced.cloudformation.describe_stacks()["Stacks"]:
        enforced.delete(each["StackId"])
    iam.delete_user_policy(UserName="deployer", PolicyName="all")
    iam.delete_access_key(UserName="deployer", AccessKeyId=key["AccessKeyId"])
    iam.delete_user(UserName="deployer")


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("batch:CreateComputeEnvironment", "Environment"),
        ("batch:CreateJobQueue", "Queue"),
        ("ec2:CreateSecurityGroup", "SecurityGroup"),
        ("iam:AttachRolePolicy", "JobRole"),
        ("iam:PassRole", "InstanceProfile"),
        ("iam:PutRolePolicy", "JobRole"),
        ("logs:CreateLogGroup", "LogGroup"),
        ("s3:PutBucketPublicAccessBlock", "Bucket"),
        ("s3:PutEncryptionConfiguration", "Bucket"),
        ("s3:PutLifecycleConfiguration", "Bucket"),
    ],
)
def test_a_stack_is_made_with_its_callers_permissions(enforced, deployer, action, resource):
    cloudformation, deny = deployer
    deny(action)
    stack = enforced.create(client=cloudformation)
    assert enforced.settled(stack)["StackStatus"] == "ROLLBACK_COMPLETE"
    failed = next(each for each in enforced.events(stack) if each[1] == "CREATE_FAILED")
    assert failed[0] == resource
    assert f"is not authorized to perform: {action}" in failed[2]
    assert "HandlerErrorCode: AccessDenied" in failed[2]
    assert enforced.aws.resources() == {"stacks": ["tried"], "users": ["deployer"]}


def test_batchs_own_role_is_made_with_the_first_environment():
    with farcall.local.start(empty=True, enforce_iam=True) as aws:
        account = Account(aws)
        assert account.client("iam").list_roles()["Roles"] == []
        stack = account.create()
        account.settled(stack)
        roles = account.client("iam").list_roles()["Roles"]
        assert "AWSServiceRoleForBatch" in [each["RoleName"] for each in roles]


def test_a_service_role_of_cloudformations_takes_the_callers_place(enforced, deployer):
    cloudformation, deny = deployer
    iam = enforced.client("iam")
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "cloudformation.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    allow = {"Effect": "Allow", "Action": ACTIONS, "Resource": "*"}
    document = {"Version": "2012-10-17", "Statement": [allow]}
    made = iam.create_role(RoleName="maker", AssumeRolePolicyDocument=json.dumps(trust))
    iam.put_role_policy(RoleName="maker", PolicyName="all", PolicyDocument=json.dumps(document))
    request = {**enforced.request(), "RoleARN": made["Role"]["Arn"]}
    deny("s3:*", "batch:*", "ec2:*", "logs:*")
    stack = cloudformation.create_stack(**request)["StackId"]
    assert enforced.settled(stack)["StackStatus"] == "CREATE_COMPLETE"
    cloudformation.delete_stack(StackName=stack)
    assert enforced.settled(stack)["StackStatus"] == "DELETE_COMPLETE"
    deny("iam:PassRole")
    with pytest.raises(ClientError, match="iam:PassRole"):
        cloudformation.create_stack(**request)
    iam.update_assume_role_policy(
        RoleName="maker", PolicyDocument=json.dumps(trust).replace("cloudformation", "lambda")
    )
    with pytest.raises(ClientError, match="is invalid or cannot be assumed"):
        enforced.cloudformation.create_stack(**request)
    iam.delete_role_policy(RoleName="maker", PolicyName="all")
    iam.delete_role(RoleName="maker")


def test_a_job_acts_with_the_role_that_the_stack_made(enforced, deployer):
    """And with no other rights: the role may get objects of the stack's bucket, and put none."""
    stack = enforced.create()
    found = enforced.settled(stack)["Outputs"]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in found}
    s3, batch = enforced.client("s3"), enforced.client("batch")
    s3.put_object(Bucket=outputs["Bucket"], Key="tried/value", Body=b"a value")
    script = (
        "import boto3, botocore\n"
        "s3, place = boto3.client('s3'), {'Bucket': 'BUCKET', 'Key': 'tried/value'}\n"
        "print(s3.get_object(**place)['Body'].read().decode())\n"
        "try: s3.put_object(**place, Body=b'another')\n"
        "except botocore.exceptions.ClientError as error: print(error)\n"
    ).replace("BUCKET", outputs["Bucket"])
    job = submitted(batch, f'{sys.executable} -c "{script}"', jobRoleArn=outputs["JobRole"])
    until(lambda: described(batch, job)["status"] in ("SUCCEEDED", "FAILED"))
    detail = described(batch, job)
    assert detail["status"] == "SUCCEEDED", detail
    events = enforced.client("logs").get_log_events(
        logGroupName="/aws/batch/job",
        logStreamName=detail["container"]["logStreamName"],
        startFromHead=True,
    )["events"]
    lines = [each["message"] for each in events]
    assert lines[0] == "a value"
    assert "is not authorized to perform: s3:PutObject" in lines[1]
    s3.delete_object(Bucket=outputs["Bucket"], Key="tried/value")
    batch.deregister_job_definition(jobDefinition="tried:1")
