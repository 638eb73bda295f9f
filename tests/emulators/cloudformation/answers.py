"""Answers of the emulated CloudFormation: stacks as its API describes them, and XML."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from botocore.model import OperationModel
from moto.core.serialize import QuerySerializer

from tests.emulators.cloudformation.errors import StackError
from tests.emulators.cloudformation.stacks import Resource, Stack

CONTENT_TYPE = "text/xml"


def reply(operation: OperationModel, document: Mapping[str, Any]) -> bytes:
    """Return an answer in AWS's query protocol."""
    body: str | bytes = QuerySerializer(operation).serialize(dict(document))["body"]
    return body.encode() if isinstance(body, str) else body


def refusal(error: StackError) -> bytes:
    """Return a refusal in AWS's query protocol."""
    text = (
        '<ErrorResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><Error>'
        f"<Type>Sender</Type><Code>{error.code}</Code><Message>{escape(str(error))}</Message>"
        f"</Error><RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>"
    )
    return text.encode()


def stack(found: Stack) -> dict[str, Any]:
    """Describe a stack."""
    values = found.template.values
    parameters = [
        {"ParameterKey": name, "ParameterValue": _joined(values[name], slot)}
        for name, slot in found.template.parameters.items()
    ]
    outputs = [
        {
            "OutputKey": name,
            "OutputValue": value,
            "Description": found.template.outputs[name].get("Description"),
        }
        for name, value in found.outputs.items()
    ]
    return {
        **summary(found),
        "Parameters": parameters,
        "Outputs": [_filled(each) for each in outputs],
        "Tags": [{"Key": key, "Value": value} for key, value in found.tags.items()],
        "Capabilities": found.capabilities,
        "DisableRollback": found.disable_rollback,
        "EnableTerminationProtection": found.protected,
        "NotificationARNs": [],
        **_filled({"RoleARN": found.role_arn, "Description": found.template.description}),
    }


def _joined(value: Any, slot: Mapping[str, Any]) -> str:
    if slot.get("NoEcho") in (True, "true"):
        return "****"
    return ",".join(value) if isinstance(value, list) else value


def summary(found: Stack) -> dict[str, Any]:
    """Describe a stack in a list."""
    return _filled(
        {
            "StackId": found.id,
            "StackName": found.name,
            "TemplateDescription": found.template.description,
            "CreationTime": found.created_at,
            "LastUpdatedTime": found.updated_at,
            "DeletionTime": found.deleted_at,
            "StackStatus": found.status,
            "StackStatusReason": found.reason,
            "DriftInformation": {"StackDriftStatus": "NOT_CHECKED"},
        }
    )


def resource(found: Stack, one: Resource) -> dict[str, Any]:
    """Describe a resource of a stack, for each of the operations that do so."""
    return _filled(
        {
            "StackName": found.name,
            "StackId": found.id,
            "LogicalResourceId": one.logical_id,
            "PhysicalResourceId": one.physical_id or None,
            "ResourceType": one.type,
            "Timestamp": one.updated_at,
            "LastUpdatedTimestamp": one.updated_at,
            "ResourceStatus": one.status,
            "ResourceStatusReason": one.reason,
            "DriftInformation": {"StackResourceDriftStatus": "NOT_CHECKED"},
        }
    )


def parameter(name: str, slot: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a parameter of a template."""
    default = slot.get("Default")
    return _filled(
        {
            "ParameterKey": name,
            "DefaultValue": None if default is None else str(default),
            "ParameterType": slot.get("Type", "String"),
            "NoEcho": slot.get("NoEcho") in (True, "true"),
            "Description": slot.get("Description"),
        }
    )


def now() -> dt.datetime:
    """Return the time."""
    return dt.datetime.now(dt.timezone.utc)


def _filled(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value is not None}
