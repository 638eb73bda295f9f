"""Access rights in the local Kubernetes emulator: tokens, Roles and access reviews.

The emulator has two users, each with a token: an administrator, and a user whose rights come from
RoleBindings.

Source: https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from __future__ import annotations

import hmac
from typing import Any, NamedTuple

from farcall_local.kubernetes.errors import ForbiddenError, UnauthorizedError
from farcall_local.kubernetes.kinds import NAMESPACE, ROLE, ROLE_BINDING, Target
from farcall_local.kubernetes.store import Store

ADMINISTRATOR = "farcall-administrator"
#: User, and kubeconfig context, with no rights except those of Roles.
RESTRICTED = "restricted"


class Action(NamedTuple):
    """An action, as Roles name it.

    Attributes:
        verb: Such as ``create``.
        group: API group.
        resource: With its subresource: ``pods/log``.
        namespace: Empty for all namespaces.
    """

    verb: str
    group: str
    resource: str
    namespace: str


class Access:
    """Users, and their rights.

    Args:
        store: Holds Roles and RoleBindings.
        tokens: Token to user name.
    """

    def __init__(self, store: Store, tokens: dict[str, str]) -> None:
        self._store = store
        self._tokens = tokens

    def user(self, authorization: str) -> str:
        """Return the sender of a request.

        Raises:
            UnauthorizedError: The token is unknown.
        """
        for token, user in self._tokens.items():
            if hmac.compare_digest(f"Bearer {token}".encode(), authorization.encode()):
                return user
        raise UnauthorizedError("Unauthorized")

    def check(self, user: str, target: Target, *, has_roles: bool = True) -> None:
        """Refuse a request that the user may not make.

        Args:
            user: The sender.
            target: What the request is about.
            has_roles: Whether the server has read its Roles since its start.

        Raises:
            ForbiddenError: The right is missing.
        """
        group, name = target.kind.group, target.name
        # A namespace belongs to itself, so a Role in it can give the right to read it.
        namespace = name if target.kind is NAMESPACE else target.namespace
        action = Action(target.verb, group, target.resource, namespace)
        if (has_roles or user == ADMINISTRATOR) and self.allows(user, action):
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

    def allows(self, user: str, action: Action) -> bool:
        """Return whether a user has the right to an action."""
        if user == ADMINISTRATOR:
            return True
        if not action.namespace:  # the emulator has no ClusterRoles
            return False
        for binding in self._store.list(ROLE_BINDING, action.namespace):
            name = binding.get("roleRef", {}).get("name", "")
            role = self._store.get(ROLE, action.namespace, name) or {}
            subjects = binding.get("subjects") or ()
            if any((each["kind"], each["name"]) == ("User", user) for each in subjects) and any(
                _permits(rule, action) for rule in role.get("rules") or ()
            ):
                return True
        return False

    def review(self, user: str, document: dict[str, Any]) -> dict[str, Any]:
        """Return a SelfSubjectAccessReview with its status."""
        wanted = (document.get("spec") or {}).get("resourceAttributes") or {}
        resource = "/".join(
            filter(None, (wanted.get("resource", ""), wanted.get("subresource", "")))
        )
        verb, group = wanted.get("verb", ""), wanted.get("group", "")
        action = Action(verb, group, resource, wanted.get("namespace", ""))
        return {**document, "status": {"allowed": self.allows(user, action)}}


def _permits(rule: dict[str, Any], action: Action) -> bool:
    wanted = {
        "verbs": action.verb,
        "apiGroups": action.group,
        "resources": action.resource,
    }
    return all({"*", value} & set(rule.get(field) or ()) for field, value in wanted.items())
