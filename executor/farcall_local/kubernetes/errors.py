"""Status objects of refused requests, worded like those of the real API server.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
    https://github.com/kubernetes/apimachinery, pkg/api/errors/errors.go
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from farcall_local.kubernetes.kinds import Kind


class Cause(NamedTuple):
    """What is wrong with one field.

    Attributes:
        reason: ``FieldValueRequired``, ``FieldValueInvalid``, ``FieldValueNotSupported``, ...
        message: What stands behind the field's name in the Status' message.
        field: Its path, such as ``spec.completions``.
    """

    reason: str
    message: str
    field: str


class StatusError(Exception):
    """A refusal.

    Attributes:
        code: HTTP status.
        reason: Machine-readable reason, such as ``NotFound``.
        details: The Status' ``details``.
    """

    code = 500
    reason = "InternalError"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = {name: value for name, value in details.items() if value}

    def status(self) -> dict[str, Any]:
        """Return the Status object."""
        details = {"details": self.details} if self.details else {}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            **details,
            "code": self.code,
        }


class BadRequestError(StatusError):
    """The request cannot be understood."""

    code = 400
    reason = "BadRequest"


class UnauthorizedError(StatusError):
    """The sender is nobody the server knows."""

    code = 401
    reason = "Unauthorized"

    def __init__(self) -> None:
        super().__init__("Unauthorized")


class ForbiddenError(StatusError):
    """The sender may not do that, or a quota or an admission rule does not let the object in."""

    code = 403
    reason = "Forbidden"


class NotFoundError(StatusError):
    """There is no such object."""

    code = 404
    reason = "NotFound"

    @classmethod
    def of(cls, kind: Kind, name: str) -> NotFoundError:
        """Return the refusal for an object's name."""
        return cls(
            f'{kind.resource} "{name}" not found', name=name, group=kind.group, kind=kind.plural
        )


class AlreadyExistsError(StatusError):
    """There is an object of that name."""

    code = 409
    reason = "AlreadyExists"

    @classmethod
    def of(cls, kind: Kind, name: str) -> AlreadyExistsError:
        """Return the refusal for an object's name."""
        return cls(
            f'{kind.resource} "{name}" already exists',
            name=name,
            group=kind.group,
            kind=kind.plural,
        )


class ConflictError(StatusError):
    """The object is no longer what the sender has seen."""

    code = 409
    reason = "Conflict"

    @classmethod
    def of(cls, kind: Kind, name: str, why: str = "") -> ConflictError:
        """Return the refusal for an object's name."""
        why = why or (
            "the object has been modified; please apply your changes to the latest version and "
            "try again"
        )
        return cls(
            f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}',
            name=name,
            group=kind.group,
            kind=kind.plural,
        )


class ExpiredError(StatusError):
    """That far back nothing is remembered: 410, after which a client lists again."""

    code = 410
    reason = "Expired"


class TooLargeVersionError(StatusError):
    """A version that is not there yet, which a real server waits for in vain."""

    code = 504
    reason = "Timeout"

    def __init__(self, wanted: str, current: int) -> None:
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        super().__init__(
            f"Timeout: Too large resource version: {wanted}, current: {current}",
            causes=[cause],
            retryAfterSeconds=1,
        )


class UnsupportedMediaTypeError(StatusError):
    """A patch, or a body, of a kind the server does not take."""

    code = 415
    reason = "UnsupportedMediaType"


class NotAcceptableError(StatusError):
    """An answer of a kind the server does not give."""

    code = 406
    reason = "NotAcceptable"


class MethodNotAllowedError(StatusError):
    """The resource does not know that verb."""

    code = 405
    reason = "MethodNotAllowed"

    def __init__(self) -> None:
        super().__init__("the server does not allow this method on the requested resource")


class InvalidError(StatusError):
    """The object breaks rules of its kind; the causes say which."""

    code = 422
    reason = "Invalid"

    @classmethod
    def of(cls, kind: Kind, name: str, causes: Sequence[Cause]) -> InvalidError:
        """Return the refusal of an object."""
        told = [f"{cause.field}: {cause.message}" for cause in causes]
        text = told[0] if len(told) == 1 else f"[{', '.join(told)}]"
        of_kind = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
        return cls(
            f'{of_kind} "{name}" is invalid: {text}',
            name=name,
            group=kind.group,
            kind=kind.kind,
            causes=[cause._asdict() for cause in causes],
        )


class TooManyRequestsError(StatusError):
    """Come back later."""

    code = 429
    reason = "TooManyRequests"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            "Too many requests, please try again later.", retryAfterSeconds=retry_after_s
        )
