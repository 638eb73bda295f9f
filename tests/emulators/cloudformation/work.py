"""Creating, changing and deleting a stack: in the order of its references, and back on failure.

What does not need one another is begun together and made one after the other, so the events are
those of CloudFormation: of what was begun when something else failed, they say that it was
cancelled.

Sources:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/stack-failure-options.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-updatereplacepolicy.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-updating-stacks-update-behaviors.html
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.emulators.cloudformation.calls import Calls, RefusedPropertyError
from tests.emulators.cloudformation.errors import StackError
from tests.emulators.cloudformation.kinds import KINDS, Kind
from tests.emulators.cloudformation.stacks import Resource, Stack
from tests.emulators.cloudformation.template import Template

#: What a resource says that was begun when another one failed.
CANCELLED = "Resource creation cancelled"
_REPLACING = (
    "Requested update requires the creation of a new physical resource; hence creating one."
)
_KEPT = {"Retain", "RetainExceptOnCreate"}
_HANDLER_CODES = {
    "AccessDenied": "AccessDenied",
    "AccessDeniedException": "AccessDenied",
    "UnauthorizedOperation": "AccessDenied",
    "BucketAlreadyExists": "AlreadyExists",
    "BucketAlreadyOwnedByYou": "AlreadyExists",
    "EntityAlreadyExists": "AlreadyExists",
    "ResourceAlreadyExistsException": "AlreadyExists",
    "NoSuchEntity": "NotFound",
    "ClientException": "InvalidRequest",
}

_log = logging.getLogger("farcall")


class FailedError(Exception):
    """Some resources could not be made or changed."""

    def __init__(self, logical_ids: Iterable[str]) -> None:
        super().__init__(f"[{', '.join(logical_ids)}]")


class EndedError(Exception):
    """The local AWS emulator ends."""


class Work:
    """Works on one stack. For one thread.

    Args:
        stack: The stack.
        calls: Makes the API calls.
        lock: Held while something is changed that others read.
        ended: Set when the local AWS emulator ends.
    """

    def __init__(
        self, stack: Stack, calls: Calls, lock: threading.RLock, ended: threading.Event
    ) -> None:
        self._stack = stack
        self._calls = calls
        self._lock = lock
        self._ended = ended
        self._undo: list[Callable[[], None]] = []
        self._made: list[Resource] = []

    def run(self, task: Callable[[], None]) -> None:
        """Carry a task out; a mistake of this module's is logged, and seen in the stack."""
        try:
            task()
        except EndedError:
            return
        except Exception:
            _log.exception("The work on stack %s broke", self._stack.name)
            state = self._stack.status.partition("_")[0]
            self._turn(f"{state}_FAILED", "The emulated CloudFormation failed; see its log.")

    # --- create -----------------------------------------------------------------------------

    def create(self) -> None:
        """Make all resources; delete them again where one fails."""
        stack = self._stack
        try:
            self._shape(stack.template, stack.tags)
        except FailedError as failed:
            reason = f"The following resource(s) failed to create: {failed}. "
            if stack.disable_rollback:
                self._turn("CREATE_FAILED", reason)
                return
            self._turn("ROLLBACK_IN_PROGRESS", f"{reason}Rollback requested by user.")
            left = self._remove(stack.there, {"Retain"})
            if left:
                listed = f"The following resource(s) failed to delete: [{', '.join(left)}]. "
                self._turn("ROLLBACK_FAILED", listed)
            else:
                self._turn("ROLLBACK_COMPLETE")
            return
        self._tell()
        self._turn("CREATE_COMPLETE")

    # --- update -----------------------------------------------------------------------------

    def update(self, template: Template, given: dict[str, str], tags: dict[str, str]) -> None:
        """Change the stack to another template; change it back where something fails."""
        stack = self._stack
        try:
            self._shape(template, tags)
        except FailedError as failed:
            reason = f"The following resource(s) failed to update: {failed}. "
            self._turn("UPDATE_ROLLBACK_IN_PROGRESS", reason)
            self._roll_back()
            return
        gone = [each for each in stack.there if each.logical_id not in set(template.in_order())]
        with self._lock:
            stack.template, stack.given, stack.tags = template, given, tags
        self._tell()
        self._turn("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")
        kept = [
            each
            for each in stack.replaced
            if each.definition.get("UpdateReplacePolicy") not in _KEPT
        ]
        stack.replaced.clear()
        self._remove([*kept, *gone], _KEPT, replaced=kept)
        self._turn("UPDATE_COMPLETE")

    def _roll_back(self) -> None:
        try:
            for step in reversed(self._undo):
                step()
        except (ClientError, RefusedPropertyError) as error:
            self._turn("UPDATE_ROLLBACK_FAILED", _reason(error))
            return
        self._turn("UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS")
        self._stack.replaced.clear()
        self._remove(self._made, {"Retain"}, replaced=self._made)
        with self._lock:  # what was begun, and cancelled before there was anything of it
            for name, each in list(self._stack.resources.items()):
                if not each.physical_id:
                    del self._stack.resources[name]
        self._turn("UPDATE_ROLLBACK_COMPLETE")

    # --- delete -----------------------------------------------------------------------------

    def delete(self, spared: Collection[str] = ()) -> None:
        """Delete all resources but those that the template, or the caller, wants to keep."""
        stack = self._stack
        doomed = [each for each in stack.there if each.logical_id not in spared]
        left = self._remove(doomed, _KEPT)
        if left:
            listed = ", ".join(left)
            self._turn(
                "DELETE_FAILED", f"The following resource(s) failed to delete: [{listed}]. "
            )
            return
        self._turn("DELETE_COMPLETE")

    # --- steps ------------------------------------------------------------------------------

    def _shape(self, template: Template, tags: dict[str, str]) -> None:
        """Have the resources be as a template says, except those that are to go."""
        done: set[str] = set()
        order = template.in_order()
        while len(done) < len(order):
            wave = [n for n in order if n not in done and template.needed_by(n) <= done]
            begun = [(name, self._begin(template, name, tags)) for name in wave]
            for at, (name, step) in enumerate(begun):
                if self._ended.is_set():
                    raise EndedError
                if step is not None and not step():
                    self._cancel(name for name, step in begun[at + 1 :] if step is not None)
                    raise FailedError([name])
            done.update(wave)

    def _begin(
        self, template: Template, name: str, tags: dict[str, str]
    ) -> Callable[[], bool] | None:
        """Note that a resource is begun; return what is still to be done, if anything."""
        definition = template.resources[name]
        properties = template.evaluate(definition.get("Properties") or {}, self._look)
        old = self._stack.resources.get(name)
        new = Resource(name, definition["Type"], definition, properties, template.needed_by(name))
        if old is None or old.status == "DELETE_COMPLETE":
            with self._lock:
                self._stack.resources[name] = new
            self._note(new, "CREATE_IN_PROGRESS")
            return lambda: self._create(new, tags)
        kind = KINDS[old.type]
        if old.type != new.type or kind.replaces(old.properties, properties):
            self._note(old, "UPDATE_IN_PROGRESS", _REPLACING)
            return lambda: self._replace(old, new, tags)
        if old.properties == properties and tags == self._stack.tags:
            old.definition, old.needs = definition, new.needs
            return None
        self._note(old, "UPDATE_IN_PROGRESS")
        return lambda: self._change(old, new, tags)

    def _create(self, resource: Resource, tags: dict[str, str], verb: str = "CREATE") -> bool:
        self._made.append(resource)
        kind = KINDS[resource.type]

        def make() -> None:
            kind.check(resource.properties)
            name = kind.name(self._stack.name, resource)
            kind.create(self._calls, resource, name, tags)

        if not self._tried(make, resource, f"{verb}_FAILED"):
            return False
        self._note(resource, f"{verb}_IN_PROGRESS", "Resource creation Initiated")
        self._note(resource, f"{verb}_COMPLETE")
        return True

    def _replace(self, old: Resource, new: Resource, tags: dict[str, str]) -> bool:
        own = KINDS[new.type].named_by
        if own and new.properties.get(own) and new.properties[own] == old.properties.get(own):
            name = new.properties[own]
            text = (
                "CloudFormation cannot update a stack when a custom-named resource requires "
                f"replacing. Rename {name} and update the stack again."
            )
            self._note(old, "UPDATE_FAILED", text)
            return False
        with self._lock:
            self._stack.resources[old.logical_id] = new
        self._stack.replaced.append(old)

        def restore() -> None:
            with self._lock:
                self._stack.resources[old.logical_id] = old
            self._note(old, "UPDATE_COMPLETE")

        self._undo.append(restore)
        return self._create(new, tags, "UPDATE")

    def _change(self, resource: Resource, new: Resource, tags: dict[str, str]) -> bool:
        kind = KINDS[resource.type]
        before = (resource.properties, resource.definition, resource.needs)

        def change() -> None:
            kind.check(new.properties)
            kind.update(self._calls, resource, new.properties, tags)

        def restore() -> None:
            self._note(resource, "UPDATE_IN_PROGRESS")
            resource.properties = new.properties
            kind.update(self._calls, resource, before[0], self._stack.tags)
            resource.properties, resource.definition, resource.needs = before
            self._note(resource, "UPDATE_COMPLETE")

        self._undo.append(restore)
        if not self._tried(change, resource, "UPDATE_FAILED"):
            return False
        resource.properties, resource.definition = new.properties, new.definition
        resource.needs = new.needs
        self._note(resource, "UPDATE_COMPLETE")
        return True

    def _cancel(self, logical_ids: Iterable[str]) -> None:
        for name in logical_ids:
            resource = self._stack.resources[name]
            verb = resource.status.partition("_")[0]
            reason = CANCELLED if verb == "CREATE" else "Resource update cancelled"
            self._note(resource, f"{verb}_FAILED", reason)

    def _remove(
        self,
        doomed: Collection[Resource],
        kept: Collection[str],
        replaced: Collection[Resource] = (),
    ) -> list[str]:
        """Delete resources, each before those that it needs.

        Args:
            doomed: Which ones.
            kept: The deletion policies that spare a resource.
            replaced: Those whose deletion policy does not count.

        Returns:
            Those that could not be deleted, and are still needed by them.
        """
        left, failed = list(doomed), []
        while left:
            needed = {name for each in left for name in each.needs}
            ready = [r for r in left if r.logical_id not in needed or r in replaced]
            for resource in reversed(ready or left):
                if self._ended.is_set():
                    raise EndedError
                left.remove(resource)
                policy = resource.definition.get("DeletionPolicy")
                if resource not in replaced and policy in kept and resource.physical_id:
                    self._note(resource, "DELETE_SKIPPED")
                elif not self._delete(resource):
                    failed.append(resource.logical_id)
                    left = [each for each in left if each.logical_id not in resource.needs]
        return failed

    def _delete(self, resource: Resource) -> bool:
        self._note(resource, "DELETE_IN_PROGRESS")
        kind: Kind = KINDS[resource.type]
        if resource.physical_id and not self._tried(
            lambda: kind.delete(self._calls, resource, self._ended), resource, "DELETE_FAILED"
        ):
            return False
        self._note(resource, "DELETE_COMPLETE")
        return True

    def _tried(self, step: Callable[[], None], resource: Resource, status: str) -> bool:
        """Carry out a step; note why it failed, if it does."""
        try:
            step()
        except (BotoCoreError, ClientError, OSError, RefusedPropertyError, StackError) as error:
            self._note(resource, status, _reason(error))
            return False
        except KeyError as error:
            text = f"Properties validation failed: required key [{error.args[0]}] not found"
            self._note(resource, status, text)
            return False
        return True

    # --- telling ----------------------------------------------------------------------------

    def _look(self, name: str, attribute: str | None) -> Any:
        resource = self._stack.resources[name]
        if attribute is None:
            return resource.physical_id
        if attribute not in resource.attributes:
            raise StackError(
                f"Template error: resource {name} does not support attribute type {attribute} in "
                "Fn::GetAtt"
            )
        return resource.attributes[attribute]

    def _tell(self) -> None:
        """Evaluate the outputs."""
        template, outputs = self._stack.template, {}
        for name, output in template.outputs.items():
            if "Condition" not in output or template.condition(output["Condition"]):
                outputs[name] = str(template.evaluate(output["Value"], self._look))
        with self._lock:
            self._stack.outputs = outputs

    def _turn(self, status: str, reason: str | None = None) -> None:
        with self._lock:
            self._stack.turn(status, reason)

    def _note(self, resource: Resource, status: str, reason: str | None = None) -> None:
        with self._lock:
            self._stack.note(resource, status, reason)


