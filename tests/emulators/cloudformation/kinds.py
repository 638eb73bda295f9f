"""The resource types of the emulated CloudFormation: from properties to API calls, and back.

They are those of farcall's own template. Each has the properties that are named here; a template
with any other is told so, because what was passed over would be missed later.

Sources:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-template-resource-type-ref.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-batch-computeenvironment.html
        Which properties need a replacement, and what ReplaceComputeEnvironment changes of that.
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-iam-role.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-s3-bucket.html
"""

from __future__ import annotations

import abc
import json
import secrets
import string
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from farcall_local import names
from tests.emulators.cloudformation.calls import Calls, RefusedPropertyError
from tests.emulators.cloudformation.stacks import Resource

#: Seconds between two looks at what takes its time.
LOOK_S = 0.05
#: Seconds until what Batch makes counts as stuck.
PATIENCE_S = 300.0


class Kind(abc.ABC):
    """A resource type.

    Attributes:
        type: Its name.
        properties: Those that it has here.
        replacing: Those that cannot be changed: another resource takes its place.
        named_by: The property with the resource's own name, where it can have one.
    """

    type: ClassVar[str]
    properties: ClassVar[frozenset[str]]
    replacing: ClassVar[frozenset[str]] = frozenset()
    named_by: ClassVar[str] = ""
    most_letters: ClassVar[int] = 128

    def name(self, stack: str, resource: Resource) -> str:
        """Return the name a resource is to have."""
        if resource.properties.get(self.named_by):
            return str(resource.properties[self.named_by])
        end = f"-{resource.logical_id}-{_random(12)}"
        return stack[: self.most_letters - len(end)] + end

    def check(self, properties: dict[str, Any]) -> None:
        """Check that all properties are known.

        Raises:
            RefusedPropertyError: One is not.
        """
        for key in properties:
            if key not in self.properties:
                raise RefusedPropertyError(f"#: extraneous key [{key}] is not permitted")

    def replaces(self, old: dict[str, Any], new: dict[str, Any]) -> bool:
        """Return whether a change needs another resource."""
        return any(old.get(name) != new.get(name) for name in self.replacing)

    @abc.abstractmethod
    def create(self, calls: Calls, resource: Resource, name: str, tags: dict[str, str]) -> None:
        """Make it; ``physical_id`` is set as soon as there is something to be deleted."""

    @abc.abstractmethod
    def update(
        self, calls: Calls, resource: Resource, new: dict[str, Any], tags: dict[str, str]
    ) -> None:
        """Change it from ``resource.properties`` to others."""

    @abc.abstractmethod
    def delete(self, calls: Calls, resource: Resource, ended: threading.Event) -> None:
        """Delete it; that it is not there any more is no error."""


class Bucket(Kind):
    """A bucket of S3."""

    type = "AWS::S3::Bucket"
    named_by = "BucketName"
    most_letters = 63
    replacing = frozenset({"BucketName"})
    properties = frozenset(
        {
            "BucketEncryption",
            "BucketName",
            "LifecycleConfiguration",
            "OwnershipControls",
            "PublicAccessBlockConfiguration",
            "Tags",
            "VersioningConfiguration",
        }
    )

    def name(self, stack: str, resource: Resource) -> str:
        """Return a name in lower case, as buckets must have."""
        given = resource.properties.get("BucketName")
        return str(given) if given else super().name(stack, resource).lower()

    def create(self, calls: Calls, resource: Resource, name: str, tags: dict[str, str]) -> None:
        """Make it and set what it is to have."""
        s3 = calls.client("s3")
        s3.create_bucket(Bucket=name)
        resource.physical_id = name
        resource.attributes = {
            "Arn": f"arn:aws:s3:::{name}",
            "DomainName": f"{name}.s3.amazonaws.com",
            "RegionalDomainName": f"{name}.s3.{names.REGION}.amazonaws.com",
        }
        self._set(calls, name, {}, resource.properties, tags)

    def update(
        self, calls: Calls, resource: Resource, new: dict[str, Any], tags: dict[str, str]
    ) -> None:
        """Set what has changed, and take away what is not asked for any more."""
        self._set(calls, resource.physical_id, resource.properties, new, tags)

    def delete(self, calls: Calls, resource: Resource, ended: threading.Event) -> None:
        """Delete it, if it is empty."""
        with _gone("NoSuchBucket"):
            calls.client("s3").delete_bucket(Bucket=resource.physical_id)

    def _set(
        self,
        calls: Calls,
        bucket: str,
        old: dict[str, Any],
        new: dict[str, Any],
        tags: dict[str, str],
    ) -> None:
        s3 = calls.client("s3")
        for key, (put, take_away, member) in _BUCKET_SETTINGS.items():
            if new.get(key) == old.get(key):
                continue
            if key not in new:
                if take_away:
                    getattr(s3, take_away)(Bucket=bucket)
                continue
            given = _AS_THE_API_HAS_IT.get(key, _same)(new[key])
            document = calls.input("s3", _pascal(put), {"Bucket": bucket, member: given})
            getattr(s3, put)(**document)
        found = _tags(new, tags)
        if found:
            s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": _pairs(found)})


