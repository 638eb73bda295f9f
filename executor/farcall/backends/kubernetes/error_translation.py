"""Errors for the Kubernetes API's status responses and for failed connections."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp

from farcall.backends.kubernetes.kubeconfig import Connection
from farcall.model.errors import ServiceError

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?(?:/(?P<resource>[a-z]+))?"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?$"
)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_PASSING = (408, 429)
_FORBIDDEN = "Forbidden"
_MISSING_RIGHT = re.compile(r'User ".*" cannot [a-z]+ (resource|path) ')
"""Text of an authorizer; quotas and admission rules also respond with 403.

https://github.com/kubernetes/kubernetes/blob/v1.36.0/staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go
"""

_OVER_QUOTA = "exceeded quota: "
_TERMINATING = "NamespaceTerminating"
_GONE = 410
_CONFLICT = 409
_TEXT_CHARACTERS = 2000


class Call(NamedTuple):
    """An API request, in the terms of Kubernetes's roles.

    Attributes:
        verb: Such as ``create``.
        resource: Such as ``jobs.batch`` or ``pods/log``.
        namespace: Empty for cluster-wide resources.
        name: Name of one object; empty for a list.
    """

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    @classmethod
    def of(cls, method: str, path: str, params: Mapping[str, Any]) -> Call:
        """Parse a request."""
        match = _PATH.match(path)
        if match is None:
            return cls(method.lower(), path)
        group, name, part = match["group"] or "", match["name"] or "", match["part"] or ""
        resource = "".join(
            (
                match["resource"] or "namespaces",
                f".{group}" if group else "",
                f"/{part}" * bool(part),
            )
        )
        namespace = match["namespace"] or ""
        if not match["resource"]:  # the namespace itself
            namespace, name = "", namespace
        verb = _VERBS.get(method) or ("get" if name else "list")
        return cls("watch" if params.get("watch") else verb, resource, namespace, name)

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{name}"

    @property
    def grant(self) -> str:
        """The commands that grant this request to a user."""
        role = f"farcall-{self.resource.partition('.')[0].replace('/', '-')}"
        kind, where = ("role", f" -n {self.namespace}") if self.namespace else ("clusterrole", "")
        binding = f"{kind}binding"
        return (
            f"run `kubectl create {kind} {role} --verb={self.verb} "
            f"--resource={self.resource}{where}` and `kubectl create {binding} {role} "
            f"--{kind}={role} --user=NAME{where}` to allow it"
        )


_NO_CALL = Call("", "")


class KubeError(ServiceError):
    """The Kubernetes API refused a request or could not be reached.

    ``code`` is the reason of its Status, such as ``"NotFound"``; ``request_id`` stays empty.

    Attributes:
        call: The request.
        details: The Status's details about the object, or about wrong fields.
        retry_after_s: Delay in seconds before a retry, if the server returns one.
        is_lasting: Whether a retry would fail again, although there was no response.
    """

    def __init__(
        self,
        message: str,
        *,
        call: Call = _NO_CALL,  # pickle sets the attributes later
        code: str = "",
        status: int = 0,
        sent: bool = True,
        details: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
        is_lasting: bool = False,
    ) -> None:
        super().__init__(message, operation=str(call), code=code, status=status, sent=sent)
        self.call = call
        self.details = dict(details or {})
        self.retry_after_s = retry_after_s
        self.is_lasting = is_lasting

    @property
    def permission(self) -> str:
        """The verb and the resource, as written in roles."""
        return f"{self.call.verb} {self.call.resource}"

    @property
    def is_throttling(self) -> bool:
        """Whether the request was throttled, so that it had no effect."""
        return self.status == 429

    @property
    def is_denial(self) -> bool:
        """Whether the server does not know the user, or the user lacks a permission."""
        return self.status == 401 or (self.status == 403 and not self.is_rejection)

    @property
    def is_rejection(self) -> bool:
        """Whether a quota, an admission rule or the namespace's state forbids the object."""
        is_forbidden = self.status == 403 and self.code == _FORBIDDEN
        is_write = self.call.verb in _VERBS.values()
        return is_forbidden and is_write and not _MISSING_RIGHT.search(str(self))

    @property
    def is_over_quota(self) -> bool:
        """Whether the object exceeds a quota of its namespace."""
        return self.is_rejection and _OVER_QUOTA in str(self)

    @property
    def is_terminating(self) -> bool:
        """Whether the object's namespace is being deleted."""
        causes = self.details.get("causes") or ()
        return any(each.get("reason") == _TERMINATING for each in causes)

    @property
    def is_missing(self) -> bool:
        """Whether the object does not exist."""
        return self.code == "NotFound"

    @property
    def is_outdated(self) -> bool:
        """Whether a resource version or a page token is too old to continue from."""
        return self.status == _GONE or self.code in ("Gone", "Expired")

    @property
    def may_pass(self) -> bool:
        """Whether a retry of the same request may succeed."""
        if not self.status:
            return not self.is_lasting
        if self.status in _PASSING or self.retry_after_s is not None:
            return True
        # Another client modified the same object: a patch of one version must read it again.
        is_conflict = self.status == _CONFLICT and self.code != "AlreadyExists"
        return (is_conflict and self.call.verb != "patch") or (
            self.status >= 500 and self.status != 501
        )


