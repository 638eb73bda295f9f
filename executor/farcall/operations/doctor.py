"""Health checks for everything that a job needs, without running a job."""

from __future__ import annotations

import asyncio
import email.utils
import itertools
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from farcall.aws import clients, endpoints, error_translation
from farcall.aws.clients import Aws
from farcall.aws.findings import finding_of, guarded
from farcall.backends import open_backend
from farcall.backends.base import Backend
from farcall.config.help import origins
from farcall.config.settings import Settings
from farcall.deploy import stack_options
from farcall.deploy.aws_calls import call_aws
from farcall.deploy.contents import TAG
from farcall.deploy.stack import Stack
from farcall.model.clock import within
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.findings import FAILED, NOT_CHECKED, OK, WARNING, Finding, parted
from farcall.model.names import BATCH
from farcall.storage import doctor as bucket_doctor

__all__ = ["FAILED", "NOT_CHECKED", "OK", "WARNING", "Finding", "examine"]

_SKEW_S = 60
"""Maximum clock difference in seconds: AWS rejects signatures that are five minutes off."""

_SOON_S = 15 * 60


async def examine(time_limit_s: float = 30) -> list[Finding]:
    """Run all checks concurrently, with the current options.

    Args:
        time_limit_s: Time limit of each check in seconds.

    Returns:
        The findings in reading order; nothing is raised.
    """
    try:
        settings = Settings()
    except FarcallError as error:
        return [finding_of("options", error)]
    findings = [Finding("options", OK, f"from {origins()}")]
    try:
        access = await Aws.open(settings)
    except FarcallError as error:
        return [*findings, finding_of("credentials", error)]
    backend = open_backend(settings, access)
    try:
        return findings + await _examine(access, backend, settings, time_limit_s)
    finally:
        await backend.close()
        await access.close()


async def _examine(
    access: Aws, backend: Backend, settings: Settings, time_limit_s: float
) -> list[Finding]:
    identity, region = await asyncio.gather(
        _identify(access, settings, time_limit_s),
        guarded("region", backend.reach(), time_limit_s),
    )
    if identity.is_refused:
        return [
            *identity.findings,
            Finding("everything else", NOT_CHECKED, "AWS rejects the credentials"),
        ]
    if region[0].verdict == FAILED and region[0].remedy == identity.findings[0].remedy != "":
        rest = Finding("everything else", NOT_CHECKED, "AWS cannot be reached")
        return [*identity.findings, *region, rest]
    checks = backend.examine(settings, answers=region[0].verdict != FAILED)
    limited = (guarded(name, check, time_limit_s) for name, check in checks.items())
    of_bucket = bucket_doctor.examine(access, settings, time_limit_s)  # it has its own limits
    stacks = []
    if settings.backend == BATCH:
        stacks.append(guarded("stack", _stack(access, settings), time_limit_s))
    found = await asyncio.gather(
        *stacks,
        guarded("bucket", of_bucket, 3 * time_limit_s),
        *limited,
    )
    return [*identity.findings, *region, *itertools.chain.from_iterable(found)]


class _Identity(NamedTuple):
    """Result of the identity request.

    Attributes:
        findings: The findings.
        is_refused: Whether AWS rejects the credentials, so that no other check can run.
    """

    findings: list[Finding]
    is_refused: bool


async def _identify(access: Aws, settings: Settings, time_limit_s: float) -> _Identity:
    """Request the credentials' identity from STS; Kubernetes needs only the bucket's."""
    if settings.backend != BATCH:
        if not settings.s3_bucket_name:
            return _Identity([], False)
        if settings.endpoint_url and not endpoints.is_aws(settings.endpoint_url):
            return await _of_other_store(access)
    return await _caller_identity(access, time_limit_s)


