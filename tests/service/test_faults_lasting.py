"""Every operation meets every fault for ever, and whoever waits is told."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import farcall.local
from farcall import BatchExecutor, FarcallError, ServiceError
from farcall.testing import Timing, use_timing
from tests.service.operations import Meeting, Way, ask, call, each_operation, outcome_of
from tests.support.proxy import FAULTS, Fault, Proxy
from tests.support.signing import session

KINDS: tuple[Fault, ...] = (*FAULTS, "denied", "page")
REMEDY = re.compile("check |try again|renew |need permission|log in|find out|can be set to")


# What is borne for a minute, or for an hour, is here for a second or two. It counts from a first
# failure on. An answer that takes long is none.
pytestmark = pytest.mark.timing(
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


@pytest.fixture
def meeting(
    aws: farcall.local.LocalAWS, make_executor: Callable[..., BatchExecutor], tmp_path: Path
) -> Meeting:
    return Meeting(aws, make_executor, tmp_path)


def answering_within(timing: Timing, seconds: float) -> Timing:
    return replace(timing, read_timeout_s=seconds, request_timeout_s=2 * seconds)


@each_operation
async def test_a_fault_that_lasts_ends_in_a_value_or_in_words(
    meeting: Meeting, pattern: str, operation: str, way: Way
) -> None:
    met = await asyncio.gather(
        *(meeting.of(way, pattern, operation, kind, None) for kind in KINDS)
    )
    for kind, (proxy, came) in zip(KINDS, met, strict=True):
        assert sum(proxy.injected.values()), (kind, came)
        check(came, operation, str(kind))


@each_operation
async def test_an_answer_that_never_comes_ends_in_a_value_or_in_words(
    meeting: Meeting,
    pattern: str,
    operation: str,
    way: Way,
    timing: Timing,
) -> None:
    for seconds in (3, 10, 30):
        with use_timing(answering_within(timing, seconds)):
            proxy, came = await meeting.of(way, pattern, operation, "hang", None)
        if sum(proxy.injected.values()) and is_about(came, operation):
            break  # else it was another answer that a busy machine did not give in time
    assert sum(proxy.injected.values()), came
    check(came, operation, "hang")


def is_about(came: Any, operation: str) -> bool:
    return not isinstance(came, ServiceError) or operation in str(came)


def check(came: Any, operation: str, kind: str) -> None:
    if isinstance(came, ServiceError):
        said = str(came)
        assert operation in said, (kind, said)
        assert REMEDY.search(said), (kind, said)
    elif came != 49:
        assert isinstance(came, FarcallError), (kind, repr(came))


@pytest.mark.parametrize("kind", ["error", "lost", "denied", "page", "hang"])
@pytest.mark.parametrize("way", [call, ask])
async def test_credentials_that_cannot_be_had_are_told(
    aws: farcall.local.LocalAWS,
    make_executor: Callable[..., BatchExecutor],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: Fault,
    way: Way,
    timing: Timing,
) -> None:
    """They are fetched when the session opens, and, so soon will they expire, for each call."""
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 120))
    role = aws.environment["FARCALL_BATCH_JOB_ROLE_NAME"]
    keys = {**session(aws.environment, role), "Expiration": soon}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with Proxy(aws.endpoint_url) as proxy:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{proxy.url}/credentials")
        proxy.lasting["credentials *"] = (200, keys)

        def spoil() -> None:
            proxy.lasting["credentials *"] = kind

        executor = make_executor(endpoint_url=proxy.url)
        with use_timing(answering_within(timing, 3) if kind == "hang" else timing):
            came = await outcome_of(way(executor, spoil, tmp_path / "go"))
        assert proxy.injected[f"credentials GET {kind}"]
    check(came, "", str(kind))
