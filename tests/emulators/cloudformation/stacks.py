"""Stacks as CloudFormation keeps them: states, resources and events.

Sources:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-describing-stacks.html
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field
from typing import Any

from farcall_local import names
from tests.emulators.cloudformation.template import Template

STACK = "AWS::CloudFormation::Stack"


@dataclass
class Resource:
    """A resource of a stack.

    Attributes:
        logical_id: Its name in the template.
        type: Such as ``AWS::S3::Bucket``.
        definition: As it stood in the template it was made from, functions and all.
        properties: With which it was made.
        needs: The resources that must outlive it.
        physical_id: What Ref gives; empty before it is there.
        attributes: What GetAtt gives.
        status: Of its latest event.
        reason: Likewise.
        updated_at: Likewise.
    """

    logical_id: str
    type: str
    definition: dict[str, Any]
    properties: dict[str, Any]
    needs: set[str]
    physical_id: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    status: str = ""
    reason: str | None = None
    updated_at: dt.datetime | None = None


@dataclass
class Stack:
    """A stack.

    Attributes:
        id: Its ARN.
        name: Unique among the stacks that are not deleted.
        template: What it was made from, with the parameters' values.
        given: The parameters as they were given.
        tags: For all of its resources that take tags.
        capabilities: What the caller has agreed to.
        role_arn: CloudFormation's own role for it, where it was given one.
        disable_rollback: Whether what was made stays where the creation fails.
        protected: Whether it cannot be deleted.
        status: Such as ``CREATE_IN_PROGRESS``.
        reason: Why it has this status.
        resources: By logical ID; a deleted one stays, as in AWS's lists.
        replaced: What is to be deleted once an update has succeeded.
        events: In the order in which they happened.
        outputs: Values by name.
    """

    id: str
    name: str
    template: Template
    given: dict[str, str]
    tags: dict[str, str]
    capabilities: list[str]
    role_arn: str | None = None
    disable_rollback: bool = False
    protected: bool = False
    status: str = ""
    reason: str | None = None
    created_at: dt.datetime = field(default_factory=lambda: _now())
    updated_at: dt.datetime | None = None
    deleted_at: dt.datetime | None = None
    resources: dict[str, Resource] = field(default_factory=dict)
    replaced: list[Resource] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    token: str | None = None

    @property
    def busy(self) -> bool:
        """Whether something is being done with it."""
        return self.status.endswith("_IN_PROGRESS")

    @property
    def there(self) -> list[Resource]:
        """The resources that exist."""
        return [each for each in self.resources.values() if each.status != "DELETE_COMPLETE"]

    def turn(self, status: str, reason: str | None = None) -> None:
        """Note a change of the stack itself."""
        self.status, self.reason = status, reason
        if status == "DELETE_COMPLETE":
            self.deleted_at = _now()
        self._note(STACK, self.name, self.id, status, reason)

    def note(self, resource: Resource, status: str, reason: str | None = None) -> None:
        """Note a change of one of its resources."""
        resource.status, resource.reason, resource.updated_at = status, reason, _now()
        self._note(resource.type, resource.logical_id, resource.physical_id, status, reason)

    def _note(
        self, kind: str, logical_id: str, physical_id: str, status: str, reason: str | None
    ) -> None:
        event = {
            "StackId": self.id,
            "EventId": str(uuid.uuid4()),
            "StackName": self.name,
            "LogicalResourceId": logical_id,
            "PhysicalResourceId": physical_id,
            "ResourceType": kind,
            "Timestamp": _now(),
            "ResourceStatus": status,
            "ResourceStatusReason": reason,
            "ClientRequestToken": self.token,
        }
        self.events.append({key: value for key, value in event.items() if value is not None})


def new_id(name: str) -> str:
    """Return the ARN of a new stack."""
    return f"arn:aws:cloudformation:{names.REGION}:{names.ACCOUNT_ID}:stack/{name}/{uuid.uuid4()}"


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)