#: The operations that set and take away a property, and the member it is given as.
_BUCKET_SETTINGS = {
    "BucketEncryption": (
        "put_bucket_encryption",
        "delete_bucket_encryption",
        "ServerSideEncryptionConfiguration",
    ),
    "PublicAccessBlockConfiguration": (
        "put_public_access_block",
        "delete_public_access_block",
        "PublicAccessBlockConfiguration",
    ),
    "OwnershipControls": (
        "put_bucket_ownership_controls",
        "delete_bucket_ownership_controls",
        "OwnershipControls",
    ),
    "VersioningConfiguration": ("put_bucket_versioning", "", "VersioningConfiguration"),
    "LifecycleConfiguration": (
        "put_bucket_lifecycle_configuration",
        "delete_bucket_lifecycle",
        "LifecycleConfiguration",
    ),
}


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _encryption(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return CloudFormation's rules of encryption as S3's API has them."""
    rules = [dict(rule) for rule in configuration["ServerSideEncryptionConfiguration"]]
    for rule in rules:
        rule["ApplyServerSideEncryptionByDefault"] = rule.pop("ServerSideEncryptionByDefault")
    return {"Rules": rules}


def _lifecycle(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return CloudFormation's rules as S3's API has them."""
    return {"Rules": [_rule(rule) for rule in configuration["Rules"]]}


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    rest = dict(rule)
    made: dict[str, Any] = {"ID": rest.pop("Id", _random(48)), "Status": rest.pop("Status")}
    made["Filter"] = {"Prefix": rest.pop("Prefix", "")}
    expiration = {
        theirs: rest.pop(ours)
        for ours, theirs in (
            ("ExpirationInDays", "Days"),
            ("ExpiredObjectDeleteMarker", "ExpiredObjectDeleteMarker"),
        )
        if ours in rest
    }
    if expiration:
        made["Expiration"] = expiration
    for same in ("AbortIncompleteMultipartUpload", "NoncurrentVersionExpiration"):
        if same in rest:
            made[same] = rest.pop(same)
    if rest:
        listed = ", ".join(sorted(rest))
        raise RefusedPropertyError(
            f"#/LifecycleConfiguration/Rules: extraneous key [{listed}] is not permitted"
        )
    return made


_AS_THE_API_HAS_IT: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "BucketEncryption": _encryption,
    "LifecycleConfiguration": _lifecycle,
}


