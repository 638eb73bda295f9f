"""Operations under each permanent fault, and without any response.

Starts the local AWS emulator and a fault proxy. The tests are slow, because each waits until the
client gives up.
"""

from __future__ import annotations

import asyncio

import pytest

from farcall import ServiceError
from farcall.testing import use_timing
from tests.service.operations import IMPATIENT, answering_within, check, each_operation
from tests.support.proxy import FAULTS, Fault

pytestmark = [IMPATIENT, pytest.mark.slow]  # one fault after the other

KINDS: tuple[Fault, ...] = (*FAULTS, "denied", "page")


@each_operation
async def test_permanent_fault_returns_or_raises(meeting, pattern, operation, way):
    met = await asyncio.gather(*(meeting.of(way, pattern, operation, kind) for kind in KINDS))
    for kind, (proxy, came) in zip(KINDS, met, strict=True):
        assert sum(proxy.injected.values()), (kind, came)
        check(came, operation, str(kind))


@each_operation
async def test_missing_response_returns_or_raises(meeting, pattern, operation, way, timing):
    for seconds in (3, 10, 30):
        with use_timing(answering_within(timing, seconds)):
            proxy, came = await meeting.of(way, pattern, operation, "hang")
        is_about = not isinstance(came, ServiceError) or operation in str(came)
        if sum(proxy.injected.values()) and is_about:
            break  # otherwise another response timed out on a busy machine
    assert sum(proxy.injected.values()), came
    check(came, operation, "hang")
