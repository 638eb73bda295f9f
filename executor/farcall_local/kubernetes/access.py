"""Who may do what in the local Kubernetes emulator: tokens, roles and access reviews.

The sender of a request is known by a token. The first is an administrator's; others have what
Roles give them, by RoleBindings that name them as User, Group or ServiceAccount.

Source: https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

from farcall_local.kubernetes.errors import ForbiddenError, UnauthorizedError
from farcall_local.kubernetes.kinds import ROLE, ROLE_BINDING
from farcall_local.kubernetes.paths import Target
from farcall_local.kubernetes.store import Store

Document = dict[str, Any]

MASTERS = "system:masters"
_ACCOUNT = "system:serviceaccount:"


class User(NamedTuple):
    """Who sends a request."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)

    @classmethod
    def of(cls, name: str) -> User:
        """Return somebody; ``system:serviceaccount:<namespace>:<name>`` is a service account."""
        groups = ["system:authenticated"]
        if name.startswith(_ACCOUNT):
            namespace = name.removeprefix(_ACCOUNT).partition(":")[0]
            groups += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        return cls(name, tuple(groups))


class Action(NamedTuple):
    """What somebody wants to do, as rights name it.

    Attributes:
        verb: Such as ``create``.
        group: API group.
        resource: With its subresource: ``pods/log``.
        namespace: Empty for all.
        name: Empty for all, or where there is none yet.
    """

    verb: str
    group: str
    resource: str
    namespace: str
    name: str = ""


class Access:
    """Tokens, and what those who have them may do."""

    def __init__(self, store: Store, administrator: str) -> None:
        self._store = store
        self._users = {
            administrator: User("farcall-administrator", (MASTERS, "system:authenticated"))
        }

    def add(self, name: str, token: str = "") -> str:
        """Return a token for somebody.

        Args:
            name: Of the user; ``system:serviceaccount:<namespace>:<name>`` is a service account.
            token: The token, a new one by default.
        """
        token = token or secrets.token_urlsafe(32)
        self._users[token] = User.of(name)
        return token

    def user(self, authorization: str) -> User:
        """Return the sender of a request.

        Raises:
            UnauthorizedError: Nobody has that token.
        """
        scheme, _, given = authorization.partition(" ")
        for token, user in self._users.items():
            same = hmac.compare_digest(token.encode(), given.strip().encode())
            if same and scheme.lower() == "bearer":
                return user
        raise UnauthorizedError

    def check(
        self, user: User, target: Target, selected_name: str = "", *, has_roles: bool = True
    ) -> None:
        """Refuse what a user may not do.

        Args:
            user: The sender.
            target: What he wants.
            selected_name: The only name that a list or watch selects, if it does.
            has_roles: Whether the server has read its roles yet.

        Raises:
            ForbiddenError: He may not.
        """
        name = target.name or selected_name
        verb, group = target.verb, target.kind.group
        action = Action(verb, group, target.resource, target.namespace, name)
        if (has_roles or MASTERS in user.groups) and self.allows(user, action):
            return
        named = f' "{name}"' if name else ""
        place = f'in the namespace "{target.namespace}"' if target.namespace else ""
        raise ForbiddenError(
            f'{target.kind.resource}{named} is forbidden: User "{user.name}" cannot {verb} '
            f'resource "{target.resource}" in API group "{group}" '
            f"{place or 'at the cluster scope'}",
            name=name,
            group=group,
            kind=target.kind.plural,
        )

    def allows(self, user: User, action: Action) -> bool:
        """Return whether somebody may do something."""
        if MASTERS in user.groups:
            return True
        return any(_permits(rule, action) for rule in self.rules(user, action.namespace))

    def rules(self, user: User, namespace: str) -> Iterator[Document]:
        """Return the rules of all roles that somebody has in a namespace."""
        if MASTERS in user.groups:
            yield {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            return
        if not namespace:  # there are no roles of the whole cluster
            return
        for binding in self._store.list(ROLE_BINDING, namespace):
            role = self._store.get(ROLE, namespace, binding.get("roleRef", {}).get("name", ""))
            subjects = binding.get("subjects") or ()
            if role and any(_is_meant(subject, user, namespace) for subject in subjects):
                yield from role.get("rules") or ()


def review(access: Access, user: User, kind: str, spec: Document) -> Document:
    """Answer a SelfSubjectAccessReview, SelfSubjectRulesReview or SelfSubjectReview.

    Returns:
        Its status.
    """
    if kind == "SelfSubjectReview":
        return {"userInfo": {"username": user.name, "groups": list(user.groups)}}
    if kind == "SelfSubjectRulesReview":
        rules = list(access.rules(user, spec.get("namespace", "")))
        open_ = {"verbs": ["get"], "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*"]}
        return {"resourceRules": rules, "nonResourceRules": [open_], "incomplete": False}
    if "nonResourceAttributes" in spec:
        return {"allowed": True}
    wanted = spec.get("resourceAttributes") or {}
    resource = wanted.get("resource", "")
    if wanted.get("subresource"):
        resource += f"/{wanted['subresource']}"
    verb, group = wanted.get("verb", ""), wanted.get("group", "")
    place, name = wanted.get("namespace", ""), wanted.get("name", "")
    return {"allowed": access.allows(user, Action(verb, group, resource, place, name))}


def _is_meant(subject: Document, user: User, namespace: str) -> bool:
    name = subject.get("name", "")
    if subject.get("kind") == "ServiceAccount":
        return user.name == f"{_ACCOUNT}{subject.get('namespace') or namespace}:{name}"
    if subject.get("kind") == "Group":
        return name in user.groups
    return subject.get("kind") == "User" and name == user.name


def _permits(rule: Document, action: Action) -> bool:
    subresource = action.resource.partition("/")[2]
    resources = ["*", action.resource, *([f"*/{subresource}"] if subresource else [])]
    names = rule.get("resourceNames")
    return (
        _has(rule, "verbs", ["*", action.verb])
        and _has(rule, "apiGroups", ["*", action.group])
        and _has(rule, "resources", resources)
        and (not names or action.name in names)
    )


def _has(rule: Document, field: str, any_of: list[str]) -> bool:
    return any(each in (rule.get(field) or ()) for each in any_of)