class BucketPolicy(Kind):
    """The policy of a bucket."""

    type = "AWS::S3::BucketPolicy"
    properties = frozenset({"Bucket", "PolicyDocument"})
    replacing = frozenset({"Bucket"})

    def create(self, calls: Calls, resource: Resource, name: str, tags: dict[str, str]) -> None:
        """Set it."""
        self.update(calls, resource, resource.properties, tags)
        resource.physical_id = resource.properties["Bucket"]

    def update(
        self, calls: Calls, resource: Resource, new: dict[str, Any], tags: dict[str, str]
    ) -> None:
        """Set it again."""
        policy = json.dumps(new["PolicyDocument"])
        calls.client("s3").put_bucket_policy(Bucket=new["Bucket"], Policy=policy)

    def delete(self, calls: Calls, resource: Resource, ended: threading.Event) -> None:
        """Take it away."""
        with _gone("NoSuchBucket", "NoSuchBucketPolicy"):
            calls.client("s3").delete_bucket_policy(Bucket=resource.properties["Bucket"])


class LogGroup(Kind):
    """A log group of CloudWatch."""

    type = "AWS::Logs::LogGroup"
    named_by = "LogGroupName"
    most_letters = 512
    properties = frozenset({"LogGroupName", "RetentionInDays", "Tags"})
    replacing = frozenset({"LogGroupName"})

    def create(self, calls: Calls, resource: Resource, name: str, tags: dict[str, str]) -> None:
        """Make it and set its retention."""
        found = _tags(resource.properties, tags)
        calls.client("logs").create_log_group(
            logGroupName=name, **({"tags": found} if found else {})
        )
        resource.physical_id = name
        arn = f"arn:aws:logs:{names.REGION}:{names.ACCOUNT_ID}:log-group:{name}:*"
        resource.attributes = {"Arn": arn}
        if "RetentionInDays" in resource.properties:
            self._retain(calls, name, resource.properties)

    def update(
        self, calls: Calls, resource: Resource, new: dict[str, Any], tags: dict[str, str]
    ) -> None:
        """Set the retention again."""
        if new.get("RetentionInDays") != resource.properties.get("RetentionInDays"):
            self._retain(calls, resource.physical_id, new)

    def _retain(self, calls: Calls, name: str, properties: dict[str, Any]) -> None:
        logs = calls.client("logs")
        if "RetentionInDays" not in properties:
            logs.delete_retention_policy(logGroupName=name)
            return
        given = {"logGroupName": name, "retentionInDays": properties["RetentionInDays"]}
        logs.put_retention_policy(**calls.input("logs", "PutRetentionPolicy", given))

    def delete(self, calls: Calls, resource: Resource, ended: threading.Event) -> None:
        """Delete it with all that is in it."""
        with _gone("ResourceNotFoundException"):
            calls.client("logs").delete_log_group(logGroupName=resource.physical_id)


