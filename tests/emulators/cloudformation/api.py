"""The operations of the emulated CloudFormation, from AWS's query protocol to stacks.

A call that begins something is answered at once, and the work goes on in a thread: whoever asks
for the stack's events sees them come. Change sets, stack sets, nested stacks, exports, macros and
templates in a bucket are refused by name.

Sources:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_Operations.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/control-access-with-iam.html
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from botocore.exceptions import ClientError
from moto.core.parse import QueryParser
from moto.core.utils import get_service_model

from farcall_local.services.signatures import AccessKey
from tests.emulators.cloudformation import answers
from tests.emulators.cloudformation.calls import Calls
from tests.emulators.cloudformation.errors import (
    AlreadyExistsError,
    CapabilitiesError,
    StackError,
)
from tests.emulators.cloudformation.kinds import KINDS
from tests.emulators.cloudformation.stacks import Resource, Stack, new_id
from tests.emulators.cloudformation.template import Template
from tests.emulators.cloudformation.work import Work

_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,127}")
_UPDATABLE = {"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"}

_ON_FAILURE = {None: False, "ROLLBACK": False, "DO_NOTHING": True}


class Stacks:
    """All stacks. Safe to use from several threads.

    Args:
        endpoint_url: Where the services answer.
        assume: Returns a key of a role, given its ARN; None where the role does not trust
            CloudFormation.
    """

    def __init__(self, endpoint_url: str, assume: Callable[[str], AccessKey | None]) -> None:
        self._endpoint_url = endpoint_url
        self._assume = assume
        self._lock = threading.RLock()
        self._stacks: list[Stack] = []
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._operations: dict[str, Callable[[dict[str, Any], AccessKey], dict[str, Any]]] = {
            "CreateStack": self._create,
            "DeleteStack": self._delete,
            "DescribeStackEvents": self._events,
            "DescribeStackResource": self._resource,
            "DescribeStackResources": self._resources,
            "DescribeStacks": self._describe,
            "GetTemplate": self._template,
            "GetTemplateSummary": self._summary,
            "ListStackResources": self._list_resources,
            "ListStacks": self._list,
            "UpdateStack": self._update,
            "UpdateTerminationProtection": self._protect,
            "ValidateTemplate": self._validate,
        }

    def answer(self, body: bytes, key: AccessKey) -> tuple[int, bytes]:
        """Carry out a call.

        Args:
            body: The request's form.
            key: With which it was signed; the work is done with it.

        Returns:
            HTTP status, and XML.
        """
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        name = form.get("Action", "")
        try:
            return 200, self._carry_out(name, form, key)
        except StackError as error:
            return 400, answers.refusal(error)

    def _carry_out(self, name: str, form: dict[str, str], key: AccessKey) -> bytes:
        if name not in self._operations:
            raise StackError(f"farcall's emulated CloudFormation does not support {name!r}.")
        operation = get_service_model("cloudformation").operation_model(name)
        values: Any = {"values": form}
        document = QueryParser(operation).parse(values)
        with self._lock:
            reply = self._operations[name](document, key)
        return answers.reply(operation, reply)

    def names(self) -> list[str]:
        """Return the names of the stacks that are not deleted."""
        with self._lock:
            return [each.name for each in self._stacks if each.status != "DELETE_COMPLETE"]

    def close(self) -> None:
        """Have all work end after the call that is under way."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    # --- what begins something --------------------------------------------------------------

    def _create(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        name = document["StackName"]
        if not _NAME.fullmatch(name):
            raise StackError(
                f"1 validation error detected: Value '{name}' at 'stackName' failed to satisfy "
                "constraint: Member must satisfy regular expression pattern: "
                "[a-zA-Z][-a-zA-Z0-9]*"
            )
        if self._named(name) is not None:
            raise AlreadyExistsError(f"Stack [{name}] already exists")
        failing = document.get("OnFailure")
        if failing not in _ON_FAILURE:
            raise StackError(
                f"farcall's emulated CloudFormation does not support OnFailure {failing}."
            )
        stack_id, given = new_id(name), _parameters(document, {})
        template = self._read(document, given, name, stack_id)
        calls = self._calls(document.get("RoleARN"), key)
        _check_network(template, calls)
        stack = Stack(
            stack_id,
            name,
            template,
            given,
            _tags(document) or {},
            document.get("Capabilities") or [],
            role_arn=document.get("RoleARN"),
            disable_rollback=document.get("DisableRollback") or _ON_FAILURE[failing],
            protected=document.get("EnableTerminationProtection") or False,
            token=document.get("ClientRequestToken"),
        )
        work = Work(stack, calls, self._lock, self._ended)
        self._stacks.append(stack)
        stack.turn("CREATE_IN_PROGRESS", "User Initiated")
        self._start(work, work.create)
        return {"StackId": stack.id}

    def _update(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        stack = self._found(document["StackName"])
        if stack.status not in _UPDATABLE:
            raise StackError(
                f"Stack:{stack.id} is in {stack.status} state and can not be updated."
            )
        given = _parameters(document, stack.given)
        if document.get("UsePreviousTemplate"):
            document = {**document, "TemplateBody": stack.template.text}
        template = self._read(document, given, stack.name, stack.id)
        role_arn = document.get("RoleARN") or stack.role_arn
        calls = self._calls(role_arn, key)
        _check_network(template, calls)
        tags = _tags(document)
        tags = stack.tags if tags is None else tags
        if tags == stack.tags and _meaning(template) == _meaning(stack.template):
            raise StackError("No updates are to be performed.")
        stack.role_arn = role_arn
        stack.capabilities = document.get("Capabilities") or []
        stack.token = document.get("ClientRequestToken")
        work = Work(stack, calls, self._lock, self._ended)
        stack.updated_at = answers.now()
        stack.turn("UPDATE_IN_PROGRESS", "User Initiated")
        self._start(work, lambda: work.update(template, given, tags))
        return {"StackId": stack.id}

    def _delete(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        name = document["StackName"]
        stack = self._named(name) or self._known(name)
        if stack is None or stack.status in ("DELETE_COMPLETE", "DELETE_IN_PROGRESS"):
            return {}
        if stack.protected:
            raise StackError(
                f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled"
            )
        if stack.busy:
            raise StackError(f"Stack [{stack.id}] cannot be deleted while in {stack.status}.")
        spared = document.get("RetainResources") or []
        if spared and stack.status != "DELETE_FAILED":
            raise StackError(
                f"Invalid operation on stack [{stack.id}]. The specified resources to retain "
                "must be in a valid state. RetainResources is for stacks in DELETE_FAILED."
            )
        stack.role_arn = document.get("RoleARN") or stack.role_arn
        stack.token = document.get("ClientRequestToken")
        calls = self._calls(stack.role_arn, key)
        work = Work(stack, calls, self._lock, self._ended)
        stack.turn("DELETE_IN_PROGRESS", "User Initiated")
        self._start(work, lambda: work.delete(spared))
        return {}

    def _calls(self, role_arn: str | None, key: AccessKey) -> Calls:
        """Return what makes the calls: as the stack's service role, or as who asks."""
        if role_arn:
            assumed = self._assume(role_arn)
            if assumed is None:
                raise StackError(f"Role {role_arn} is invalid or cannot be assumed")
            key = assumed
        return Calls(self._endpoint_url, key)

    def _start(self, work: Work, task: Callable[[], None]) -> None:
        self._threads = [each for each in self._threads if each.is_alive()]
        thread = threading.Thread(target=work.run, args=(task,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _read(
        self, document: dict[str, Any], given: dict[str, str], name: str, stack_id: str
    ) -> Template:
        """Read the template of a request and check that it can be carried out."""
        template = Template(_body(document))
        types = {resource["Type"] for resource in template.resources.values()}
        unknown = sorted(types - KINDS.keys())
        if unknown:
            raise StackError(
                f"Template format error: Unrecognized resource types: [{', '.join(unknown)}]"
            )
        needed = _capabilities(template)
        agreed = set(document.get("Capabilities") or [])
        if "CAPABILITY_NAMED_IAM" in agreed:
            agreed.add("CAPABILITY_IAM")
        if needed and not set(needed) <= agreed:
            raise CapabilitiesError(f"Requires capabilities : [{', '.join(needed)}]")
        template.choose(given, name, stack_id)
        template.in_order()
        return template

    def _protect(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        stack = self._found(document["StackName"])
        stack.protected = document["EnableTerminationProtection"]
        return {"StackId": stack.id}

    # --- what tells something ---------------------------------------------------------------

    def _describe(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        if document.get("StackName"):
            return {"Stacks": [answers.stack(self._found(document["StackName"]))]}
        there = [each for each in self._stacks if each.status != "DELETE_COMPLETE"]
        return {"Stacks": [answers.stack(each) for each in there]}

    def _list(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        wanted = document.get("StackStatusFilter") or []
        found = [each for each in self._stacks if not wanted or each.status in wanted]
        return {"StackSummaries": [answers.summary(each) for each in reversed(found)]}

    def _events(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        events = self._found(document["StackName"]).events
        start = int(document.get("NextToken") or 0)
        page = events[::-1][start : start + 100]
        more = {"NextToken": str(start + 100)} if len(events) > start + 100 else {}
        return {"StackEvents": page, **more}

    def _resource(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        stack = self._found(document["StackName"])
        wanted = document["LogicalResourceId"]
        if wanted not in stack.resources:
            raise StackError(f"Resource {wanted} does not exist for stack {stack.name}")
        return {"StackResourceDetail": answers.resource(stack, stack.resources[wanted])}

    def _resources(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        stack = self._found(document["StackName"])
        wanted = document.get("LogicalResourceId")
        return {
            "StackResources": [
                answers.resource(stack, each)
                for each in _all(stack)
                if wanted in (None, each.logical_id)
            ]
        }

    def _list_resources(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        stack = self._found(document["StackName"])
        return {"StackResourceSummaries": [answers.resource(stack, each) for each in _all(stack)]}

    def _template(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        stack = self._found(document["StackName"])
        return {
            "TemplateBody": stack.template.text,
            "StagesAvailable": ["Original", "Processed"],
        }

    def _summary(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        if document.get("StackName"):
            template = self._found(document["StackName"]).template
        else:
            template = Template(_body(document))
        types = sorted({each["Type"] for each in template.resources.values()})
        return {**self._told(template), "ResourceTypes": types, "Version": "2010-09-09"}

    def _validate(self, document: dict[str, Any], key: AccessKey) -> dict[str, Any]:
        return self._told(Template(_body(document)))

    def _told(self, template: Template) -> dict[str, Any]:
        needed = _capabilities(template)
        why = "The following resource(s) require capabilities: [AWS::IAM::Role]"
        return {
            "Parameters": [
                answers.parameter(name, slot) for name, slot in template.parameters.items()
            ],
            "Description": template.description,
            "Capabilities": needed,
            **({"CapabilitiesReason": why} if needed else {}),
        }

    # --- finding ----------------------------------------------------------------------------

    def _named(self, name: str) -> Stack | None:
        """Return the stack of a name or ARN that is not deleted."""
        living = [each for each in self._stacks if each.status != "DELETE_COMPLETE"]
        return next((each for each in living if name in (each.name, each.id)), None)

    def _known(self, stack_id: str) -> Stack | None:
        return next((each for each in self._stacks if each.id == stack_id), None)

    def _found(self, name: str) -> Stack:
        found = self._named(name) or self._known(name)
        if found is None:
            raise StackError(f"Stack with id {name} does not exist")
        return found


def _all(stack: Stack) -> list[Resource]:
    return list(stack.resources.values())


def _body(document: Mapping[str, Any]) -> str:
    if document.get("TemplateURL"):
        raise StackError(
            "farcall's emulated CloudFormation does not support TemplateURL: give TemplateBody."
        )
    if not document.get("TemplateBody"):
        raise StackError("Either Template URL or Template Body must be specified.")
    return str(document["TemplateBody"])


def _parameters(document: Mapping[str, Any], previous: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for each in document.get("Parameters") or []:
        name = each["ParameterKey"]
        if not each.get("UsePreviousValue"):
            given[name] = each.get("ParameterValue", "")
        elif name in previous:
            given[name] = previous[name]
    return given


def _tags(document: Mapping[str, Any]) -> dict[str, str] | None:
    if document.get("Tags") is None:
        return None
    return {each["Key"]: each["Value"] for each in document["Tags"]}


#: Types of parameters whose values must be there: the operation that tells, and how it is asked.
_NETWORK = {
    "AWS::EC2::SecurityGroup::Id": ("describe_security_groups", "GroupIds"),
    "AWS::EC2::Subnet::Id": ("describe_subnets", "SubnetIds"),
    "AWS::EC2::VPC::Id": ("describe_vpcs", "VpcIds"),
}


def _check_network(template: Template, calls: Calls) -> None:
    """Check that the networks are there which parameters name."""
    for name, slot in template.parameters.items():
        kind = slot.get("Type", "").removeprefix("List<").removesuffix(">")
        value = template.values[name]
        for identity in value if isinstance(value, list) else [value]:
            if kind not in _NETWORK:
                break
            operation, parameter = _NETWORK[kind]
            try:
                getattr(calls.client("ec2"), operation)(**{parameter: [identity]})
            except ClientError as error:
                if "NotFound" not in error.response["Error"]["Code"]:
                    raise StackError(error.response["Error"]["Message"]) from None
                raise StackError(
                    f"Parameter validation failed: parameter value {identity} for parameter name "
                    f"{name} does not exist"
                ) from None


def _capabilities(template: Template) -> list[str]:
    """Return what a caller must agree to before a template makes roles."""
    found = []
    for resource in template.resources.values():
        if resource["Type"].startswith("AWS::IAM::"):
            kind = KINDS.get(resource["Type"])
            named = kind is not None and kind.named_by in (resource.get("Properties") or {})
            found.append("CAPABILITY_NAMED_IAM" if named else "CAPABILITY_IAM")
    return [max(found)] if found else []


def _meaning(template: Template) -> Any:
    """Return what a template asks for, with parameters and conditions put in."""

    def look(name: str, attribute: str | None) -> str:
        return f"\0{name}.{attribute}\0"

    made = {
        name: {
            key: template.evaluate(value, look)
            for key, value in template.resources[name].items()
            if key not in ("Condition", "Metadata")
        }
        for name in template.in_order()
    }
    outputs = {
        name: template.evaluate(each["Value"], look)
        for name, each in template.outputs.items()
        if "Condition" not in each or template.condition(each["Condition"])
    }
    return made, outputs
