"""What goes wrong with calls of AWS, as farcall's own errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import botocore.exceptions
import botocore.parsers

from farcall.errors import ServiceError, SettingsError, SubmissionError

#: All that a call may raise.
ALL = (
    botocore.exceptions.ClientError,
    botocore.exceptions.BotoCoreError,
    botocore.parsers.ResponseParserError,
    OSError,
    asyncio.TimeoutError,
)

_LASTING = (botocore.exceptions.NoCredentialsError, botocore.exceptions.ParamValidationError)


def explain(operation: str, error: BaseException) -> ServiceError:
    """Turn what a call raised into an error that says what to do.

    Args:
        operation: The operation's name, such as ``"SubmitJob"``.
        error: One of `ALL`.
    """
    if isinstance(error, botocore.exceptions.ClientError):
        return _refused(operation, error)
    text, cause = str(error) or type(error).__name__, str(_cause(error) or "")
    text += f" ({cause})" if cause not in text else ""
    return ServiceError(f"{operation}: {text}", operation=operation, sent=_was_sent(error))


def may_pass(error: ServiceError) -> bool:
    """Tell whether what went wrong may be gone when the same call is made again."""
    return error.status >= 500 or not (error.status or isinstance(error.__cause__, _LASTING))


def explain_submission(request: Mapping[str, Any], error: ServiceError) -> Exception:
    """Say which option is to blame for a refused SubmitJob, or that it was the job itself."""
    text = str(error).lower()
    if error.code == "ClientException" and "queue" in text:
        return SettingsError(
            f"batch_queue is {request['jobQueue']!r}: {error}; set batch_queue to a queue that "
            "exists in this region and is ENABLED",
            option="batch_queue",
        )
    if error.code == "ClientException":
        return SubmissionError(f"job {request['jobName']} was not accepted: {error}")
    return error


def explain_unanswered(
    request: Mapping[str, Any], error: ServiceError, failure: ServiceError
) -> ServiceError:
    """Say that a job may run.

    Args:
        request: The SubmitJob request.
        error: Why there was no answer to it.
        failure: Why the job was not found either.
    """
    name = request["jobName"]
    return _like(
        failure,
        f"{error}; whether job {name} was submitted is not known, because looking for it failed: "
        f"{failure}; it was if Batch lists a job of this name",
    )


def explain_registration(error: ServiceError) -> Exception:
    """Say which options make the definition that was refused."""
    if error.code != "ClientException":
        return error
    return SettingsError(
        f"the job definition made of the options was refused: {error}; check "
        "container_image_uri, the roles and job_definition_extra",
        option="job_definition_extra",
    )


def explain_tries(error: ServiceError, tries: int, seconds: float) -> ServiceError:
    """Say what was tried for how long before the last failure."""
    text = f"{error}; tried {tries} times in {seconds:.0f} s"
    if not error.status:
        text += "; check the network, and the options region and endpoint_url"
    return _like(error, text)


def _like(error: ServiceError, text: str) -> ServiceError:
    told = ServiceError(text)
    told.__dict__.update(error.__dict__)
    return told


def _refused(operation: str, error: botocore.exceptions.ClientError) -> ServiceError:
    said = error.response.get("Error", {})
    meta = error.response.get("ResponseMetadata", {})
    code, status = str(said.get("Code", "")), int(meta.get("HTTPStatusCode", 0))
    text = f"{operation} was refused: {said.get('Message') or code} ({code})"
    if "AccessDenied" in code or code == "UnauthorizedOperation":
        text += f"; the credentials in use need permission for {operation}"
    elif "Expired" in code:
        text += "; renew the credentials and try again"
    return ServiceError(
        text,
        operation=operation,
        code=code,
        request_id=str(meta.get("RequestId", "")),
        status=status,
        sent=status >= 500,  # a refusal with 4xx did nothing
    )


def _was_sent(error: BaseException) -> bool:
    """Tell whether a request may have reached the service before this went wrong."""
    if isinstance(error, botocore.exceptions.EndpointConnectionError):
        # aiobotocore calls it by the same name when a connection breaks after the request.
        return not isinstance(_cause(error), aiohttp.ClientConnectorError)
    own = isinstance(error, botocore.exceptions.BotoCoreError)
    return not own or isinstance(error, botocore.exceptions.HTTPClientError)


def _cause(error: BaseException) -> Any:
    """Return what botocore was told by the library that carries its requests."""
    return getattr(error, "kwargs", {}).get("error")
