"""Access rights of the local Kubernetes emulator: tokens, Roles, access reviews.

The emulator has two users, each with a token: an administrator, and a user whose rights come from
RoleBindings.

Source: https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Any

from tests.emulators.kubernetes.errors import ForbiddenError, UnauthorizedError
from tests.emulators.kubernetes.kinds import NAMESPACE, ROLE, ROLE_BINDING, Target
from tests.emulators.kubernetes.store import Store

ADMINISTRATOR = "farcall-administrator"
#: User and kubeconfig context whose only rights come from Roles.
RESTRICTED = "restricted"


class Access:
    """Users and their rights.

    Args:
        store: Holds Roles and RoleBindings.
        tokens: Token to user name.
    """

    def __init__(self, store: Store, tokens: dict[str, str]) -> None:
        self._store = store
        self._tokens = tokens
        self._is_starting = False
        self._known: set[tuple[str, str]] = set()

    def restart(self) -> None:
        """Deny the first request of each verb and resource, as a starting server does.

        A real one denies all requests until it has read the Roles, for about a second.
        Administrators have all rights without a Role.
        """
        self._is_starting = True
        self._known.clear()

    def user(self, authorization: str) -> str:
        """Return the sender of a request.

        Raises:
            UnauthorizedError: The token is unknown.
        """
        for token, user in self._tokens.items():
            if hmac.compare_digest(f"Bearer {token}".encode(), authorization.encode()):
                return user
        raise UnauthorizedError("Unauthorized")

    def check(self, user: str, target: Target) -> None:
        """Reject a request that the user may not make.

        Raises:
            ForbiddenError: The right is missing.
        """
        group, name = target.kind.group, target.name
        # A namespace belongs to itself, so a Role in it can give the right to read it.
        namespace = name if target.kind is NAMESPACE else target.namespace
        if self._has_read_roles(user, target) and self._allows(
            user, namespace, target.verb, group, target.resource
        ):
            return
        named = f' "{name}"' if name else ""
        place = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        raise ForbiddenError(
            f'{target.kind.resource}{named} is forbidden: User "{user}" cannot {target.verb} '
            f'resource "{target.resource}" in API group "{group}" {place}',
            name=name,
            group=group,
            kind=target.kind.plural,
        )

    def _has_read_roles(self, user: str, target: Target) -> bool:
        request = (target.verb, target.resource)
        is_known = request in self._known
        self._known.add(request)
        return is_known or not self._is_starting or user == ADMINISTRATOR

    def review(self, user: str, document: dict[str, Any]) -> dict[str, Any]:
        """Return a SelfSubjectAccessReview with its status."""
        wanted = (document.get("spec") or {}).get("resourceAttributes") or {}
        names = ("namespace", "verb", "group", "resource", "subresource")
        namespace, verb, group, resource, part = (wanted.get(name, "") for name in names)
        resource = f"{resource}/{part}" if part else resource
        allowed = self._allows(user, namespace, verb, group, resource)
        return {**document, "status": {"allowed": allowed}}

    def _allows(self, user: str, namespace: str, verb: str, group: str, resource: str) -> bool:
        """Return whether a user has a right; the emulator has no ClusterRoles."""
        if user == ADMINISTRATOR:
            return True
        wanted = {"verbs": verb, "apiGroups": group, "resources": resource}
        return bool(namespace) and any(
            all({"*", value} & set(rule.get(field) or ()) for field, value in wanted.items())
            for rule in self._rules(user, namespace)
        )

    def _rules(self, user: str, namespace: str) -> Iterator[dict[str, Any]]:
        for binding in self._store.list(ROLE_BINDING, namespace):
            subjects = binding.get("subjects") or ()
            if any((each["kind"], each["name"]) == ("User", user) for each in subjects):
                role = self._store.get(ROLE, namespace, binding["roleRef"]["name"]) or {}
                yield from role.get("rules") or ()