class Role(Kind):
    """A role of IAM with its inline policies."""

    type = "AWS::IAM::Role"
    named_by = "RoleName"
    most_letters = 64
    properties = frozenset(
        {
            "AssumeRolePolicyDocument",
            "Description",
            "ManagedPolicyArns",
            "MaxSessionDuration",
            "Path",
            "PermissionsBoundary",
            "Policies",
            "RoleName",
            "Tags",
        }
    )
    replacing = frozenset({"Path", "RoleName"})

    def create(self, calls: Calls, resource: Resource, name: str, tags: dict[str, str]) -> None:
        """Make it, then its policies."""
        given: dict[str, Any] = {
            key: resource.properties[key]
            for key in ("Description", "MaxSessionDuration", "Path", "PermissionsBoundary")
            if key in resource.properties
        }
        given["RoleName"] = name
        trust = resource.properties["AssumeRolePolicyDocument"]
        given["AssumeRolePolicyDocument"] = json.dumps(trust)
        found = _tags(resource.properties, tags)
        if found:
            given["Tags"] = _pairs(found)
        iam = calls.client("iam")
        made = iam.create_role(**calls.input("iam", "CreateRole", given))["Role"]
        resource.physical_id = name
        resource.attributes = {"Arn": made["Arn"], "RoleId": made["RoleId"]}
        self._set_policies(iam, name, {}, resource.properties)

    def update(
        self, calls: Calls, resource: Resource, new: dict[str, Any], tags: dict[str, str]
    ) -> None:
        """Set trust, boundary, policies and tags again where they have changed."""
        iam, name, old = calls.client("iam"), resource.physical_id, resource.properties
        if new["AssumeRolePolicyDocument"] != old["AssumeRolePolicyDocument"]:
            trust = json.dumps(new["AssumeRolePolicyDocument"])
            iam.update_assume_role_policy(RoleName=name, PolicyDocument=trust)
        changed = {
            key: new.get(key, default)
            for key, default in (("Description", ""), ("MaxSessionDuration", 3600))
            if new.get(key) != old.get(key)
        }
        if changed:
            given = {"RoleName": name, **changed}
            iam.update_role(**calls.input("iam", "UpdateRole", given))
        boundary = new.get("PermissionsBoundary")
        if boundary != old.get("PermissionsBoundary"):
            if boundary:
                iam.put_role_permissions_boundary(RoleName=name, PermissionsBoundary=boundary)
            else:
                iam.delete_role_permissions_boundary(RoleName=name)
        self._set_policies(iam, name, old, new)
        found = _tags(new, tags)
        if found:
            iam.tag_role(RoleName=name, Tags=_pairs(found))

    def _set_policies(self, iam: Any, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        theirs = {each["PolicyName"]: each["PolicyDocument"] for each in old.get("Policies", [])}
        ours = {each["PolicyName"]: each["PolicyDocument"] for each in new.get("Policies", [])}
        for policy, document in ours.items():
            if theirs.get(policy) != document:
                text = json.dumps(document)
                iam.put_role_policy(RoleName=name, PolicyName=policy, PolicyDocument=text)
        for policy in theirs.keys() - ours.keys():
            iam.delete_role_policy(RoleName=name, PolicyName=policy)
        before, after = (set(each.get("ManagedPolicyArns", [])) for each in (old, new))
        for arn in sorted(after - before):
            iam.attach_role_policy(RoleName=name, PolicyArn=arn)
        for arn in sorted(before - after):
            iam.detach_role_policy(RoleName=name, PolicyArn=arn)

    def delete(self, calls: Calls, resource: Resource, ended: threading.Event) -> None:
        """Take its policies away, then delete it."""
        iam, name = calls.client("iam"), resource.physical_id
        with _gone("NoSuchEntity"):
            for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
                iam.delete_role_policy(RoleName=name, PolicyName=policy)
            attached = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
            for arn in resource.properties.get("ManagedPolicyArns", []):
                if arn in [each["PolicyArn"] for each in attached]:
                    iam.detach_role_policy(RoleName=name, PolicyArn=arn)
            iam.delete_role(RoleName=name)


class InstanceProfile(Kind):
    """What hands a role to an EC2 instance."""

    type = "AWS::IAM::InstanceProfile"
    named_by = "InstanceProfileName"
    properties = frozenset({"InstanceProfileName", "Path", "Roles"})
    replacing = frozenset({"InstanceProfileName", "Path"})

    def create(self, calls: Calls, resource: Resource, name: str, tags: dict[str, str]) -> None:
        """Make it and put the role into it."""
        iam = calls.client("iam")
        path = {"Path": resource.properties["Path"]} if "Path" in resource.properties else {}
        made = iam.create_instance_profile(InstanceProfileName=name, **path)["InstanceProfile"]
        resource.physical_id = name
        resource.attributes = {"Arn": made["Arn"]}
        for role in resource.properties["Roles"]:
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)

    def update(
        self, calls: Calls, resource: Resource, new: dict[str, Any], tags: dict[str, str]
    ) -> None:
        """Exchange the role."""
        iam, name = calls.client("iam"), resource.physical_id
        old = resource.properties["Roles"]
        if new["Roles"] == old:
            return
        for role in old:
            iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role)
        for role in new["Roles"]:
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)

    def delete(self, calls: Calls, resource: Resource, ended: threading.Event) -> None:
        """Take the role out and delete it."""
        iam, name = calls.client("iam"), resource.physical_id
        with _gone("NoSuchEntity"):
            found = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
            for role in found["Roles"]:
                iam.remove_role_from_instance_profile(
                    InstanceProfileName=name, RoleName=role["RoleName"]
                )
            iam.delete_instance_profile(InstanceProfileName=name)


