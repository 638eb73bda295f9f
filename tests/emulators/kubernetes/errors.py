"""Status objects of rejected requests, with the real API server's messages.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
    https://github.com/kubernetes/apimachinery, pkg/api/errors/errors.go
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from tests.emulators.kubernetes.kinds import Kind


class Cause(NamedTuple):
    """Invalid field of an object.

    Attributes:
        reason: ``FieldValueRequired`` or ``FieldValueInvalid``.
        message: Text after the field's path in the Status message.
        field: Its path, such as ``spec.completions``.
    """

    reason: str
    message: str
    field: str


class StatusError(Exception):
    """Rejection of a request; the name of a subclass is its machine-readable reason.

    Attributes:
        code: HTTP status.
        details: ``details`` of the Status.
    """

    code = 500

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
            "reason": type(self).__name__.removesuffix("Error"),
            **details,
            "code": self.code,
        }


class InternalError(StatusError):
    """The emulator failed."""


class BadRequestError(StatusError):
    """The request cannot be parsed."""

    code = 400


class UnauthorizedError(StatusError):
    """The token is unknown."""

    code = 401


class ForbiddenError(StatusError):
    """A right is missing, or a quota or an admission rule rejects the object."""

    code = 403


class _NameError(StatusError):
    """Rejection because of an object's name."""

    text = ""

    @classmethod
    def of(cls, kind: Kind, name: str) -> Self:
        """Return the error for an object's name."""
        text = cls.text.format(f'{kind.resource} "{name}"')
        return cls(text, name=name, group=kind.group, kind=kind.plural)


class NotFoundError(_NameError):
    """The object or path does not exist."""

    code = 404
    text = "{} not found"


class AlreadyExistsError(_NameError):
    """The name is taken."""

    code = 409
    text = "{} already exists"


class ConflictError(_NameError):
    """The object has changed since the sender read it."""

    code = 409
    text = (
        "Operation cannot be fulfilled on {}: the object has been modified; please apply your "
        "changes to the latest version and try again"
    )


class ExpiredError(StatusError):
    """The history does not reach back that far; the client lists again."""

    code = 410


class UnsupportedMediaTypeError(StatusError):
    """The body or patch has another content type."""

    code = 415

    def __init__(self, accepted: str) -> None:
        super().__init__(
            "the body of the request was in an unknown format - accepted media types include: "
            + accepted
        )


class InvalidError(StatusError):
    """The object breaks rules of its kind, one for each cause."""

    code = 422

    @classmethod
    def of(cls, kind: Kind, name: str, causes: Sequence[Cause]) -> InvalidError:
        """Return the error for an object."""
        found = [f"{cause.field}: {cause.message}" for cause in causes]
        text = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
        of_kind = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
        return cls(
            f'{of_kind} "{name}" is invalid: {text}',
            name=name,
            group=kind.group,
            kind=kind.kind,
            causes=[cause._asdict() for cause in causes],
        )


class TooManyRequestsError(StatusError):
    """The server is throttling."""

    code = 429

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            "Too many requests, please try again later.", retryAfterSeconds=retry_after_s
        )
