"""Health checks: whether everything is there that a job needs, before one is paid for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable

from farcall.aws.clients import Aws
from farcall.aws.findings import FAILED, NOT_CHECKED, OK, WARNING, Finding, guarded, told, waiting
from farcall.backends.batch import doctor as jobs
from farcall.backends.batch.client import Batch
from farcall.model.errors import FarcallError
from farcall.model.settings import Settings
from farcall.model.settings_help import origins
from farcall.operations.doctor import account
from farcall.storage import doctor

__all__ = ["FAILED", "NOT_CHECKED", "OK", "WARNING", "Finding", "examine"]


async def examine(
    time_limit_s: float = 30,
    tell: Callable[[list[str]], object] = lambda _: None,
    every_s: float = 1.0,
) -> list[Finding]:
    """Look at everything, side by side, by the options in force.

    Args:
        time_limit_s: How long a check may take.
        tell: Is given now and then what is still looked at, for how long, and what was answered
            last that was no success.
        every_s: How many seconds that takes.

    Returns:
        What was found, in an order for reading; nothing is raised.
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
    telling = asyncio.ensure_future(_tell(tell, every_s))
    try:
        return findings + await _examine(access, settings, time_limit_s)
    finally:
        telling.cancel()
        await access.close()


async def _tell(tell: Callable[[list[str]], object], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        tell([str(each) for each in waiting])


async def _examine(access: Aws, settings: Settings, time_limit_s: float) -> list[Finding]:
    identity, region = await asyncio.gather(
        account.identify(access, time_limit_s),
        guarded("region", account.reach(access), time_limit_s),
    )
    if identity.is_refused:
        return [
            *identity.findings,
            Finding("everything else", NOT_CHECKED, "AWS does not take the credentials"),
        ]
    batch = Batch(access)
    checks: dict[str, Awaitable[Iterable[Finding]]] = {
        "resources": jobs.resources(settings),
        "job role": jobs.role(access, settings, "batch_job_role_name"),
        "execution role": jobs.role(access, settings, "batch_execution_role_name"),
        "log group": jobs.log_group(access, settings),
    }
    if region[0].verdict != FAILED:
        checks["queue"] = jobs.queue(access, batch, settings)
        checks["image"] = jobs.image(access, batch, settings)
    limited = (guarded(name, check, time_limit_s) for name, check in checks.items())
    of_bucket = doctor.examine(access, settings, time_limit_s)  # which has limits of its own
    found = await asyncio.gather(guarded("bucket", of_bucket, 3 * time_limit_s), *limited)
    return [*identity.findings, *region, *itertools.chain.from_iterable(found)]
