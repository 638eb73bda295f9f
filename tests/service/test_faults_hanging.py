"""Operations whose response never arrives.

Starts the local AWS emulator and a fault proxy. The tests are slow, because each waits for several
timeouts.
"""

from __future__ import annotations

from typing import Any

import pytest

from farcall import ServiceError
from farcall.testing import use_timing
from tests.service.operations import (
    IMPATIENT,
    answering_within,
    check,
    each_operation,
)

pytestmark = [IMPATIENT, pytest.mark.slow]  # one fault after the other


@each_operation
async def test_missing_response_returns_or_raises(meeting, pattern, operation, way, timing):
    for seconds in (3, 10, 30):
        with use_timing(answering_within(timing, seconds)):
            proxy, came = await meeting.of(way, pattern, operation, "hang", None)
        if sum(proxy.injected.values()) and is_about(came, operation):
            break  # otherwise another response timed out on a busy machine
    assert sum(proxy.injected.values()), came
    check(came, operation, "hang")


def is_about(came: Any, operation: str) -> bool:
    return not isinstance(came, ServiceError) or operation in str(came)
