"""Operations under each permanent fault.

Starts the local AWS emulator and a fault proxy. The tests are slow, because each waits until the
client gives up.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.service.operations import IMPATIENT, check, each_operation
from tests.support.proxy import FAULTS, Fault

pytestmark = [IMPATIENT, pytest.mark.slow]  # one fault after the other

KINDS: tuple[Fault, ...] = (*FAULTS, "denied", "page")


@each_operation
async def test_permanent_fault_returns_or_raises(meeting, pattern, operation, way):
    met = await asyncio.gather(
        *(meeting.of(way, pattern, operation, kind, None) for kind in KINDS)
    )
    for kind, (proxy, came) in zip(KINDS, met, strict=True):
        assert sum(proxy.injected.values()), (kind, came)
        check(came, operation, str(kind))
