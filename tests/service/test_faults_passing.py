"""Operations under each transient fault.

Starts the local AWS emulator and a fault proxy. The tests are slow, because each waits for
retries.
"""

from __future__ import annotations

import asyncio

import pytest

from farcall import JobError
from tests.service.operations import each_operation, end_without_outcome
from tests.support.proxy import FAULTS

pytestmark = pytest.mark.slow  # one fault after the other


@each_operation
async def test_transient_fault_has_no_effect(meeting, pattern, operation, way):
    kinds = list(FAULTS)
    if operation == "GetCallerIdentity":
        kinds.remove("expired")  # the same keys sign requests to IAM
    met = await asyncio.gather(*(meeting.of(way, pattern, operation, kind, 2) for kind in kinds))
    for kind, (proxy, came) in zip(kinds, met, strict=True):
        assert sum(proxy.injected.values()), (kind, came)
        if way is end_without_outcome:
            assert isinstance(came, JobError), (kind, repr(came))
        else:
            assert came == 49, (kind, repr(came))
