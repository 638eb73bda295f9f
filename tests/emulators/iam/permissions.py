"""Authorization of requests with IAM policies.

Users, roles and policies are stored in moto, and `farcall_local.services.admission` identifies the
caller. No policy applies to the root user.

Not evaluated: permissions boundaries, session policies, resource-based policies, and trust
policies for AssumeRole in STS.

Source:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from moto.iam.models import iam_backends

from farcall_local import names
from farcall_local.services.error_responses import Reason, RefusedError
from tests.emulators.iam import actions
from tests.emulators.iam.actions import Call
from tests.emulators.iam.policies import Need, UnknownElementError, allows


class _Caller(NamedTuple):
    arn: str
    policies: list[dict[str, Any]]


class Guard:
    """Checks each request. Thread-safe.

    Args:
        locks: Held, in this order, while moto's IAM and STS are read.
    """

    def __init__(self, *locks: AbstractContextManager[Any]) -> None:
        self._iam, self._sts = locks

    def admit(self, call: Call, identity: Any) -> RefusedError | None:
        """Check a request.

        Args:
            call: The request.
            identity: moto's access key that signed the request.

        Returns:
            The error to return instead of 404, if the caller must not learn that an object does
            not exist; otherwise None.

        Raises:
            RefusedError: A permission is missing.
        """
        with self._iam, self._sts:
            caller = _Caller(identity.arn, _documents(identity.collect_policies()))
        for need in actions.needs(call):
            if need.resource == actions.BATCH_ROLE and self._has_batch_role():
                continue  # it is created only once per account
            text = _objection(caller, need)
            if text is not None:
                raise RefusedError(Reason.DENIED, text)
        listing = actions.listing(call)
        text = _objection(caller, listing) if listing is not None else None
        return RefusedError(Reason.DENIED, text) if text else None

    def _has_batch_role(self) -> bool:
        with self._iam:
            roles = list(iam_backends[names.ACCOUNT_ID]["aws"].roles.values())
        return any(role.arn == actions.BATCH_ROLE for role in roles)

    def objection(self, role_arn: str, session: str, need: Need) -> str | None:
        """Return AWS's error message if a role lacks a permission, or None.

        Args:
            session: Name of the role session.
        """
        role = role_arn.rpartition("/")[2]
        backend = iam_backends[names.ACCOUNT_ID]["aws"]
        with self._iam:
            own = [backend.get_role_policy(role, n)[1] for n in backend.list_role_policies(role)]
            policies = _documents([*own, *backend.list_attached_role_policies(role)[0]])
        arn = f"arn:aws:sts::{names.ACCOUNT_ID}:assumed-role/{role}/{session}"
        return _objection(_Caller(arn, policies), need)


def _documents(policies: Iterable[Any]) -> list[dict[str, Any]]:
    """Parse policies in moto's formats: inline policies of roles and users, managed policies."""
    texts = []
    for policy in policies:
        if isinstance(policy, str):
            texts.append(policy)
        elif isinstance(policy, Mapping):
            texts.append(policy["policy_document"])
        else:
            texts.append(next(v.document for v in policy.versions if v.is_default))
    return [json.loads(text) for text in texts]


def _objection(caller: _Caller, need: Need) -> str | None:
    """Return AWS's error message if a permission is missing."""
    try:
        if allows(caller.policies, need):
            return None
    except UnknownElementError as error:
        return f"farcall's local AWS emulator does not evaluate {error}, which a policy contains."
    text = f"User: {caller.arn} is not authorized to perform: {need.action}"
    if need.resource != "*":
        text += f" on resource: {need.resource}"
    return f"{text} because no identity-based policy allows the {need.action} action"
