"""CloudFormation stack: creation, changes, deletion, events and failure reasons."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import resources
from typing import Any

from farcall.aws.clients import Aws
from farcall.deploy.aws_calls import POLICY, call_aws, pages
from farcall.model.errors import FarcallError, ServiceError

_FIRST_POLL_S, _LAST_POLL_S, _SLOWER = 0.25, 3.0, 1.3
_SERVICE = "cloudformation"
_STACK = "AWS::CloudFormation::Stack"
_UNDER_WAY = "_IN_PROGRESS"
_FAILED = "_FAILED"
_BEGUN = "User Initiated"

_GONE = "DELETE_COMPLETE"
_STUCK = "UPDATE_ROLLBACK_FAILED"
_WELL = ("CREATE_COMPLETE", "UPDATE_COMPLETE")
_DEAD = (
    "CREATE_FAILED",
    "DELETE_FAILED",
    "REVIEW_IN_PROGRESS",
    "ROLLBACK_COMPLETE",
    "ROLLBACK_FAILED",
)
"""States of stacks that can only be deleted, such as after an unused change set."""

_CONSEQUENCES = (
    "Resource creation cancelled",
    "Resource update cancelled",
    "Resource deletion cancelled",
)
"""CloudFormation's text for resources that were cancelled after another's failure."""

_ABSENT = re.compile(r"Stack (\[|with id ).* does not exist")

_EVENTUAL = ("existing JobQueue relationship", "DependencyViolation", "has a dependent object")
"""Errors that pass: Batch still counts a deleted queue, and a security group still has the
network interfaces of terminating jobs."""

_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, *18 * [30.0])
"""Pauses in seconds before further attempts of a deletion, ten minutes in total."""


@dataclass(frozen=True)
class Event:
    """Event of a resource or of the stack.

    Attributes:
        id: ID of the event.
        resource: Name of the resource in the template; for the stack, the stack's name.
        kind: Type such as ``AWS::Batch::JobQueue``.
        status: Status such as ``CREATE_FAILED``.
        reason: The service's text; may be empty.
        at: Time of the event.
    """

    id: str
    resource: str
    kind: str
    status: str
    reason: str
    at: datetime

    @property
    def is_of_stack(self) -> bool:
        """Whether the event is about the stack itself."""
        return self.kind == _STACK


@dataclass(frozen=True)
class State:
    """Current state of a stack.

    Attributes:
        id: ARN of the stack, which also identifies a deleted stack.
        status: Status such as ``CREATE_COMPLETE``.
        reason: Reason for the status; may be empty.
        parameters: Parameters of the stack.
        outputs: Outputs of the stack.
        tags: Tags of the stack, which its resources inherit.
    """

    id: str
    status: str
    reason: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_under_way(self) -> bool:
        """Whether an operation is creating, changing or deleting the stack."""
        return self.status.endswith(_UNDER_WAY) and self.status not in _DEAD

    @property
    def is_dead(self) -> bool:
        """Whether the stack can only be deleted."""
        return self.status in _DEAD

    @property
    def is_well(self) -> bool:
        """Whether the last operation succeeded."""
        return self.status in _WELL


def template() -> str:
    """Return the template as YAML."""
    return resources.files("farcall.deploy").joinpath("template.yaml").read_text("utf-8")


class Stack:
    """Operations on a stack.

    Args:
        access: The open clients.
        name: Name of the stack.
        report: Called with each event of the stack, or a sentence about its progress.
    """

    def __init__(
        self, access: Aws, name: str, report: Callable[[Event | str], object] = lambda _: None
    ) -> None:
        self.name = name
        self._access = access
        self._report = report

    async def state(self, stack_id: str = "") -> State | None:
        """Return the state of the stack, or None if it does not exist.

        Args:
            stack_id: ARN of the stack, which is needed if the stack may be deleted.

        Raises:
            ServiceError: CloudFormation rejected a request.
        """
        try:
            reply = await self._call("describe_stacks", StackName=stack_id or self.name)
        except ServiceError as error:
            if _ABSENT.search(str(error)):
                return None
            raise
        if not reply["Stacks"]:
            return None
        stack = reply["Stacks"][0]
        return State(
            stack["StackId"],
            stack["StackStatus"],
            stack.get("StackStatusReason", ""),
            _pairs(stack.get("Parameters", ()), "ParameterKey", "ParameterValue"),
            _pairs(stack.get("Outputs", ()), "OutputKey", "OutputValue"),
            _pairs(stack.get("Tags", ()), "Key", "Value"),
        )

    async def resources(self) -> dict[str, str]:
        """Return the physical IDs of the resources by their names in the template."""
        reply = await self._call("describe_stack_resources", StackName=self.name)
        return {
            each["LogicalResourceId"]: each["PhysicalResourceId"]
            for each in reply["StackResources"]
            if each.get("PhysicalResourceId") and each["ResourceStatus"] != _GONE
        }

    async def put(
        self, parameters: Mapping[str, str], tags: Mapping[str, str]
    ) -> tuple[State, bool]:
        """Create the stack, or update it to the current template.

        If another operation is in progress, wait for its end. The remains of a failed creation are
        deleted first.

        Returns:
            The new state, and whether anything was changed.

        Raises:
            FarcallError: The operation failed; the message names the resource and the reason.
            ServiceError: CloudFormation rejected a request.
        """
        request = {
            "StackName": self.name,
            "TemplateBody": template(),
            "Parameters": [
                {"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()
            ],
            "Tags": [{"Key": k, "Value": v} for k, v in tags.items()],
            "Capabilities": ["CAPABILITY_IAM"],
        }
        state = await self.settled()
        if state is not None and state.is_dead:
            self._report(f"{self.name} is {state.status}: deleting it and creating it again")
            await self.delete()
            state = None
        if state is not None and state.status == _STUCK:
            raise FarcallError(
                f"stack {self.name} is {_STUCK}: {state.reason or 'no reason is given'}; fix the "
                "cause, then run `aws cloudformation continue-update-rollback --stack-name "
                f"{self.name}`, or delete the stack with `farcall destroy`"
            )
        operation = "update_stack" if state else "create_stack"
        since = await self._newest(state)
        token = f"farcall-{secrets.token_hex(8)}"
        try:
            reply = await self._call(operation, ClientRequestToken=token, **request)
        except ServiceError as error:
            if state is not None and "No updates are to be performed" in str(error):
                return state, False
            raise
        done, events = await self._follow(reply["StackId"], since)
        if done is not None and done.is_well:
            return done, True
        what = "updated" if state else "created"
        raise FarcallError(f"stack {self.name} was not {what}: {_messages_of(done, events)}")

    async def settled(self) -> State | None:
        """Return the stack when no operation is in progress; None if there is none."""
        while True:
            state = await self.state()
            if state is None or not state.is_under_way:
                return state
            self._report(f"{self.name} is {state.status}: waiting for another command to finish")
            await self._follow(state.id, await self._newest(state))

    async def delete(self) -> None:
        """Delete the stack, except its bucket, which the template retains.

        Raises:
            FarcallError: A resource could not be deleted.
            ServiceError: CloudFormation rejected a request.
        """
        for pause_s in (*_PAUSES_S, None):
            state = await self.settled()
            if state is None:
                return
            since = await self._newest(state)
            await self._call("delete_stack", StackName=state.id)
            done, events = await self._follow(state.id, since)
            if done is None or done.status == _GONE:
                return
            messages = _messages_of(done, events)
            if pause_s is None or not any(words in messages for words in _EVENTUAL):
                raise FarcallError(f"stack {self.name} was not deleted: {messages}")
            self._report(f"not deleted yet ({messages}); retrying in {pause_s:.0f} s")
            await asyncio.sleep(pause_s)

    async def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return await call_aws(self._access, _SERVICE, operation, **parameters)

    async def _newest(self, state: State | None) -> str:
        """Return the ID of the newest event; empty if there is none."""
        if state is None:
            return ""
        async for event in self._events(state.id):
            return event.id
        return ""

    async def _events(self, stack_id: str) -> AsyncIterator[Event]:
        event_pages = pages(self._access, _SERVICE, "describe_stack_events", StackName=stack_id)
        async for page in event_pages:
            for each in page["StackEvents"]:
                yield Event(
                    each["EventId"],
                    each["LogicalResourceId"],
                    each.get("ResourceType", ""),
                    each.get("ResourceStatus", ""),
                    each.get("ResourceStatusReason", ""),
                    each["Timestamp"],
                )

    async def _follow(self, stack_id: str, since: str) -> tuple[State | None, list[Event]]:
        """Report events until no operation is in progress.

        Args:
            stack_id: ARN of the stack.
            since: ID of the last event before the operation.

        Returns:
            The final state, None if the stack is deleted, and the events in order.
        """
        seen: list[Event] = []
        pause_s = _FIRST_POLL_S
        while True:
            state = await self.state(stack_id)  # before the events, so that none is missed
            new = []
            if state is not None:
                last = seen[-1].id if seen else since
                async for event in self._events(stack_id):
                    if event.id == last:
                        break
                    new.append(event)
            for event in reversed(new):
                seen.append(event)
                self._report(event)
            if state is None or not state.is_under_way:
                return state, seen
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * _SLOWER, _LAST_POLL_S)


def cause(events: Sequence[Event]) -> Event | None:
    """Return the cause of a failed operation: its first event that failed by itself.

    Args:
        events: The events in order, possibly including earlier operations.
    """
    begun = [n for n, event in enumerate(events) if event.is_of_stack and event.reason == _BEGUN]
    failed = [
        event for event in events[begun[-1] if begun else 0 :] if event.status.endswith(_FAILED)
    ]
    own = [event for event in failed if not event.reason.startswith(_CONSEQUENCES)]
    of_resources = [event for event in own if not event.is_of_stack]
    return next(iter(of_resources or own or failed), None)


def _messages_of(state: State | None, events: Sequence[Event]) -> str:
    """Return the failure reason, and the remedy if it is known."""
    first = cause(events)
    if first is None:
        status = state.status if state else "already deleted"
        return f"it is {status}{f': {state.reason}' if state and state.reason else ''}"
    text = (
        f"{first.resource} ({first.kind}) {first.status}: {first.reason or 'no reason is given'}"
    )
    if "not authorized" in text or "AccessDenied" in text:
        text += f"; {POLICY}"
    return text


def _pairs(entries: Iterable[Mapping[str, str]], key: str, value: str) -> dict[str, str]:
    return {each[key]: each.get(value, "") for each in entries}
