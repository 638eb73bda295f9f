"""Error translation: errors of AWS calls to farcall's own errors."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import aiohttp
import botocore.exceptions
import botocore.parsers
from obstore.exceptions import UnauthenticatedError

from farcall.aws import endpoints
from farcall.model.errors import ServiceError, SettingsError
from farcall_runtime import transient_errors

#: Raised by botocore's parsers for a response that is not from AWS.
_UNREADABLE = (botocore.parsers.ResponseParserError, KeyError, ValueError)

#: All exceptions that a call may raise.
ALL = (
    botocore.exceptions.ClientError,
    botocore.exceptions.BotoCoreError,
    aiohttp.ClientError,
    *_UNREADABLE,
    OSError,
)

RENEWALS = 3
"""Maximum retries with expired credentials, in about 2 s.

They may have been renewed while the request was sent; if not, the caller should get the error
soon.
"""

_VALUE = re.compile(r", value: .*?(?=, type: <class|, valid )", re.DOTALL)

WITHOUT = "`farcall local -- COMMAND` runs a command on a local AWS emulator"
CODE_NO_CREDENTIALS = "NoCredentials"
"""Code of the error for a machine without credentials; no AWS service returns it."""

NO_CREDENTIALS = (
    "check where the credentials come from: `aws sts get-caller-identity` needs them too, and "
    f"`aws sso login` renews those of IAM Identity Center; without an account {WITHOUT}"
)
_CHECK_KEYS = (
    "or its secret: check both where they come from, with `aws sts get-caller-identity`; if that "
    "works, check whether the account has the region enabled"
)
_FOR_TEMPORARY_KEYS = (
    "check the session token (AWS_SESSION_TOKEN, or aws_session_token in a profile): only "
    "temporary keys have one"
)
_CLOCK = "set this machine's clock: AWS rejects requests whose time is off by some minutes"

_CLOCK_CODES = ("RequestTimeTooSkewed", "RequestInTheFuture")
_CLOCK_WORDS = ("signature expired", "signature not yet current")
"""Texts with which services report a wrong clock under the code of a wrong key."""

_KEY_CODES = (
    "AuthFailure",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignature",
    "InvalidToken",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClient",
)
"""Prefixes of the codes with which AWS rejects keys.

https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
https://docs.aws.amazon.com/awssupport/latest/APIReference/CommonErrors.html
"""

_UNAUTHORIZED = "UnauthorizedOperation"

_UNKNOWN_CALL_STATUSES = (405, 501)
_UNKNOWN_CALLS = (
    "InvalidAction",
    "MethodNotAllowed",
    "NotImplemented",
    "UnknownOperation",
    "UnsupportedOperation",
)
"""Prefixes of codes for operations that a service does not support."""

KEY = "farcall-key"
"""Field in which the clients add the access key in use to a response's ``Error``."""

NOT_AWS = "NotAWS"
"""farcall's code for a response that is not from AWS."""

_TLS = (
    "name the trusted certificates in AWS_CA_BUNDLE, or use a URL with http:// for a server "
    "without TLS"
)

_PAGE = re.compile(r"<(!doctype|html)", re.IGNORECASE)

_UNCONNECTED = (
    botocore.exceptions.ConnectTimeoutError,
    botocore.exceptions.EndpointConnectionError,
    botocore.exceptions.ProxyConnectionError,
)
"""Errors of failed connections."""

_LASTING = (botocore.exceptions.NoCredentialsError, botocore.exceptions.ParamValidationError)

_UNOBTAINABLE = (
    botocore.exceptions.CredentialRetrievalError,
    botocore.exceptions.NoAuthTokenError,
    botocore.exceptions.NoCredentialsError,
    botocore.exceptions.PartialCredentialsError,
    botocore.exceptions.SSOError,
    botocore.exceptions.TokenRetrievalError,
    UnauthenticatedError,
)
"""Errors of unavailable credentials; no request was sent."""


