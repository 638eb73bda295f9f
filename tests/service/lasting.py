"""Short timeouts for tests of permanent faults, and a check of the resulting error."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from farcall import FarcallError, ServiceError
from farcall.testing import Timing

REMEDY = re.compile(
    "check |try again|renew |need permission|captive portal|find out|set [a-z_]+ to"
)


# Limits of a minute or an hour are reduced to a second or two. They count from the first failure.
# A slow response counts as a missing one.
IMPATIENT = pytest.mark.timing(
    attempts=2,
    call_retry_s=1.0,
    give_up_s=3.0,
    listed_within_s=1.0,
    register_retry_s=1.0,
    sending_retry_s=1.0,
    store_retry_s=1.0,
    submit_looks_s=(0.1, 0.3),
    submit_retry_s=1.0,
    terminate_retry_s=1.0,
    throttled_for_s=2.0,
)


def answering_within(timing: Timing, seconds: float) -> Timing:
    return replace(timing, read_timeout_s=seconds, request_timeout_s=2 * seconds)


def check(came: Any, operation: str, kind: str) -> None:
    if isinstance(came, ServiceError):
        said = str(came)
        assert operation in said, (kind, said)
        assert REMEDY.search(said), (kind, said)
    elif came != 49:
        assert isinstance(came, FarcallError), (kind, repr(came))
