"""Permissions that a request requires: actions, resources and condition keys.

Requests that farcall does not send are mapped by their names, with the resource ``*``, so that a
policy with specific resources denies them.

Sources:
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsbatch.html
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazoncloudwatchlogs.html
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonelasticcontainerregistry.html
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_awscloudformation.html
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree as ET

from moto.core.utils import get_service_model
from moto.s3.responses import ACTION_MAP

from farcall_local import names
from tests.emulators.iam.policies import Need

ECS_TASKS = "ecs-tasks.amazonaws.com"
BATCH = "batch.amazonaws.com"
EC2 = "ec2.amazonaws.com"

#: Names by the last part of the path. The pinned botocore does not know the bulk operations.
_BATCH_OPERATIONS = {
    name.lower(): name
    for name in (*get_service_model("batch").operation_names, "CancelJobs", "TerminateJobs")
}


@dataclass(frozen=True)
class Call:
    """A request as its signature covers it.

    Attributes:
        service: Service in the credential scope; empty if the request is unsigned.
        method: HTTP method.
        uri: Raw path and query.
        headers: Headers with their usual names, such as ``X-Amz-Date``.
        body: Empty for an upload to S3, whose signature covers its digest instead.
    """

    service: str
    method: str
    uri: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The path, decoded."""
        return unquote(self.uri.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters, the first value of each."""
        found = parse_qs(self.uri.partition("?")[2], keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    @property
    def form(self) -> dict[str, str]:
        """The parameters of a request in AWS's query protocol."""
        found = parse_qs(self.body.decode(errors="replace"))
        return {name: values[0] for name, values in found.items()}

    def document(self) -> dict[str, Any]:
        """Return the JSON object in the body; empty if the body is not a JSON object."""
        try:
            found = json.loads(self.body or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def needs(call: Call) -> list[Need]:
    """Return all permissions that a request requires."""
    mapping = _MAPPINGS.get(call.service)
    return mapping(call) if mapping else [Need(f"{call.service}:{_operation(call)}")]


# --- S3 -----------------------------------------------------------------------------------------


def listing(call: Call) -> Need | None:
    """Return the permission that S3 requires for a 404 response; None for other requests.

    Without permission to list, S3 returns 403 instead of 404. The key is used as the prefix.

    Sources:
        https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html
        https://github.com/ceph/ceph/pull/68577
    """
    bucket, key = _place(call.path)
    if call.service != "s3" or call.method not in ("GET", "HEAD") or not key:
        return None
    return Need("s3:ListBucket", _s3_arn(bucket), {"s3:prefix": key})


def _deleted_keys(call: Call) -> list[str]:
    """Return the keys in a DeleteObjects request; empty for other requests."""
    _, key = _place(call.path)
    if call.service != "s3" or call.method != "POST" or key or "delete" not in call.query:
        return []
    try:
        root = ET.fromstring(call.body)
    except ET.ParseError:
        return []
    return [node.text or "" for node in root.iterfind("{*}Object/{*}Key")]


#: Actions that moto lacks, without Get or Put; a deletion requires Put, too.
_BUCKET_SETTINGS = {
    "encryption": "EncryptionConfiguration",
    "ownershipControls": "BucketOwnershipControls",
    "publicAccessBlock": "BucketPublicAccessBlock",
}


def _s3(call: Call) -> list[Need]:
    bucket, key = _place(call.path)
    if not bucket:
        return [Need("s3:ListAllMyBuckets")]
    if deleted := _deleted_keys(call):
        return [Need("s3:DeleteObject", _s3_arn(bucket, key)) for key in deleted]
    query = call.query
    actions = ACTION_MAP["KEY" if key else "BUCKET"].get(call.method, {})
    name = next((actions[word] for word in query if word in actions), actions.get("DEFAULT"))
    if name == "HeadBucket":
        name = "ListBucket"
    settings = [_BUCKET_SETTINGS[word] for word in query if word in _BUCKET_SETTINGS]
    if settings and not key:
        name = f"{'Get' if call.method == 'GET' else 'Put'}{settings[0]}"
    context = {"s3:prefix": query["prefix"]} if "prefix" in query and not key else {}
    return [Need(f"s3:{name}", _s3_arn(bucket, key), context)]


def _place(path: str) -> tuple[str, str]:
    bucket, _, key = path.removeprefix("/").partition("/")
    return bucket, key


def _s3_arn(bucket: str, key: str = "") -> str:
    return f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}"


# --- CloudFormation and EC2 ---------------------------------------------------------------------


def _cloudformation(call: Call) -> list[Need]:
    name = call.form["StackName"]
    if not name.startswith("arn:"):
        name = f"arn:aws:cloudformation:{names.REGION}:{names.ACCOUNT_ID}:stack/{name}/*"
    return [Need(f"cloudformation:{_operation(call)}", name)]


def _ec2(call: Call) -> list[Need]:
    form, name = call.form, _operation(call)
    if name.startswith("Describe"):
        return [Need(f"ec2:{name}")]
    for word, kind, identity in _EC2_KINDS:
        if word in name:
            arns = [_ec2_arn(kind, form.get(identity, "*"))]
            break
    else:
        arns = ["*"]
    if name == "CreateSecurityGroup" and "VpcId" in form:
        arns.append(_ec2_arn("vpc", form["VpcId"]))
    return [Need(f"ec2:{name}", arn) for arn in arns]


#: Part of an operation's name, the resource type, and the parameter with the resource's ID.
_EC2_KINDS = (
    ("SecurityGroup", "security-group", "GroupId"),
    ("LaunchTemplate", "launch-template", "LaunchTemplateId"),
)


def _ec2_arn(kind: str, identity: str) -> str:
    return f"arn:aws:ec2:{names.REGION}:{names.ACCOUNT_ID}:{kind}/{identity}"


def _ecr(call: Call) -> list[Need]:
    document, action = call.document(), f"ecr:{_operation(call)}"
    named = document.get("repositoryNames") or [document.get("repositoryName")]
    place = f"arn:aws:ecr:{names.REGION}:{names.ACCOUNT_ID}:repository"
    return [Need(action, f"{place}/{name}") if name else Need(action) for name in named]


# --- Logs, IAM, STS -----------------------------------------------------------------------------


def log_arn(group: str, stream: str = "") -> str:
    """Return the ARN of a log stream, or of a log group in the format of policies."""
    arn = f"arn:aws:logs:{names.REGION}:{names.ACCOUNT_ID}:log-group:{group}"
    return f"{arn}:log-stream:{stream}"


def _logs(call: Call) -> list[Need]:
    document = call.document()
    action = f"logs:{_operation(call)}"
    if "logGroupName" not in document:
        return [Need(action)]
    return [Need(action, log_arn(document["logGroupName"], document.get("logStreamName", "")))]


def _iam(call: Call) -> list[Need]:
    form, name = call.form, _operation(call)
    for kind, parameter in _IAM_KINDS:
        if parameter in form:
            found = [Need(f"iam:{name}", _iam_arn(kind, form[parameter]))]
            break
    else:
        found = [Need(f"iam:{name}")]
    if name == "AddRoleToInstanceProfile":
        role = _iam_arn("role", form.get("RoleName", ""))
        found.append(Need("iam:PassRole", role, {"iam:PassedToService": EC2}))
    if name == "CreateRole" and any(key.startswith("Tags.") for key in form):
        found.append(Need("iam:TagRole", found[0].resource))
    return found


#: IAM resource types and the parameters with their names; the first match is the main resource.
_IAM_KINDS = (
    ("instance-profile", "InstanceProfileName"),
    ("role", "RoleName"),
    ("user", "UserName"),
)


def _iam_arn(kind: str, name: str) -> str:
    return f"arn:aws:iam::{names.ACCOUNT_ID}:{kind}/{name}"


#: Batch's service-linked role, which it uses if an environment has no other role.
BATCH_ROLE = _iam_arn("role", f"aws-service-role/{BATCH}/AWSServiceRoleForBatch")


def _sts(call: Call) -> list[Need]:
    if _operation(call) == "GetCallerIdentity":
        return []  # cannot be denied
    return [Need(f"sts:{_operation(call)}", call.form.get("RoleArn", "*"))]


def _operation(call: Call) -> str:
    target = call.headers.get("X-Amz-Target", "")
    return target.rpartition(".")[2] or call.form.get("Action", "")


# --- Batch --------------------------------------------------------------------------------------


def _batch(call: Call) -> list[Need]:
    document = call.document()
    kind = call.path.removeprefix("/v1/")
    name = _BATCH_OPERATIONS.get(kind.lower(), kind)
    if name == "SubmitJob":
        return _submitting(document)
    if name == "RegisterJobDefinition":
        return _registering(document)
    if name in ("CancelJob", "TerminateJob"):
        jobs = [document.get("jobId")]
    elif name in ("CancelJobs", "TerminateJobs"):
        # The bulk operations use the actions of the single operations.
        name, jobs = name[:-1], document.get("jobs") or []
    elif name in _RESOURCES:
        return _changing(name, document)
    else:
        return [Need(f"batch:{name}")]
    return [Need(f"batch:{name}", _batch_arn("job", job)) for job in jobs]


#: Operation to its resource type and the parameter with the resource's name.
_RESOURCES = {
    "CreateComputeEnvironment": ("compute-environment", "computeEnvironmentName"),
    "CreateJobQueue": ("job-queue", "jobQueueName"),
    "DeleteComputeEnvironment": ("compute-environment", "computeEnvironment"),
    "DeleteJobQueue": ("job-queue", "jobQueue"),
    "DeregisterJobDefinition": ("job-definition", "jobDefinition"),
    "GetJobQueueSnapshot": ("job-queue", "jobQueue"),
    "UpdateComputeEnvironment": ("compute-environment", "computeEnvironment"),
    "UpdateJobQueue": ("job-queue", "jobQueue"),
}


def _changing(name: str, document: dict[str, Any]) -> list[Need]:
    """Return the permissions for an operation on a resource and the resources that it uses."""
    kind, parameter = _RESOURCES[name]
    arn = _batch_arn(kind, document.get(parameter))
    found = [Need(f"batch:{name}", arn)]
    for item in document.get("computeEnvironmentOrder") or []:
        used = _batch_arn("compute-environment", item.get("computeEnvironment"))
        found.append(Need(f"batch:{name}", used))
    if document.get("tags"):
        found.append(Need("batch:TagResource", arn))
    if name == "CreateComputeEnvironment" and document.get("type") == "MANAGED":
        found.append(
            Need("iam:CreateServiceLinkedRole", BATCH_ROLE, {"iam:AWSServiceName": BATCH})
        )
    return found


def _submitting(document: dict[str, Any]) -> list[Need]:
    arns = [
        _batch_arn("job-queue", document.get("jobQueue")),
        _batch_arn("job-definition", document.get("jobDefinition")),
        _batch_arn("job", "*"),  # the new job has no ID yet
    ]
    found = [Need("batch:SubmitJob", arn) for arn in arns]
    return found + ([Need("batch:TagResource", arns[2])] if document.get("tags") else [])


def _registering(document: dict[str, Any]) -> list[Need]:
    arn = _batch_arn("job-definition", document.get("jobDefinitionName"))
    found = [Need("batch:RegisterJobDefinition", arn)]
    if document.get("tags"):
        found.append(Need("batch:TagResource", arn))
    groups = (document.get("nodeProperties") or {}).get("nodeRangeProperties") or []
    containers = [
        document.get("containerProperties"),
        *(group.get("container") for group in groups),
    ]
    passed = {"iam:PassedToService": ECS_TASKS}
    roles = [
        container.get(name)
        for container in containers
        if container
        for name in ("jobRoleArn", "executionRoleArn")
    ]
    return found + [Need("iam:PassRole", role, passed) for role in roles if role]


def _batch_arn(kind: str, name: object) -> str:
    text = str(name or "")
    return text if text.startswith("arn:") else names.batch_arn(f"{kind}/{text}")


_MAPPINGS: dict[str, Callable[[Call], list[Need]]] = {
    "batch": _batch,
    "cloudformation": _cloudformation,
    "ec2": _ec2,
    "ecr": _ecr,
    "iam": _iam,
    "logs": _logs,
    "s3": _s3,
    "sts": _sts,
}