_listener: ContextVar[Callable[[str], object] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(listener: Callable[[str], object]) -> Iterator[None]:
    """Pass the failed responses of this context's calls to a listener as they arrive."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def record_error(text: str) -> None:
    """Notify the listener of a failed response; see `listening`."""
    listener = _listener.get()
    if listener is not None:
        listener(text)


def explain(operation: str, error: BaseException, url: str = "") -> ServiceError:
    """Turn a call's exception into an error with a remedy."""
    if isinstance(error, botocore.exceptions.ClientError):
        return _refused(operation, error, url)
    error = showable(error)
    if isinstance(error, (botocore.parsers.ResponseParserError, KeyError)):
        is_page = _PAGE.search(str(error)) is not None
        return explain_other(operation, url, "a web page" if is_page else "an unreadable response")
    cause = _cause(error)
    sent = _was_sent(error)
    if isinstance(error, botocore.exceptions.SSLError) or isinstance(
        cause, aiohttp.ClientSSLError
    ):
        text = f"{operation}: TLS with {endpoints.named(url)} failed: {cause or error}; {_TLS}"
        return ServiceError(text, operation=operation, sent=sent)
    if isinstance(error, _UNCONNECTED) and not sent:
        text = f"{operation}: cannot connect to {endpoints.named(url)}: {_text_of(cause or error)}"
        text += f"; {endpoints.remedy(url)}"
        return ServiceError(text, operation=operation, sent=False)
    text = str(error) or type(error).__name__
    text += f" ({cause})" if cause and str(cause) not in text else ""
    if isinstance(error, _UNOBTAINABLE):
        text += f"; {NO_CREDENTIALS}"
    elif sent:  # without a response
        text += f"; {endpoints.remedy(url)}"
    return ServiceError(f"{operation}: {text}", operation=operation, sent=sent)


def _text_of(cause: BaseException) -> str:
    """Return the system's text for a failed connection."""
    inner = getattr(cause, "os_error", cause)
    number = getattr(inner, "errno", None) or 0
    known = os.strerror(number) if number > 0 else getattr(inner, "strerror", None)
    return str(known or cause)


def remedy(error: ServiceError, text: str = "", key: str = "") -> str:
    """Return the remedy for rejected credentials, their use, or missing permissions.

    Args:
        error: The error.
        text: The service's message.
        key: The access key in use and its source; see `credentials.described`.

    Returns:
        The remedy; empty for other errors.
    """
    code = error.code
    if code in _CLOCK_CODES or (_is_key(code) and any(w in text.lower() for w in _CLOCK_WORDS)):
        return _CLOCK
    if is_expired(error):
        return f"renew the credentials{f' ({key})' if key else ''} and try again"
    if _is_key(code):
        has_token = code.startswith("InvalidToken") or os.environ.get("AWS_SESSION_TOKEN")
        wrong = f"AWS rejects the {key or 'access key'} {_CHECK_KEYS}"
        return f"{_FOR_TEMPORARY_KEYS}; {wrong}" if has_token else wrong
    if is_denied(error):
        return f"the credentials in use need permission for {error.operation}"
    return ""


def is_denied(error: ServiceError) -> bool:
    """Return whether a permission was missing for the call."""
    # If a response has no body, the code is its status.
    return "AccessDenied" in error.code or error.code in ("403", "Forbidden", _UNAUTHORIZED)


def is_of_credentials(error: BaseException) -> bool:
    """Return whether AWS rejected the credentials, or they could not be obtained.

    A retry may succeed soon, if the user renews them or corrects the clock.
    """
    if isinstance(error, _UNOBTAINABLE):
        return True
    if not isinstance(error, ServiceError):
        return False
    if is_expired(error) or _is_key(error.code) or error.code in _CLOCK_CODES:
        return True
    return error.__cause__ is not None and is_of_credentials(error.__cause__)


def _is_key(code: str) -> bool:
    return code.startswith(_KEY_CODES)


def showable(error: BaseException) -> BaseException:
    """Return an error without the values of an invalid request, which may be secret."""
    if not isinstance(error, botocore.exceptions.ParamValidationError):
        return error
    report = _VALUE.sub("", str(error.kwargs["report"]))
    plain: BaseException = botocore.exceptions.ParamValidationError(report=report)
    return plain


def may_pass(error: ServiceError) -> bool:
    """Return whether a retry of the same call may succeed."""
    if error.status:
        return transient_errors.may_pass(error.code, error.status)
    return not isinstance(error.__cause__, _LASTING)


def is_unknown_call(error: ServiceError) -> bool:
    """Return whether the service lacks the operation: it is older, or not AWS's own."""
    if error.code == NOT_AWS:
        return False
    return error.status in _UNKNOWN_CALL_STATUSES or error.code.startswith(_UNKNOWN_CALLS)


def concerns_all(error: BaseException) -> bool:
    """Return whether an error for one object of the bucket applies to all objects.

    This is so if the bucket or a permission is missing. Any other error may concern only that
    object, whatever its code; and rejected credentials may be renewed.
    """
    return isinstance(error, SettingsError) or (
        isinstance(error, ServiceError) and is_denied(error)
    )


def is_expired(error: ServiceError) -> bool:
    """Return whether the credentials had expired, so that new ones may succeed."""
    return error.code in transient_errors.EXPIRED


def explain_tries(error: ServiceError, tries: int, seconds: float) -> ServiceError:
    """Add the number of attempts, their duration and a remedy to the last failure."""
    text = f"{error}; tried {tries} times in {seconds:.0f} s"
    if error.status:
        text += "; the AWS service is failing, try again later (https://health.aws.amazon.com)"
    elif not is_of_credentials(error):
        what_to_do = endpoints.remedy(endpoints.in_text(text))
        text += f"; {what_to_do}" if what_to_do not in text else ""
    return with_text(error, text)


def explain_other(operation: str, url: str, answer: str, status: int = 0) -> ServiceError:
    """Return the error for a server that is not AWS.

    Args:
        operation: The operation.
        url: The URL.
        answer: Description of the response.
        status: HTTP status of the response; 0 if a retry may get another response.
    """
    return ServiceError(
        f"{operation}: {endpoints.named(url)} is not an AWS endpoint (it returned {answer}); "
        f"{endpoints.remedy(url)}; a captive portal also responds like this",
        operation=operation,
        code=NOT_AWS,
        status=status,
        sent=not 400 <= status < 500,
    )


def with_text(error: ServiceError, text: str) -> ServiceError:
    """Return the same error with another text."""
    changed = ServiceError(text)
    changed.__dict__.update(error.__dict__)
    changed.__cause__ = error.__cause__
    return changed


def _refused(operation: str, error: botocore.exceptions.ClientError, url: str) -> ServiceError:
    details = error.response.get("Error", {})
    meta = error.response.get("ResponseMetadata", {})
    code, status = str(details.get("Code", "")), int(meta.get("HTTPStatusCode", 0))
    message = str(details.get("Message") or code or f"status {status}, without a reason")
    kind = str(meta.get("HTTPHeaders", {}).get("content-type", ""))
    if _PAGE.search(message) or ("html" in kind and not meta.get("RequestId")):
        return explain_other(operation, url, f"a web page (status {status})", status)
    refused = ServiceError(
        f"{operation} was refused: {message}" + (f" ({code})" if code else ""),
        operation=operation,
        code=code,
        request_id=str(meta.get("RequestId", "")),
        status=status,
        sent=status >= 500,  # a refusal with 4xx has no effect
    )
    what_to_do = remedy(refused, message, details.get(KEY, ""))
    return with_text(refused, f"{refused}; {what_to_do}") if what_to_do else refused


def _was_sent(error: BaseException) -> bool:
    """Return whether a request may have reached the service before the error."""
    if isinstance(error, botocore.exceptions.EndpointConnectionError):
        # aiobotocore raises the same class if a connection breaks after the request.
        return not isinstance(_cause(error), aiohttp.ClientConnectorError)
    own = isinstance(error, botocore.exceptions.BotoCoreError)
    return not own or isinstance(error, botocore.exceptions.HTTPClientError)


def _cause(error: BaseException) -> Any:
    """Return the underlying error of the HTTP library."""
    return getattr(error, "kwargs", {}).get("error")
