"""Lines about uploads, on a scripted clock."""

import asyncio

import pytest

from farcall.engine.upload_report import reported

pytestmark = pytest.mark.usefixtures("clock")


async def test_long_upload_is_reported(capsys):
    async with reported("arguments of fit", 300_000_000) as on_sent:
        await asyncio.sleep(4)
        on_sent(100_000_000)
        await asyncio.sleep(2)
        on_sent(100_000_000)
        await asyncio.sleep(10)
    await asyncio.sleep(100)
    assert capsys.readouterr().err.splitlines() == [
        "farcall: arguments of fit: 100 of 300 MB sent",
        "farcall: arguments of fit: 200 of 300 MB sent",
    ]


async def test_waiting_upload_is_not_reported(capsys):
    async with reported("arguments of fit"):
        await asyncio.sleep(60)
    assert capsys.readouterr().err == ""
