"""Health checks for everything that a job needs, without running a job."""

from __future__ import annotations

import asyncio
import itertools

from farcall.aws.clients import Aws
from farcall.aws.findings import FAILED, NOT_CHECKED, OK, WARNING, Finding, guarded, told
from farcall.backends import open_backend
from farcall.backends.base import Backend
from farcall.model.errors import FarcallError
from farcall.model.names import BATCH
from farcall.model.settings import Settings
from farcall.model.settings_help import origins
from farcall.operations.doctor import account
from farcall.storage import doctor

__all__ = ["FAILED", "NOT_CHECKED", "OK", "WARNING", "Finding", "examine"]


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
        return [told("options", error)]
    findings = [Finding("options", OK, f"from {origins()}")]
    try:
        access = await Aws.open(settings)
    except FarcallError as error:
        return [*findings, told("credentials", error)]
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
        account.identify(access, settings, time_limit_s),
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
    of_bucket = doctor.examine(access, settings, time_limit_s)  # it has its own limits
    stacks = []
    if settings.backend == BATCH:
        stacks.append(guarded("stack", account.examine(access, settings), time_limit_s))
    found = await asyncio.gather(
        *stacks,
        guarded("bucket", of_bucket, 3 * time_limit_s),
        *limited,
    )
    return [*identity.findings, *region, *itertools.chain.from_iterable(found)]
