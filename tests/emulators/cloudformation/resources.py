"""Resource types of the emulated CloudFormation, which are those of the farcall template.

CloudFormation makes resources through the services' own API, with the permissions of the caller
of CreateStack. So does this one, so that tests see which permissions a deployer needs.

Source:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-template-resource-type-ref.html
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from botocore import xform_name
from botocore.config import Config
from botocore.model import ListShape, MapShape, Shape, StructureShape
from botocore.session import Session

from farcall_local import names
from farcall_local.services.signatures import AccessKey

#: Members of Batch's API that the pinned botocore does not know.
_MODELS = Path(__file__).parent / "models"
_POLL_S = 0.05
_PATIENCE_S = 300.0


@dataclass
class Resource:
    """A resource of a stack.

    Attributes:
        logical_id: Its name in the template.
        is_retained: Whether it outlives the stack.
        physical_id: Value of Ref; empty before it exists.
        attributes: Values of GetAtt.
        status: Status of its latest event.
    """

    logical_id: str
    type: str
    properties: dict[str, Any]
    is_retained: bool
    physical_id: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    status: str = ""

    def new_name(self, stack: str) -> str:
        """Return a unique name."""
        return f"{stack}-{self.logical_id}-{secrets.token_hex(6)}"


class Account:
    """API calls with one access key, for one thread.

    Args:
        endpoint_url: URL of the local AWS emulator.
        key: Signs the calls.
        stack: The stack's name.
        tags: The stack's tags, which its resources receive.
    """

    def __init__(
        self, endpoint_url: str, key: AccessKey, stack: str, tags: dict[str, str]
    ) -> None:
        self.stack = stack
        self.tags = tags
        session = Session()
        for name in ("config_file", "credentials_file"):
            session.set_config_variable(name, "")  # ignore the user's own files
        session.set_config_variable("data_path", str(_MODELS))
        session.set_credentials(*key)
        config = Config(
            proxies={},
            retries={"mode": "standard", "total_max_attempts": 8},
            s3={"addressing_style": "path"},
        )
        self._clients = {
            service: session.create_client(
                service, endpoint_url=endpoint_url, region_name=names.REGION, config=config
            )
            for service in ("batch", "ec2", "iam", "logs", "s3")
        }

    @property
    def tag_pairs(self) -> list[dict[str, str]]:
        """The stack's tags in the format of most services."""
        return [{"Key": key, "Value": value} for key, value in self.tags.items()]

    def call(self, service: str, operation: str, **properties: Any) -> dict[str, Any]:
        """Call an operation.

        Args:
            service: botocore's name, such as ``ec2``.
            operation: Such as ``CreateLaunchTemplate``.
            **properties: Input as in a template: names in any case, numbers as text, policies as
                objects. Names that the operation does not know are dropped.
        """
        client = self._clients[service]
        shape = client.meta.service_model.operation_model(operation).input_shape
        reply: dict[str, Any] = getattr(client, xform_name(operation))(**_fit(shape, properties))
        return reply


def _fit(shape: Shape, value: Any) -> Any:
    """Return a value of a template as a shape of botocore's models describes it."""
    if isinstance(shape, StructureShape):
        members = {name.lower(): name for name in shape.members}
        return {
            members[key.lower()]: _fit(shape.members[members[key.lower()]], each)
            for key, each in value.items()
            if key.lower() in members
        }
    if isinstance(shape, ListShape):
        return [_fit(shape.member, each) for each in value]
    if isinstance(shape, MapShape):
        return {key: _fit(shape.value, each) for key, each in value.items()}
    if isinstance(value, dict):
        return json.dumps(value)
    return int(value) if shape.type_name == "integer" else value


def _create_bucket(account: Account, bucket: Resource) -> None:
    name = bucket.new_name(account.stack).lower()
    account.call("s3", "CreateBucket", Bucket=name)
    bucket.physical_id = name
    given = bucket.properties
    rules = given["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    defaults = [
        {"ApplyServerSideEncryptionByDefault": each["ServerSideEncryptionByDefault"]}
        for each in rules
    ]
    encryption = {"ServerSideEncryptionConfiguration": {"Rules": defaults}}
    account.call("s3", "PutBucketEncryption", Bucket=name, **encryption)
    account.call("s3", "PutPublicAccessBlock", Bucket=name, **given)
    account.call("s3", "PutBucketOwnershipControls", Bucket=name, **given)
    _update_bucket(account, bucket, given)


