"""Refreshes of temporary credentials, and descriptions of their sources."""

import datetime as dt

import botocore.session
import pytest
from aiobotocore.credentials import AioCredentials, AioRefreshableCredentials

from farcall.aws.credentials import described, limit_refreshes


class Helper:
    """User's program that returns keys; its clock is set by the test."""

    def __init__(self, lifetime):
        self.now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        self.starts = 0
        self._lifetime = dt.timedelta(seconds=lifetime)
        self.credentials = AioRefreshableCredentials(
            "key",
            "secret",
            "token",
            self.now + self._lifetime,
            self.run,
            "custom-process",
            time_fetcher=lambda: self.now,
        )
        limit_refreshes(self.credentials)

    def run(self):
        self.starts += 1
        expires = (self.now + self._lifetime).isoformat()
        return {"access_key": "k", "secret_key": "s", "token": "t", "expiry_time": expires}

    async def requests(self, seconds, interval=1):
        """Send requests for a time; return how often the program was started."""
        for _ in range(0, seconds, interval):
            self.now += dt.timedelta(seconds=interval)
            await self.credentials.get_frozen_credentials()
        return self.starts


@pytest.mark.parametrize(
    ("lifetime", "starts"), [(14 * 60, 10), (8 * 60, 10), (2 * 60, 10), (3600, 0)]
)
async def test_long_enough_keys_are_kept(lifetime, starts):
    assert await Helper(lifetime).requests(600) == starts


async def test_keys_near_expiry_are_refreshed():
    helper = Helper(50)
    assert await helper.requests(10) == 10


async def test_failed_refresh_keeps_valid_keys():
    """A program that fails is not started again before each request."""
    helper = Helper(14 * 60)
    starts = []

    async def fail():
        starts.append(helper.now)
        raise OSError("the vault is locked")

    helper.credentials._refresh_using = fail
    limit_refreshes(helper.credentials)
    await helper.requests(120)
    assert len(starts) == 2


@pytest.mark.parametrize(
    ("method", "source"),
    [
        ("env", "the environment (AWS_ACCESS_KEY_ID)"),
        ("shared-credentials-file", "profile 'work' in ~/.aws/credentials"),
        ("assume-role", "the role of profile 'work'"),
        ("new-in-botocore", "new-in-botocore"),
    ],
)
def test_error_names_key_and_source(method, source):
    core = botocore.session.Session(profile="work")
    credentials = AioCredentials("AKIAIOSFODNN7EXAMPLE", "secret", method=method)
    assert described(credentials, core) == f"access key ending in MPLE from {source}"
