"""Stacks of the emulated CloudFormation: events, order of resources, rollback of a creation.

Resources that do not need each other begin together and are made one after the other. If one
fails, the events report the rest of them as canceled, as CloudFormation does.

Sources:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/stack-failure-options.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from farcall_local import names
from tests.emulators.cloudformation.resources import KINDS, Account, Resource
from tests.emulators.cloudformation.template import Template


class _FailedError(Exception):
    """A resource could not be made or changed; the message is its logical ID."""


class Stack:
    """A stack. One thread at a time works on it; any thread reads it.

    Attributes:
        id: Its ARN.
        events: As the API returns them, the oldest first.
        template: Template that it was created from, or last updated to.
        resources: By logical ID, each after those that it needs. Deleted ones are kept.
    """

    def __init__(self, name: str, template: Template, tags: dict[str, str]) -> None:
        account = f"{names.REGION}:{names.ACCOUNT_ID}"
        self.name = name
        self.template = template
        self.tags = tags
        self.id = f"arn:aws:cloudformation:{account}:stack/{name}/{uuid.uuid4()}"
        self.created_at = _now()
        self.status = self.reason = ""
        self.events: list[dict[str, Any]] = []
        self.outputs: dict[str, str] = {}
        self.resources: dict[str, Resource] = {}

    @property
    def is_busy(self) -> bool:
        """Whether an operation is in progress."""
        return self.status.endswith("_IN_PROGRESS")

    @property
    def exists(self) -> bool:
        """Whether it is not deleted."""
        return self.status != "DELETE_COMPLETE"

    def document(self) -> dict[str, Any]:
        """Return its description."""
        return {
            "StackId": self.id,
            "StackName": self.name,
            "CreationTime": self.created_at,
            "StackStatus": self.status,
            "StackStatusReason": self.reason,
            "Parameters": _pairs(self.template.parameters, "ParameterKey", "ParameterValue"),
            "Outputs": _pairs(self.outputs, "OutputKey", "OutputValue"),
            "Tags": _pairs(self.tags, "Key", "Value"),
        }

    # --- operations -------------------------------------------------------------------------

    def create(self, account: Account) -> None:
        """Make all resources; delete them again if one fails."""
        try:
            self._conform(account, self.template)
        except _FailedError as error:
            reason = f"The following resource(s) failed to create: [{error}]. "
            self.turn("ROLLBACK_IN_PROGRESS", f"{reason}Rollback requested by user.")
            self._remove(account, self.resources.values())
            self.turn("ROLLBACK_COMPLETE")
            return
        self.turn("CREATE_COMPLETE")

    def update(self, account: Account, template: Template) -> None:
        """Change the stack to another template; a failed update is not rolled back."""
        try:
            self._conform(account, template)
        except _FailedError as error:
            reason = f"The following resource(s) failed to update: [{error}]. "
            self.turn("UPDATE_ROLLBACK_FAILED", reason)
            return
        self.template, self.tags = template, account.tags
        self.turn("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")
        gone = [each for name, each in self.resources.items() if name not in template.resources]
        self._remove(account, gone)
        self.turn("UPDATE_COMPLETE")

    def delete(self, account: Account) -> None:
        """Delete all resources except those that are retained."""
        left = self._remove(account, self.resources.values(), retains=True)
        if left:
            listed = ", ".join(left)
            reason = f"The following resource(s) failed to delete: [{listed}]. "
            self.turn("DELETE_FAILED", reason)
        else:
            self.turn("DELETE_COMPLETE")

    # --- steps ------------------------------------------------------------------------------

    def _conform(self, account: Account, template: Template) -> None:
        """Make and change resources until they are as a template describes them."""
        for wave in template.waves:
            begun = [self._begin(account, template, name) for name in wave]
            steps = [each for each in begun if each is not None]
            while steps:
                resource, action, step = steps.pop(0)
                if not self._try(step, resource, action):
                    for other, verb, _ in steps:
                        noun = {"CREATE": "creation", "UPDATE": "update"}[verb]
                        self.record(other, f"{verb}_FAILED", f"Resource {noun} cancelled")
                    raise _FailedError(resource.logical_id)
        self.outputs = template.outputs(self._look)

    def _begin(
        self, account: Account, template: Template, name: str
    ) -> tuple[Resource, str, Callable[[], None]] | None:
        """Record that a resource begins; return it, the action and its step, if it differs."""
        definition = template.resources[name]
        properties = template.evaluate(definition["Properties"], self._look)
        old, kind = self.resources.get(name), KINDS[definition["Type"]]
        if old is None or old.status == "DELETE_COMPLETE":
            retained = definition.get("DeletionPolicy") == "RetainExceptOnCreate"
            new = Resource(name, definition["Type"], properties, is_retained=retained)
            self.resources.pop(name, None)  # to the end of the order
            self.resources[name] = new
            self.record(new, "CREATE_IN_PROGRESS")
            return new, "CREATE", lambda: kind.create(account, new)
        if old.properties == properties and account.tags == self.tags:
            return None
        self.record(old, "UPDATE_IN_PROGRESS")

        def update() -> None:
            kind.update(account, old, properties)
            old.properties = properties

        return old, "UPDATE", update

    def _remove(
        self, account: Account, doomed: Iterable[Resource], *, retains: bool = False
    ) -> list[str]:
        """Delete resources, each before those that it needs.

        Returns:
            Logical IDs of those that could not be deleted.
        """
        failed: list[str] = []
        for resource in reversed(list(doomed)):
            if resource.status == "DELETE_COMPLETE":
                continue
            if retains and resource.is_retained:
                self.record(resource, "DELETE_SKIPPED")
            elif not self._delete(account, resource):
                failed.append(resource.logical_id)
        return failed

    def _delete(self, account: Account, resource: Resource) -> bool:
        self.record(resource, "DELETE_IN_PROGRESS")

        def delete() -> None:
            if resource.physical_id:
                KINDS[resource.type].delete(account, resource)

        return self._try(delete, resource, "DELETE")

    def _try(self, step: Callable[[], None], resource: Resource, action: str) -> bool:
        """Run the step of an action, and record that it is complete or why it failed."""
        try:
            step()
        except Exception as error:  # a fault of this package fails the stack, too
            reason = f'Resource handler returned message: "{error}"'
            self.record(resource, f"{action}_FAILED", reason)
            return False
        self.record(resource, f"{action}_COMPLETE")
        return True

    def _look(self, name: str, attribute: str | None) -> str:
        resource = self.resources[name]
        return resource.physical_id if attribute is None else resource.attributes[attribute]

    # --- events -----------------------------------------------------------------------------

    def turn(self, status: str, reason: str = "") -> None:
        """Record a new status of the stack."""
        self._add(self.name, "AWS::CloudFormation::Stack", status, reason)
        self.reason, self.status = reason, status  # last, because readers wait for the status

    def record(self, resource: Resource, status: str, reason: str = "") -> None:
        """Record a new status of a resource."""
        resource.status = status
        self._add(resource.logical_id, resource.type, status, reason)

    def _add(self, name: str, kind: str, status: str, reason: str) -> None:
        self.events.append(
            {
                "EventId": str(uuid.uuid4()),
                "LogicalResourceId": name,
                "ResourceType": kind,
                "Timestamp": _now(),
                "ResourceStatus": status,
                "ResourceStatusReason": reason,
            }
        )


def _pairs(found: dict[str, str], key: str, value: str) -> list[dict[str, str]]:
    return [{key: name, value: each} for name, each in found.items()]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