def _update_bucket(account: Account, bucket: Resource, new: dict[str, Any]) -> None:
    rules = []
    for given in new["LifecycleConfiguration"]["Rules"]:
        rule = {key: each for key, each in given.items() if key != "Prefix"}
        rule["Filter"] = {"Prefix": given.get("Prefix", "")}
        if "ExpirationInDays" in given:
            rule["Expiration"] = {"Days": given["ExpirationInDays"]}
        rules.append(rule)
    name = bucket.physical_id
    lifecycle = {"LifecycleConfiguration": {"Rules": rules}}
    account.call("s3", "PutBucketLifecycleConfiguration", Bucket=name, **lifecycle)
    tagging = {"TagSet": [*account.tag_pairs, *new["Tags"]]}
    account.call("s3", "PutBucketTagging", Bucket=name, Tagging=tagging)


def _create_bucket_policy(account: Account, policy: Resource) -> None:
    name, document = policy.properties["Bucket"], policy.properties["PolicyDocument"]
    account.call("s3", "PutBucketPolicy", Bucket=name, Policy=document)
    policy.physical_id = name


def _create_log_group(account: Account, group: Resource) -> None:
    account.call("logs", "CreateLogGroup", **group.properties)
    group.physical_id = group.properties["LogGroupName"]
    account.call("logs", "PutRetentionPolicy", **group.properties)


def _create_role(account: Account, role: Resource) -> None:
    name, given = role.new_name(account.stack), role.properties
    made = account.call("iam", "CreateRole", RoleName=name, Tags=account.tag_pairs, **given)
    role.physical_id = name
    role.attributes = {"Arn": made["Role"]["Arn"]}
    _update_role(account, role, given)
    for arn in given.get("ManagedPolicyArns", []):
        account.call("iam", "AttachRolePolicy", RoleName=name, PolicyArn=arn)


def _update_role(account: Account, role: Resource, new: dict[str, Any]) -> None:
    for policy in new.get("Policies", []):
        account.call("iam", "PutRolePolicy", RoleName=role.physical_id, **policy)
    account.call("iam", "TagRole", RoleName=role.physical_id, Tags=account.tag_pairs)


def _delete_role(account: Account, role: Resource) -> None:
    name = role.physical_id
    for policy in account.call("iam", "ListRolePolicies", RoleName=name)["PolicyNames"]:
        account.call("iam", "DeleteRolePolicy", RoleName=name, PolicyName=policy)
    attached = account.call("iam", "ListAttachedRolePolicies", RoleName=name)
    for policy in attached["AttachedPolicies"]:
        account.call("iam", "DetachRolePolicy", RoleName=name, **policy)
    account.call("iam", "DeleteRole", RoleName=name)


def _create_instance_profile(account: Account, profile: Resource) -> None:
    name = {"InstanceProfileName": profile.new_name(account.stack)}
    made = account.call("iam", "CreateInstanceProfile", **name)
    profile.physical_id = name["InstanceProfileName"]
    profile.attributes = {"Arn": made["InstanceProfile"]["Arn"]}
    [role] = profile.properties["Roles"]
    account.call("iam", "AddRoleToInstanceProfile", RoleName=role, **name)


def _delete_instance_profile(account: Account, profile: Resource) -> None:
    name, [role] = {"InstanceProfileName": profile.physical_id}, profile.properties["Roles"]
    account.call("iam", "RemoveRoleFromInstanceProfile", RoleName=role, **name)
    account.call("iam", "DeleteInstanceProfile", **name)


def _create_security_group(account: Account, group: Resource) -> None:
    name, given = group.new_name(account.stack), group.properties
    description = given["GroupDescription"]
    made = account.call(
        "ec2", "CreateSecurityGroup", GroupName=name, Description=description, **given
    )
    identity = group.physical_id = made["GroupId"]
    described = account.call("ec2", "DescribeSecurityGroups", GroupIds=[identity])
    default = described["SecurityGroups"][0]["IpPermissionsEgress"]
    account.call("ec2", "RevokeSecurityGroupEgress", GroupId=identity, IpPermissions=default)
    allowed = [{**rule, "IpRanges": [rule]} for rule in given["SecurityGroupEgress"]]
    account.call("ec2", "AuthorizeSecurityGroupEgress", GroupId=identity, IpPermissions=allowed)


