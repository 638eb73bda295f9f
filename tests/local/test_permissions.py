"""Signatures and permissions of the embedded AWS, where they are enforced."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from botocore.exceptions import ClientError

import farcall.local
from tests.support.iam import EXECUTION_ROLE, JOB_ROLE, VALUES, Enforced, policy
from tests.support.patience import until

BUCKET = VALUES["BUCKET"]
CONTAINER = {
    "image": "any",
    "command": ["sh", "-c", "echo $AWS_ACCESS_KEY_ID; echo token=$AWS_SESSION_TOKEN"],
    "resourceRequirements": [
        {"type": "VCPU", "value": "1"},
        {"type": "MEMORY", "value": "128"},
    ],
}


@pytest.fixture(scope="module")
def account():
    with farcall.local.start(enforce_iam=True) as aws:
        yield Enforced(aws)


@pytest.fixture
def enforced(account):
    account.restore()
    return account


#: A call of each service, and the codes of three refusals: no permission, no such key, bad secret.
CALLS = [
    (
        "batch",
        "create_job_queue",
        {"jobQueueName": "mine", "priority": 1, "computeEnvironmentOrder": []},
        ("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException"),
    ),
    (
        "s3",
        "put_object",
        {"Bucket": BUCKET, "Key": "a b/ü+?.txt", "Body": b"x"},
        ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
    ),
    (
        "logs",
        "delete_log_group",
        {"logGroupName": VALUES["LOG-GROUP"]},
        ("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException"),
    ),
    (
        "iam",
        "delete_role",
        {"RoleName": JOB_ROLE},
        ("AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch"),
    ),
    (
        "sts",
        "assume_role",
        {"RoleArn": f"arn:aws:iam::{VALUES['ACCOUNT']}:role/{JOB_ROLE}", "RoleSessionName": "me"},
        ("AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch"),
    ),
]


@pytest.mark.parametrize(
    ("service", "operation", "request_", "codes"), CALLS, ids=lambda v: str(v)
)
def test_each_service_refuses_in_its_own_words(enforced, service, operation, request_, codes):
    keys = enforced.keys
    bad = (
        keys,
        {**keys, "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE"},
        {**keys, "AWS_SECRET_ACCESS_KEY": "guessed"},
    )
    for wrong, code in zip(bad, codes, strict=True):
        with pytest.raises(ClientError) as caught:
            getattr(enforced.client(service, wrong), operation)(**request_)
        assert caught.value.response["Error"]["Code"] == code
    if service == "s3":
        getattr(enforced.root(service), operation)(**request_)


def test_what_is_allowed_is_done_with_any_characters_in_the_key(enforced):
    everything = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    enforced.set_policy("client", {"Version": "2012-10-17", "Statement": [everything]})
    s3 = enforced.client("s3", enforced.keys)
    key = "a b/ü+?&=%/x.txt"
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"data")
    s3.copy_object(Bucket=BUCKET, Key="copy", CopySource={"Bucket": BUCKET, "Key": key})
    assert s3.get_object(Bucket=BUCKET, Key="copy")["Body"].read() == b"data"
    found = s3.list_objects_v2(Bucket=BUCKET, Prefix="a b/ü+?&", Delimiter="/")
    assert found["CommonPrefixes"] == [{"Prefix": "a b/ü+?&=%/"}]
    doomed = [{"Key": key}, {"Key": "copy"}]
    assert len(s3.delete_objects(Bucket=BUCKET, Delete={"Objects": doomed})["Deleted"]) == 2


def test_without_a_signature_nothing_is_answered(enforced):
    for path in ("/v1/describejobs", f"/{BUCKET}/key"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{enforced.aws.endpoint_url}{path}")


def test_nobody_is_denied_to_ask_who_they_are(enforced):
    everything = {"Effect": "Deny", "Action": "*", "Resource": "*"}
    enforced.set_policy("client", {"Version": "2012-10-17", "Statement": [everything]})
    sts = enforced.client("sts", enforced.keys)
    assert sts.get_caller_identity()["Arn"].endswith(":user/researcher")


def test_who_may_not_list_does_not_learn_that_an_object_is_missing(enforced):
    s3 = enforced.client("s3", enforced.keys)
    inside = {"Bucket": BUCKET, "Key": "farcall/v1/run/outcomes/b/0"}
    with pytest.raises(ClientError, match="NoSuchKey"):
        s3.get_object(**inside)
    with pytest.raises(ClientError, match="404"):
        s3.head_object(**inside)
    enforced.take_away("client", "s3:ListBucket")
    with pytest.raises(ClientError, match=r"AccessDenied.*s3:ListBucket"):
        s3.get_object(**inside)
    with pytest.raises(ClientError, match="403"):
        s3.head_object(**inside)


def test_one_key_that_may_not_be_deleted_spares_them_all(enforced):
    root, s3 = enforced.root("s3"), enforced.client("s3", enforced.keys)
    keys = ["farcall/v1/run/outcomes/b/0", "farcall/v1/run/elsewhere/b/0"]
    for key in keys:
        root.put_object(Bucket=BUCKET, Key=key, Body=b"x")
    delete = {"Objects": [{"Key": key} for key in keys]}
    reply = s3.delete_objects(Bucket=BUCKET, Delete=delete)
    assert [error["Code"] for error in reply["Errors"]] == ["AccessDenied"] * 2
    assert root.get_object(Bucket=BUCKET, Key=keys[0])["Body"].read() == b"x"


def test_tags_need_a_permission_of_their_own(enforced):
    batch = enforced.client("batch", enforced.keys)
    definition = {
        "jobDefinitionName": "farcall-tags",
        "type": "container",
        "containerProperties": CONTAINER,
    }
    batch.register_job_definition(**definition)
    job = {"jobName": "any", "jobQueue": VALUES["QUEUE"], "jobDefinition": "farcall-tags"}
    batch.submit_job(**job)
    for call, request in (
        (batch.register_job_definition, definition),
        (batch.submit_job, job),
    ):
        with pytest.raises(ClientError, match="batch:TagResource"):
            call(**request, tags={"owner": "me"})


@pytest.mark.parametrize("kind", ["container", "multinode"])
@pytest.mark.parametrize("service", ["ecs-tasks.amazonaws.com", "lambda.amazonaws.com"])
def test_the_condition_on_who_gets_the_roles_is_enforced(enforced, service, kind):
    document = policy("client")
    for statement in document["Statement"]:
        if statement["Sid"] == "GiveJobsTheirRoles":
            statement["Condition"]["StringEquals"]["iam:PassedToService"] = service
    enforced.set_policy("client", document)

    def register():
        role = f"arn:aws:iam::{VALUES['ACCOUNT']}:role/{JOB_ROLE}"
        container = {**CONTAINER, "jobRoleArn": role}
        groups = [
            {"targetNodes": "0", "container": CONTAINER},
            {"targetNodes": "1:", "container": container},
        ]
        nodes = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": groups}
        properties = {
            "container": {"containerProperties": container},
            "multinode": {"nodeProperties": nodes},
        }
        enforced.client("batch", enforced.keys).register_job_definition(
            jobDefinitionName="farcall-roles", type=kind, **properties[kind]
        )

    if service.startswith("ecs-tasks"):
        register()
        return
    with pytest.raises(ClientError, match="iam:PassRole"):
        register()


def test_a_policy_that_cannot_be_evaluated_allows_nothing(enforced):
    condition = {"DateLessThan": {"aws:CurrentTime": "2100-01-01T00:00:00Z"}}
    statement = {"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": condition}
    enforced.set_policy("client", {"Version": "2012-10-17", "Statement": [statement]})
    with pytest.raises(ClientError, match="does not evaluate the condition key aws:Curr"):
        enforced.client("batch", enforced.keys).describe_jobs(jobs=["any"])


def test_policies_of_groups_and_managed_policies_count(enforced):
    iam = enforced.iam
    nothing = {"Effect": "Allow", "Action": "s3:ListAllMyBuckets", "Resource": "*"}
    enforced.set_policy("client", {"Version": "2012-10-17", "Statement": [nothing]})
    s3 = enforced.client("s3", enforced.keys)
    assert s3.list_buckets()["Buckets"]

    reading = {"Effect": "Allow", "Action": "batch:DescribeJobs", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [reading]})
    arn = iam.create_policy(PolicyName="reading", PolicyDocument=document)["Policy"]["Arn"]
    batch = enforced.client("batch", enforced.keys)
    with pytest.raises(ClientError, match="DescribeJobs"):
        batch.describe_jobs(jobs=["any"])
    iam.attach_user_policy(UserName="researcher", PolicyArn=arn)
    assert batch.describe_jobs(jobs=["any"])["jobs"] == []
    iam.detach_user_policy(UserName="researcher", PolicyArn=arn)

    iam.create_group(GroupName="lab")
    iam.put_group_policy(GroupName="lab", PolicyName="reading", PolicyDocument=document)
    iam.add_user_to_group(GroupName="lab", UserName="researcher")
    assert batch.describe_jobs(jobs=["any"])["jobs"] == []
    iam.remove_user_from_group(GroupName="lab", UserName="researcher")


@pytest.mark.parametrize("role", [JOB_ROLE, None])
def test_a_job_has_its_roles_keys_or_none(enforced, role):
    """Never the root user's, which the server's environment has."""
    batch = enforced.root("batch")
    container = dict(CONTAINER)
    if role:
        container["jobRoleArn"] = f"arn:aws:iam::{VALUES['ACCOUNT']}:role/{role}"
    name = f"keys-of-{role}"
    batch.register_job_definition(
        jobDefinitionName=name, type="container", containerProperties=container
    )
    job = batch.submit_job(jobName="keys", jobQueue=VALUES["QUEUE"], jobDefinition=name)["jobId"]
    detail = _reached(batch, job, "SUCCEEDED")
    events = enforced.root("logs").get_log_events(
        logGroupName="/aws/batch/job",
        logStreamName=detail["container"]["logStreamName"],
        startFromHead=True,
    )["events"]
    lines = [event["message"] for event in events]
    if role:
        assert lines[0].startswith("ASIA")
        assert len(lines[1]) > len("token=")
    else:
        assert lines == ["token="]


def test_only_roles_that_trust_ecs_can_be_given_to_jobs(enforced):
    """docs/iam/trust.json is the trust policy of both roles here; this takes it away."""
    iam, batch = enforced.iam, enforced.root("batch")
    lambdas = policy("trust")
    lambdas["Statement"][0]["Principal"] = {"Service": "lambda.amazonaws.com"}
    iam.update_assume_role_policy(RoleName=EXECUTION_ROLE, PolicyDocument=json.dumps(lambdas))
    arn = f"arn:aws:iam::{VALUES['ACCOUNT']}:role/{EXECUTION_ROLE}"
    batch.register_job_definition(
        jobDefinitionName="untrusting",
        type="container",
        containerProperties={**CONTAINER, "executionRoleArn": arn},
    )
    request = {"jobName": "any", "jobQueue": VALUES["QUEUE"], "jobDefinition": "untrusting"}
    job = batch.submit_job(**request)["jobId"]
    detail = _reached(batch, job, "FAILED")
    assert "unable to assume the role" in detail["statusReason"]


def _reached(batch, job_id, status):
    """Wait for a job's status; return the job."""

    def look():
        (job,) = batch.describe_jobs(jobs=[job_id])["jobs"]
        return job if job["status"] == status else None

    return until(look)
