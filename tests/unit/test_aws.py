"""Connections to AWS, and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket

import pytest

from farcall.aws.clients import Aws
from farcall.model.settings import Settings
from leaks import Held
from patience import until_async

PART = bytes(32 << 20)  # more than the system holds on the way


@pytest.fixture
def silent(monkeypatch):
    """Where connections are accepted, and nothing of them is read; yields its URL."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_no_connection_outlives_the_clients_where_requests_were_given_up(silent):
    aws = await Aws.open(Settings(endpoint_url=silent, region="us-east-1"))
    before = Held.now()
    asked = [
        asyncio.ensure_future(
            aws.operations("bucket").upload_part(
                "key", "upload", number, PART, hashlib.sha256(PART).hexdigest()
            )
        )
        for number in (1, 2)
    ]
    await until_async(lambda: any("socket" in each for each in before.new()))
    for each in asked:
        each.cancel()
    for each in asked:
        with contextlib.suppress(asyncio.CancelledError):
            await each
    await aws.close()
    assert [each for each in before.new() if "socket" in each] == []
