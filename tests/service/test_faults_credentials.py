"""Credential endpoints that fail.

Starts the local AWS emulator and a fault proxy. The tests are slow, because each waits until the
client gives up.
"""

from __future__ import annotations

import time

import pytest
from botocore.utils import ContainerMetadataFetcher

from farcall.testing import use_timing
from tests.service.operations import IMPATIENT, answering_within, ask, call, check, outcome_of
from tests.support.proxy import Proxy
from tests.support.signing import session

pytestmark = [IMPATIENT, pytest.mark.slow]  # one fault after the other


@pytest.mark.parametrize("kind", ["error", "denied", "hang"])
@pytest.mark.parametrize("way", [call, ask])
async def test_unavailable_credentials_are_reported(
    aws, make_executor, monkeypatch, tmp_path, kind, way, timing
):
    """Credentials are fetched for the session, and for each call because they expire soon."""
    # botocore itself waits for three tries of 2 s, each followed by a pause of 1 s.
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0.1)
    monkeypatch.setattr(ContainerMetadataFetcher, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(ContainerMetadataFetcher, "RETRY_ATTEMPTS", 2)
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 45))
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