def _create_launch_template(account: Account, template: Resource) -> None:
    name = template.new_name(account.stack)
    data = template.properties
    made = account.call("ec2", "CreateLaunchTemplate", LaunchTemplateName=name, **data)
    template.physical_id = made["LaunchTemplate"]["LaunchTemplateId"]
    number = made["LaunchTemplate"]["LatestVersionNumber"]
    template.attributes = {"LatestVersionNumber": str(number)}


def _create_in_batch(account: Account, resource: Resource) -> None:
    noun = _noun(resource)
    name = f"{resource.logical_id}-{secrets.token_hex(8)}"
    document = {f"{noun}Name": name, **resource.properties}
    tags = {**account.tags, **resource.properties.get("Tags", {})}
    if tags:
        document["Tags"] = tags
    made = account.call("batch", f"Create{noun}", **document)
    resource.physical_id = made[f"{noun[0].lower()}{noun[1:]}Arn"]
    _wait_in_batch(account, resource, "VALID")


def _update_in_batch(account: Account, resource: Resource, new: dict[str, Any]) -> None:
    noun = _noun(resource)
    account.call("batch", f"Update{noun}", **{**new, noun: resource.physical_id})
    _wait_in_batch(account, resource, "VALID")


def _delete_in_batch(account: Account, resource: Resource) -> None:
    noun = _noun(resource)
    _update_in_batch(account, resource, {"State": "DISABLED"})
    account.call("batch", f"Delete{noun}", **{noun: resource.physical_id})
    _wait_in_batch(account, resource, "DELETED")


def _wait_in_batch(account: Account, resource: Resource, status: str) -> None:
    """Wait for the status of a queue or compute environment."""
    nouns = f"{_noun(resource)}s"
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        reply = account.call("batch", f"Describe{nouns}", **{nouns: [resource.physical_id]})
        found = reply[f"{nouns[0].lower()}{nouns[1:]}"]
        if (found[0]["status"] if found else "DELETED") == status:
            return
        time.sleep(_POLL_S)
    raise TimeoutError(f"{resource.physical_id} is not {status} after {_PATIENCE_S:.0f} s")


def _noun(resource: Resource) -> str:
    return resource.type.rpartition("::")[2]


def _deletion(
    service: str, operation: str, parameter: str
) -> Callable[[Account, Resource], object]:
    """Return a function that deletes a resource with one call."""
    return lambda account, resource: account.call(
        service, operation, **{parameter: resource.physical_id}
    )


def _keep(account: Account, resource: Resource, new: dict[str, Any]) -> None:
    if new != resource.properties:
        raise NotImplementedError(f"the emulated CloudFormation cannot change {resource.type}")


class Kind(NamedTuple):
    """Functions that make, delete and change resources of a type.

    `create` sets the physical ID as soon as there is something to delete; `update` receives the
    new properties.
    """

    create: Callable[[Account, Resource], None]
    delete: Callable[[Account, Resource], object]
    update: Callable[[Account, Resource, dict[str, Any]], None] = _keep


KINDS = {
    "AWS::S3::Bucket": Kind(
        _create_bucket, _deletion("s3", "DeleteBucket", "Bucket"), _update_bucket
    ),
    "AWS::S3::BucketPolicy": Kind(
        _create_bucket_policy, _deletion("s3", "DeleteBucketPolicy", "Bucket")
    ),
    "AWS::Logs::LogGroup": Kind(
        _create_log_group, _deletion("logs", "DeleteLogGroup", "LogGroupName")
    ),
    "AWS::IAM::Role": Kind(_create_role, _delete_role, _update_role),
    "AWS::IAM::InstanceProfile": Kind(_create_instance_profile, _delete_instance_profile),
    "AWS::EC2::SecurityGroup": Kind(
        _create_security_group, _deletion("ec2", "DeleteSecurityGroup", "GroupId")
    ),
    "AWS::EC2::LaunchTemplate": Kind(
        _create_launch_template, _deletion("ec2", "DeleteLaunchTemplate", "LaunchTemplateId")
    ),
    "AWS::Batch::ComputeEnvironment": Kind(_create_in_batch, _delete_in_batch, _update_in_batch),
    "AWS::Batch::JobQueue": Kind(_create_in_batch, _delete_in_batch, _update_in_batch),
}