def _reason(error: Exception) -> str:
    """Say why a call was refused, as a handler of CloudFormation does."""
    token = uuid.uuid4()
    if not isinstance(error, ClientError):
        return (
            f'Resource handler returned message: "{error}" (RequestToken: {token}, '
            "HandlerErrorCode: InvalidRequest)"
        )
    found, metadata = error.response["Error"], error.response["ResponseMetadata"]
    code = _HANDLER_CODES.get(found["Code"], "GeneralServiceException")
    if "already exists" in found["Message"]:
        code = "AlreadyExists"
    return (
        f'Resource handler returned message: "{found["Message"]} (Service: '
        f"{_service(error)}, Status Code: {metadata.get('HTTPStatusCode')}, Request ID: "
        f'{metadata.get("RequestId", token)})" (RequestToken: {token}, '
        f"HandlerErrorCode: {code})"
    )


def _service(error: ClientError) -> str:
    """Name the service of an operation, as far as its name tells."""
    name = error.operation_name
    for word, service in (
        ("Bucket", "S3"),
        ("PublicAccess", "S3"),
        ("Role", "Iam"),
        ("InstanceProfile", "Iam"),
        ("Log", "CloudWatchLogs"),
        ("Retention", "CloudWatchLogs"),
        ("SecurityGroup", "Ec2"),
        ("LaunchTemplate", "Ec2"),
    ):
        if word in name:
            return service
    return "Batch"
