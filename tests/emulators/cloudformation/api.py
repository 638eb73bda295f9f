"""API of the emulated CloudFormation: the operations that farcall calls.

An operation that changes a stack is answered at once, and continues in a thread.

Source:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_Operations.html
"""

from __future__ import annotations

import threading
import uuid
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from moto.core.parse import QueryParser
from moto.core.serialize import QuerySerializer
from moto.core.utils import get_service_model

from farcall_local.services.signatures import AccessKey
from tests.emulators.cloudformation.resources import Account
from tests.emulators.cloudformation.stacks import Stack
from tests.emulators.cloudformation.template import Template

_UPDATABLE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
_EVENTS_PER_PAGE = 100


class _StackError(Exception):
    """An operation is rejected."""

    def __init__(self, message: str, code: str = "ValidationError") -> None:
        super().__init__(message)
        self.code = code


class Stacks:
    """All stacks. Thread-safe.

    Args:
        endpoint_url: URL of the local AWS emulator.
    """

    def __init__(self, endpoint_url: str) -> None:
        self._endpoint_url = endpoint_url
        self._lock = threading.Lock()
        self._stacks: list[Stack] = []
        self._operations = {
            "CreateStack": self._create,
            "UpdateStack": self._update,
            "DeleteStack": self._delete,
            "DescribeStacks": self._describe,
            "DescribeStackEvents": self._describe_events,
            "DescribeStackResources": self._describe_resources,
        }

    def answer(self, body: bytes, key: AccessKey) -> tuple[int, bytes]:
        """Answer a call.

        Args:
            body: The request's form.
            key: Access key that signed it; it also signs the calls that make the resources.

        Returns:
            HTTP status, and XML.
        """
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        operation = get_service_model("cloudformation").operation_model(form["Action"])
        values: Any = {"values": form}
        document = QueryParser(operation).parse(values)
        try:
            with self._lock:
                reply = self._operations[operation.name](document, key)
        except _StackError as error:
            return 400, _error(error)
        xml: str | bytes = QuerySerializer(operation).serialize(reply)["body"]
        return 200, xml.encode() if isinstance(xml, str) else xml

    def names(self) -> list[str]:
        """Return the names of the stacks that are not deleted."""
        return [each.name for each in self._stacks if each.exists]

    def _create(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        name = document["StackName"]
        if name in self.names():
            raise _StackError(f"Stack [{name}] already exists", "AlreadyExistsException")
        stack = Stack(name, _template(document, name), _tags(document))
        self._stacks.append(stack)
        account = Account(self._endpoint_url, key, name, stack.tags)
        return self._start(stack, "CREATE", stack.create, account)

    def _update(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        stack = self._found(document["StackName"])
        if stack.status not in _UPDATABLE:
            raise _StackError(
                f"Stack:{stack.id} is in {stack.status} state and can not be updated."
            )
        template, tags, old = _template(document, stack.name), _tags(document), stack.template
        if (template.text, template.parameters, tags) == (old.text, old.parameters, stack.tags):
            raise _StackError("No updates are to be performed.")
        account = Account(self._endpoint_url, key, stack.name, tags)
        return self._start(stack, "UPDATE", stack.update, account, template)

    def _delete(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        stack = self._found(document["StackName"])
        if stack.is_busy:
            raise _StackError(f"Stack [{stack.id}] cannot be deleted while in {stack.status}.")
        account = Account(self._endpoint_url, key, stack.name, stack.tags)
        self._start(stack, "DELETE", stack.delete, account)
        return {}

    def _start(self, stack: Stack, action: str, operation: Any, *args: Any) -> dict[str, Any]:
        stack.turn(f"{action}_IN_PROGRESS", "User Initiated")
        threading.Thread(target=operation, args=args, daemon=True).start()
        return {"StackId": stack.id}

    def _describe(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        return {"Stacks": [self._found(document["StackName"]).document()]}

    def _describe_events(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        events = self._found(document["StackName"]).events[::-1]
        start = int(document.get("NextToken") or 0)
        end = start + _EVENTS_PER_PAGE
        more = {"NextToken": str(end)} if len(events) > end else {}
        return {"StackEvents": events[start:end], **more}

    def _describe_resources(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        found = [
            {
                "LogicalResourceId": each.logical_id,
                "PhysicalResourceId": each.physical_id,
                "ResourceType": each.type,
                "ResourceStatus": each.status,
            }
            for each in list(self._found(document["StackName"]).resources.values())
        ]
        return {"StackResources": found}

    def _found(self, name: str) -> Stack:
        """Return the stack of an ARN, or of a name unless it is deleted."""
        for stack in self._stacks:
            if stack.id == name or (stack.name == name and stack.exists):
                return stack
        raise _StackError(f"Stack with id {name} does not exist")


def _template(document: dict[str, Any], stack: str) -> Template:
    if "CAPABILITY_IAM" not in document.get("Capabilities", []):
        code = "InsufficientCapabilitiesException"
        raise _StackError("Requires capabilities : [CAPABILITY_IAM]", code)
    given = {each["ParameterKey"]: each["ParameterValue"] for each in document["Parameters"]}
    return Template(document["TemplateBody"], given, stack)


def _tags(document: dict[str, Any]) -> dict[str, str]:
    return {each["Key"]: each["Value"] for each in document.get("Tags", [])}


def _error(error: _StackError) -> bytes:
    return (
        '<ErrorResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><Error>'
        f"<Type>Sender</Type><Code>{error.code}</Code><Message>{escape(str(error))}</Message>"
        f"</Error><RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>"
    ).encode()