class SecurityGroup(Kind):
    """A security group of a VPC."""

    type = "AWS::EC2::SecurityGroup"
    named_by = "GroupName"
    most_letters = 255
    properties = frozenset(
        {
            "GroupDescription",
            "GroupName",
            "SecurityGroupEgress",
            "SecurityGroupIngress",
            "Tags",
            "VpcId",
        }
    )
    replacing = frozenset({"GroupDescription", "GroupName", "VpcId"})

    def create(self, calls: Calls, resource: Resource, name: str, tags: dict[str, str]) -> None:
        """Make it; rules of one's own take the place of the one that lets everything out."""
        ec2, given = calls.client("ec2"), resource.properties
        document = {"GroupName": name, "Description": given["GroupDescription"]}
        if "VpcId" in given:
            document["VpcId"] = given["VpcId"]
        found = _tags(given, tags)
        if found:
            specification = {"ResourceType": "security-group", "Tags": _pairs(found)}
            document["TagSpecifications"] = [specification]
        group = ec2.create_security_group(**document)["GroupId"]
        resource.physical_id = group
        resource.attributes = {"GroupId": group}
        described = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
        resource.attributes["VpcId"] = described["VpcId"]
        if given.get("SecurityGroupEgress"):
            ec2.revoke_security_group_egress(
                GroupId=group, IpPermissions=described["IpPermissionsEgress"]
            )
        self._allow(calls, group, {}, given)

    def update(
        self, calls: Calls, resource: Resource, new: dict[str, Any], tags: dict[str, str]
    ) -> None:
        """Exchange the rules that have changed."""
        self._allow(calls, resource.physical_id, resource.properties, new)

    def _allow(self, calls: Calls, group: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        ec2 = calls.client("ec2")
        for way in ("Egress", "Ingress"):
            before, after = (each.get(f"SecurityGroup{way}", []) for each in (old, new))
            if before == after:
                continue
            for verb, rules in (("revoke", before), ("authorize", after)):
                if rules:
                    call = getattr(ec2, f"{verb}_security_group_{way.lower()}")
                    call(GroupId=group, IpPermissions=[_permission(rule) for rule in rules])

    def delete(self, calls: Calls, resource: Resource, ended: threading.Event) -> None:
        """Delete it."""
        with _gone("InvalidGroup.NotFound"):
            calls.client("ec2").delete_security_group(GroupId=resource.physical_id)


def _permission(rule: dict[str, Any]) -> dict[str, Any]:
    """Return a rule as EC2's API has it."""
    rest = dict(rule)
    made: dict[str, Any] = {"IpProtocol": str(rest.pop("IpProtocol"))}
    for port in ("FromPort", "ToPort"):
        if port in rest:
            made[port] = int(rest.pop(port))
    described = {"Description": rest.pop("Description")} if "Description" in rest else {}
    if "CidrIp" in rest:
        made["IpRanges"] = [{"CidrIp": rest.pop("CidrIp"), **described}]
    if "CidrIpv6" in rest:
        made["Ipv6Ranges"] = [{"CidrIpv6": rest.pop("CidrIpv6"), **described}]
    if rest:
        raise RefusedPropertyError(f"#: extraneous key [{', '.join(rest)}] is not permitted")
    return made


class LaunchTemplate(Kind):
    """A launch template of EC2."""

    type = "AWS::EC2::LaunchTemplate"
    named_by = "LaunchTemplateName"
    properties = frozenset(
        {"LaunchTemplateData", "LaunchTemplateName", "TagSpecifications", "VersionDescription"}
    )
    replacing = frozenset({"LaunchTemplateName"})

    def create(self, calls: Calls, resource: Resource, name: str, tags: dict[str, str]) -> None:
        """Make its first version."""
        given = {**resource.properties, "LaunchTemplateName": name}
        if tags and "TagSpecifications" not in given:
            given["TagSpecifications"] = [
                {"ResourceType": "launch-template", "Tags": _pairs(tags)}
            ]
        document = calls.input("ec2", "CreateLaunchTemplate", given)
        made = calls.client("ec2").create_launch_template(**document)["LaunchTemplate"]
        resource.physical_id = made["LaunchTemplateId"]
        resource.attributes = {
            "LaunchTemplateId": made["LaunchTemplateId"],
            "LatestVersionNumber": str(made["LatestVersionNumber"]),
            "DefaultVersionNumber": str(made["DefaultVersionNumber"]),
        }

    def update(
        self, calls: Calls, resource: Resource, new: dict[str, Any], tags: dict[str, str]
    ) -> None:
        """Make another version, which is the latest then."""
        if new["LaunchTemplateData"] == resource.properties["LaunchTemplateData"]:
            return
        given = {
            "LaunchTemplateId": resource.physical_id,
            "LaunchTemplateData": new["LaunchTemplateData"],
        }
        document = calls.input("ec2", "CreateLaunchTemplateVersion", given)
        made = calls.client("ec2").create_launch_template_version(**document)
        number = made["LaunchTemplateVersion"]["VersionNumber"]
        resource.attributes["LatestVersionNumber"] = str(number)

    def delete(self, calls: Calls, resource: Resource, ended: threading.Event) -> None:
        """Delete it with its versions."""
        with _gone(
            "InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException"
        ):
            calls.client("ec2").delete_launch_template(LaunchTemplateId=resource.physical_id)


class ComputeEnvironment(Kind):
    """A compute environment of Batch."""

    type = "AWS::Batch::ComputeEnvironment"
    named_by = "ComputeEnvironmentName"
    properties = frozenset(
        {
            "ComputeEnvironmentName",
            "ComputeResources",
            "ReplaceComputeEnvironment",
            "ServiceRole",
            "State",
            "Tags",
            "Type",
            "UnmanagedvCpus",
            "UpdatePolicy",
        }
    )
    replacing = frozenset({"ComputeEnvironmentName", "Tags", "Type"})
    #: Of the compute resources, what is changed without a replacement in any case.
    _always_in_place = frozenset({"DesiredvCpus", "MaxvCpus", "MinvCpus"})

    def name(self, stack: str, resource: Resource) -> str:
        """Return a name without the stack's, as CloudFormation's own are."""
        given = resource.properties.get("ComputeEnvironmentName")
        return str(given) if given else f"{resource.logical_id}-{_random(16)}"

    def replaces(self, old: dict[str, Any], new: dict[str, Any]) -> bool:
        """Return whether a change needs another one, as most do unless it is told not to."""
        if super().replaces(old, new):
            return True
        before, after = (each.get("ComputeResources") or {} for each in (old, new))
        if before.get("SpotIamFleetRole") != after.get("SpotIamFleetRole"):
            return True
        changed = {key for key in before | after if before.get(key) != after.get(key)}
        in_place = str(new.get("ReplaceComputeEnvironment", True)).lower() == "false"
        return bool(changed - self._always_in_place) and not in_place

    def create(self, calls: Calls, resource: Resource, name: str, tags: dict[str, str]) -> None:
        """Make it and wait until it is valid."""
        document = self._document(resource.properties)
        document["computeEnvironmentName"] = name
        found = {**tags, **(resource.properties.get("Tags") or {})}
        if found:
            document["tags"] = found
        made = calls.batch("CreateComputeEnvironment", document)
        arn = resource.physical_id = made["computeEnvironmentArn"]
        resource.attributes = {"ComputeEnvironmentArn": arn}
        self._wait(calls, arn)

    def update(
        self, calls: Calls, resource: Resource, new: dict[str, Any], tags: dict[str, str]
    ) -> None:
        """Change it and wait until it is valid again."""
        document = self._document(new)
        del document["type"]
        document["computeEnvironment"] = resource.physical_id
        if "UpdatePolicy" in new:
            document["updatePolicy"] = {
                "terminateJobsOnUpdate": _boolean(new["UpdatePolicy"]["TerminateJobsOnUpdate"]),
                "jobExecutionTimeoutMinutes": int(
                    new["UpdatePolicy"]["JobExecutionTimeoutMinutes"]
                ),
            }
        (document.get("computeResources") or {}).pop("spotIamFleetRole", None)
        calls.batch("UpdateComputeEnvironment", document)
        self._wait(calls, resource.physical_id)

    def _document(self, properties: dict[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = {"type": properties["Type"]}
        for ours, theirs in (("ServiceRole", "serviceRole"), ("State", "state")):
            if ours in properties:
                document[theirs] = properties[ours]
        if "UnmanagedvCpus" in properties:
            document["unmanagedvCpus"] = int(properties["UnmanagedvCpus"])
        if "ComputeResources" in properties:
            document["computeResources"] = _compute_resources(properties["ComputeResources"])
        return document

    def _wait(self, calls: Calls, arn: str) -> None:
        _until(lambda: self._look(calls, arn).get("status") == "VALID", threading.Event())

    def _look(self, calls: Calls, arn: str) -> dict[str, Any]:
        document = {"computeEnvironments": [arn]}
        found = calls.batch("DescribeComputeEnvironments", document)["computeEnvironments"]
        one: dict[str, Any] = found[0] if found else {}
        if one.get("status") == "INVALID":
            raise RefusedPropertyError(one["statusReason"])
        return one

    def delete(self, calls: Calls, resource: Resource, ended: threading.Event) -> None:
        """Disable it, delete it and wait until it is gone."""
        arn = resource.physical_id
        found = self._look(calls, arn)
        if not found or found["status"] == "DELETED":
            return
        calls.batch("UpdateComputeEnvironment", {"computeEnvironment": arn, "state": "DISABLED"})
        self._wait(calls, arn)
        calls.batch("DeleteComputeEnvironment", {"computeEnvironment": arn})
        _until(lambda: self._look(calls, arn).get("status", "DELETED") == "DELETED", ended)


def _compute_resources(given: dict[str, Any]) -> dict[str, Any]:
    """Return a template's ComputeResources as the API has them."""
    made: dict[str, Any] = {}
    for key, value in given.items():
        name = key[0].lower() + key[1:]
        if key in ("DesiredvCpus", "MaxvCpus", "MinvCpus", "BidPercentage"):
            made[name] = int(value)
        elif key == "UpdateToLatestImageVersion":
            continue  # of updates alone
        elif isinstance(value, dict) and key != "Tags":
            made[name] = {k[0].lower() + k[1:]: v for k, v in value.items()}
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            made[name] = [{k[0].lower() + k[1:]: v for k, v in each.items()} for each in value]
        else:
            made[name] = value
    scaling = made.get("scalingPolicy")
    if scaling:
        scaling["minScaleDownDelayMinutes"] = int(scaling["minScaleDownDelayMinutes"])
    return made


class JobQueue(Kind):
    """A job queue of Batch."""

    type = "AWS::Batch::JobQueue"
    named_by = "JobQueueName"
    properties = frozenset(
        {
            "ComputeEnvironmentOrder",
            "JobQueueName",
            "JobStateTimeLimitActions",
            "Priority",
            "SchedulingPolicyArn",
            "State",
            "Tags",
        }
    )
    replacing = frozenset({"JobQueueName", "Tags"})

    def create(self, calls: Calls, resource: Resource, name: str, tags: dict[str, str]) -> None:
        """Make it and wait until it is valid."""
        document = {"jobQueueName": name, **self._document(resource.properties)}
        found = {**tags, **(resource.properties.get("Tags") or {})}
        if found:
            document["tags"] = found
        made = calls.batch("CreateJobQueue", document)
        resource.physical_id = made["jobQueueArn"]
        resource.attributes = {"JobQueueArn": resource.physical_id}
        self._wait(calls, resource.physical_id)

    def update(
        self, calls: Calls, resource: Resource, new: dict[str, Any], tags: dict[str, str]
    ) -> None:
        """Change it and wait until it is valid again."""
        document = {"jobQueue": resource.physical_id, **self._document(new)}
        calls.batch("UpdateJobQueue", document)
        self._wait(calls, resource.physical_id)

    def _document(self, properties: dict[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = {
            "priority": int(properties["Priority"]),
            "computeEnvironmentOrder": [
                {"order": int(each["Order"]), "computeEnvironment": each["ComputeEnvironment"]}
                for each in properties["ComputeEnvironmentOrder"]
            ],
        }
        if "State" in properties:
            document["state"] = properties["State"]
        if "SchedulingPolicyArn" in properties:
            document["schedulingPolicyArn"] = properties["SchedulingPolicyArn"]
        if "JobStateTimeLimitActions" in properties:
            document["jobStateTimeLimitActions"] = [
                {
                    "reason": each["Reason"],
                    "state": each["State"],
                    "maxTimeSeconds": int(each["MaxTimeSeconds"]),
                    "action": each["Action"],
                }
                for each in properties["JobStateTimeLimitActions"]
            ]
        return document

    def _wait(self, calls: Calls, arn: str) -> None:
        _until(lambda: self._look(calls, arn).get("status") == "VALID", threading.Event())

    def _look(self, calls: Calls, arn: str) -> dict[str, Any]:
        found = calls.batch("DescribeJobQueues", {"jobQueues": [arn]})["jobQueues"]
        return found[0] if found else {}

    def delete(self, calls: Calls, resource: Resource, ended: threading.Event) -> None:
        """Disable it, delete it and wait until its jobs have ended and it is gone."""
        arn = resource.physical_id
        found = self._look(calls, arn)
        if not found or found["status"] == "DELETED":
            return
        if found["status"] != "DELETING":
            calls.batch("UpdateJobQueue", {"jobQueue": arn, "state": "DISABLED"})
            self._wait(calls, arn)
            calls.batch("DeleteJobQueue", {"jobQueue": arn})
        _until(lambda: self._look(calls, arn).get("status", "DELETED") == "DELETED", ended)


def _until(condition: Callable[[], bool], ended: threading.Event) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if ended.wait(LOOK_S) or time.monotonic() > deadline:
            raise RefusedPropertyError("Exceeded attempts to wait")


class _gone:  # noqa: N801 - read as a word
    """Passes over a refusal which says that something is not there."""

    def __init__(self, *codes: str) -> None:
        self._codes = codes

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, ClientError) and error.response["Error"]["Code"] in self._codes


def _tags(properties: dict[str, Any], tags: dict[str, str]) -> dict[str, str]:
    """Return the tags of the stack and of the resource, whose own win."""
    own = {each["Key"]: str(each["Value"]) for each in properties.get("Tags") or []}
    return {**tags, **own}


def _pairs(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _boolean(value: Any) -> bool:
    return str(value).lower() == "true"


def _pascal(method: str) -> str:
    """Return the operation's name of a method of botocore's."""
    return "".join(part.capitalize() for part in method.split("_"))


def _random(count: int) -> str:
    letters = string.ascii_uppercase + string.digits
    return "".join(secrets.choice(letters) for _ in range(count))


KINDS: dict[str, Kind] = {
    kind.type: kind
    for kind in (
        Bucket(),
        BucketPolicy(),
        LogGroup(),
        Role(),
        InstanceProfile(),
        SecurityGroup(),
        LaunchTemplate(),
        ComputeEnvironment(),
        JobQueue(),
    )
}
