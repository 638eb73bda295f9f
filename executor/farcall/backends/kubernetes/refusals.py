"""Status answers of Kubernetes's API, and connections that fail, as errors that say what to do."""

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
_GONE = 410
_CONFLICT = 409
_TEXT_CHARACTERS = 2000


class Call(NamedTuple):
    """What is asked, in the words of Kubernetes's roles.

    Attributes:
        verb: Such as ``create``.
        resource: Such as ``jobs.batch`` or ``pods/log``.
        namespace: Empty for what belongs to none.
        name: Of one object; empty for a list.
    """

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    @classmethod
    def of(cls, method: str, path: str, params: Mapping[str, Any]) -> Call:
        """Read it from a request."""
        found = _PATH.match(path)
        if found is None:
            return cls(method.lower(), path)
        group, name, part = found["group"] or "", found["name"] or "", found["part"] or ""
        resource = "".join(
            (
                found["resource"] or "namespaces",
                f".{group}" if group else "",
                f"/{part}" * bool(part),
            )
        )
        namespace = found["namespace"] or ""
        if not found["resource"]:  # the namespace itself
            namespace, name = "", namespace
        verb = _VERBS.get(method) or ("get" if name else "list")
        return cls("watch" if params.get("watch") else verb, resource, namespace, name)

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{name}"

    @property
    def grant(self) -> str:
        """The commands that allow it to somebody."""
        role = f"farcall-{self.resource.partition('.')[0].replace('/', '-')}"
        kind, where = ("role", f" -n {self.namespace}") if self.namespace else ("clusterrole", "")
        binding = f"{kind}binding"
        return (
            f"`kubectl create {kind} {role} --verb={self.verb} --resource={self.resource}{where}` "
            f"and `kubectl create {binding} {role} --{kind}={role} --user=NAME{where}` allow it"
        )


class KubeError(ServiceError):
    """Kubernetes's API refused a request or could not be reached.

    ``code`` is the reason of its Status, such as ``"NotFound"``; ``request_id`` stays empty.

    Attributes:
        call: What was asked.
        details: What the Status says of the object, or of wrong fields.
        retry_after_s: When it may be asked again, as it says; None where it does not.
        is_lasting: Whether another try meets the same, although nothing was answered.
    """

    def __init__(
        self,
        message: str,
        *,
        call: Call,
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, self.__dict__)

    @property
    def permission(self) -> str:
        """The verb and the resource, as roles have them."""
        return f"{self.call.verb} {self.call.resource}"

    @property
    def is_throttling(self) -> bool:
        """Whether it was refused for coming too fast, and nothing was done."""
        return self.status == 429

    @property
    def is_denial(self) -> bool:
        """Whether the server does not know the user, or does not give the right."""
        return self.status in (401, 403)

    @property
    def is_missing(self) -> bool:
        """Whether there is no such object."""
        return self.code == "NotFound"

    @property
    def is_outdated(self) -> bool:
        """Whether a version is too old to be gone on from, or a page's token."""
        return self.status == _GONE or self.code in ("Gone", "Expired")

    @property
    def may_pass(self) -> bool:
        """Whether the same request need not meet it again."""
        if not self.status:
            return not self.is_lasting
        if self.status in _PASSING or self.retry_after_s is not None:
            return True
        # Somebody else was at work on the same: who patches one version reads it again.
        is_conflict = self.status == _CONFLICT and self.code != "AlreadyExists"
        return (is_conflict and self.call.verb != "patch") or (
            self.status >= 500 and self.status != 501
        )


def _again(kind: type[KubeError], args: tuple[Any, ...], fields: dict[str, Any]) -> KubeError:
    made = kind.__new__(kind, *args)
    made.args = args
    made.__dict__.update(fields)
    return made


def place(connection: Connection) -> str:
    """Say which cluster is asked."""
    if not connection.context:
        return f"{connection.server} ({connection.origin})"
    return f"{connection.server} (context {connection.context} of {connection.origin})"


def refused(
    call: Call, connection: Connection, status: int, document: Any, retry_after: str | None
) -> KubeError:
    """Return the error of an answer that is no success.

    Args:
        call: What was asked.
        connection: Of whom.
        status: HTTP status.
        document: The answer: a Status, or whatever came in its place.
        retry_after: The header's value.
    """
    is_status = isinstance(document, dict) and document.get("kind") == "Status"
    said = document if is_status else {}
    code = str(said.get("reason") or "")
    message = str(said.get("message") or document or "nothing")[:_TEXT_CHARACTERS]
    where = f" in namespace {call.namespace}" if call.namespace else ""
    text = f"{call}{where} was refused: {message} ({code or status})"
    details = said.get("details")
    what_to_do = _STRANGE
    if is_status or status == 401:
        what_to_do = _remedy(call, connection, status, said)
    return KubeError(
        f"{text}; {what_to_do}" if what_to_do else text,
        call=call,
        code=code,
        status=status,
        sent=status >= 500,  # a refusal did nothing
        details=details if isinstance(details, dict) else None,
        retry_after_s=_seconds(retry_after),
    )


_STRANGE = (
    "that is no answer of Kubernetes's: see the server in the kubeconfig file, and its proxy"
)


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:  # a date, which Kubernetes does not send
        return None


def _remedy(call: Call, connection: Connection, status: int, said: Mapping[str, Any]) -> str:
    if status == 401:
        source = "its exec plugin's login" if connection.plugin else "its token or certificate"
        return f"{place(connection)} does not take the credentials: renew {source}, then try again"
    if status == 403 and said.get("reason") == "Forbidden":
        return call.grant
    if status == 404 and (said.get("details") or {}).get("kind") == "namespaces":
        return "set namespace to one that `kubectl get namespaces` shows"
    return ""


def broken(call: Call, connection: Connection, error: BaseException) -> KubeError:
    """Return the error of a request that was not answered."""
    server = place(connection)
    cause = getattr(error, "os_error", None) or error
    said = str(cause) or type(cause).__name__
    if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
        inner = getattr(error, "certificate_error", None) or cause
        text = f"no TLS with {server}: {inner}; see certificate-authority-data and "
        text += "tls-server-name in the kubeconfig file"
        return KubeError(f"{call}: {text}", call=call, sent=False, is_lasting=True)
    if isinstance(error, aiohttp.ClientConnectorError):
        number = getattr(cause, "errno", None) or 0
        said = os.strerror(number) if number > 0 else said
        text = f"nothing answers at {server}: {said}; see whether the cluster runs, the context "
        text += "is the one meant (`kubectl config get-contexts`), and a VPN or proxy is needed"
        return KubeError(f"{call}: {text}", call=call, sent=False)
    text = f"no answer of {server}: {said}; see the network"
    return KubeError(f"{call}: {text}", call=call)