async def _caller_identity(access: Aws, time_limit_s: float) -> _Identity:
    name = "credentials"
    heard = [""]
    try:
        calling = clients.call(await access.client("sts"), "get_caller_identity")
        with error_translation.listening(heard.append):
            reply = await within(time_limit_s, calling)
    except TimeoutError:
        found = f"STS did not return an identity within {time_limit_s:g} s"
        found += f"; the last response: {heard[-1]}" if heard[-1] else ""
        return _Identity([Finding(name, WARNING, found, "check the network")], False)
    except ServiceError as error:
        finding = finding_of(name, error)
        if error_translation.is_of_credentials(error):
            return _Identity([finding], True)
        if finding.verdict == FAILED:  # only STS is known to be affected
            finding = replace(finding, verdict=WARNING)
        return _Identity([finding], False)
    source, expires = await access.credentials()
    found = f"{reply['Arn']}, from {source}"
    findings = [Finding(name, OK, found)]
    if expires is not None:
        left_s = (expires - datetime.now(UTC)).total_seconds()
        found += f", until {expires:%Y-%m-%d %H:%M} UTC"
        findings = [Finding(name, OK, found)]
        if left_s < _SOON_S:
            remedy = "renew them before you submit jobs that take longer"
            findings = [Finding(name, WARNING, found, remedy)]
    if access.overruled:
        findings.append(Finding("credentials file", WARNING, *parted(access.overruled)))
    return _Identity([*findings, *_clock(reply)], False)


async def _of_other_store(access: Aws) -> _Identity:
    """Report the source of credentials for a store outside of AWS."""
    name = "credentials"
    try:
        source, _ = await access.credentials()
    except ServiceError as error:
        return _Identity([finding_of(name, error)], False)
    return _Identity([Finding(name, OK, f"for the bucket, from {source}")], False)


def _clock(reply: dict[str, Any]) -> list[Finding]:
    """Compare this machine's clock with AWS's."""
    date = reply["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        moment = email.utils.parsedate_to_datetime(date)
    except (TypeError, ValueError):
        return []
    skew_s = (datetime.now(UTC) - moment).total_seconds()
    if abs(skew_s) <= _SKEW_S:
        return []
    found = f"this machine's clock is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"
    return [
        Finding(
            "clock",
            WARNING,
            found,
            "set the clock; AWS rejects requests if the difference exceeds five minutes",
        )
    ]


_CHECK = "stack"


async def _stack(access: Aws, settings: Settings) -> list[Finding]:
    """Check the stack that `farcall deploy` created; other queues are not checked."""
    queue = settings.queue
    reply = await call_aws(access, "batch", "describe_job_queues", jobQueues=[queue])
    name = next((q.get("tags", {}).get(TAG, "") for q in reply["jobQueues"]), "")
    if not name:
        return []
    try:
        state = await Stack(access, name).state()
    except ServiceError as error:
        return [finding_of(_CHECK, error)]
    if state is None:
        found = f"stack {name} of queue {queue} does not exist in {access.region_and_origin}"
        return [Finding(_CHECK, WARNING, found, "run `farcall deploy` to create a new stack")]
    text = f"{name}, {state.status}"
    if state.is_under_way:
        return [
            Finding(
                _CHECK,
                WARNING,
                f"{text}: an operation is in progress",
                "wait until it is finished",
            )
        ]
    if not state.is_well:
        verdict = FAILED if state.is_dead else WARNING
        again = f"run `farcall deploy --name {name}` to repair it or to see why that fails"
        return [
            Finding(_CHECK, verdict, f"{text}: {state.reason or 'no reason is available'}", again)
        ]
    others = [
        f"{option} is {getattr(settings, option)}, but the stack has {value}"
        for option, value in stack_options.names(state).items()
        if not f"/{getattr(settings, option)}".endswith(f"/{value}")  # a role may be an ARN
    ]
    if others:
        again = (
            f"run `farcall deploy --name {name}` to write the stack's values, if you want to "
            "use them"
        )
        return [Finding(_CHECK, WARNING, f"{text}; {', '.join(others)}", again)]
    return [Finding(_CHECK, OK, text)]