def place(connection: Connection) -> str:
    """Return the cluster's server and context for errors."""
    if not connection.context:
        return f"{connection.server} ({connection.origin})"
    return f"{connection.server} (context {connection.context} of {connection.origin})"


def refused(
    call: Call, connection: Connection, status: int, document: Any, retry_after: str | None
) -> KubeError:
    """Return the error of an unsuccessful response.

    Args:
        call: The request.
        connection: The cluster.
        status: HTTP status.
        document: The response: a Status, or any other document.
        retry_after: The header's value.
    """
    is_status = isinstance(document, dict) and document.get("kind") == "Status"
    report = document if is_status else {}
    code = str(report.get("reason") or "")
    message = str(report.get("message") or document or "nothing")[:_TEXT_CHARACTERS]
    where = f" in namespace {call.namespace}" if call.namespace else ""
    details = report.get("details")
    error = KubeError(
        f"{call}{where} was refused: {message} ({code or status})",
        call=call,
        code=code,
        status=status,
        sent=status >= 500,  # a refusal has no effect
        details=details if isinstance(details, dict) else None,
        retry_after_s=_seconds(retry_after),
    )
    is_known = is_status or status == 401
    remedy = _remedy(error, connection) if is_known else _NOT_KUBERNETES
    if remedy:
        error.args = (f"{error}; {remedy}",)
    return error


_NOT_KUBERNETES = (
    "this is not a response of Kubernetes: check the server in the kubeconfig file, and its proxy"
)


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:  # a date, which Kubernetes does not send
        return None


def _remedy(error: KubeError, connection: Connection) -> str:
    if error.status == 401:
        source = "its exec plugin's login" if connection.plugin else "its token or certificate"
        return f"{place(connection)} rejects the credentials: renew {source}, then try again"
    if error.is_terminating:
        return "set namespace to another one, or create it again when it is deleted"
    if error.is_over_quota:
        return (
            "wait for other jobs, delete finished ones, or ask for a higher quota (kubectl "
            f"describe quota -n {error.call.namespace})"
        )
    if error.is_rejection:
        return (
            "change the settings that the message names, or ask the cluster's administrator "
            "about the rule"
        )
    if error.code == _FORBIDDEN:
        return error.call.grant
    if error.status == 404 and error.details.get("kind") == "namespaces":
        return "set namespace to one that `kubectl get namespaces` lists"
    return ""


def broken(call: Call, connection: Connection, error: BaseException) -> KubeError:
    """Return the error of a request without a response."""
    server = place(connection)
    cause = getattr(error, "os_error", None) or error
    why = str(cause) or type(cause).__name__
    if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
        inner = getattr(error, "certificate_error", None) or cause
        text = f"TLS with {server} failed: {inner}; check certificate-authority-data and "
        text += "tls-server-name in the kubeconfig file"
        return KubeError(f"{call}: {text}", call=call, sent=False, is_lasting=True)
    if isinstance(error, aiohttp.ClientConnectorError):
        number = getattr(cause, "errno", None) or 0
        why = os.strerror(number) if number > 0 else why
        text = (
            f"cannot connect to {server}: {why}; check that the cluster is running, that the "
            "context "
        )
        text += (
            "is the intended one (`kubectl config get-contexts`), and whether a VPN or proxy "
            "is required"
        )
        return KubeError(f"{call}: {text}", call=call, sent=False)
    text = f"no response from {server}: {why}; check the network"
    return KubeError(f"{call}: {text}", call=call)
