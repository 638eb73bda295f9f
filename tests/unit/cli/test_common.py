"""Times and durations on the command line."""

import asyncio
from datetime import UTC, datetime, timedelta

import click
import pytest

from farcall.cli.common import moment, reporting_wait, seconds


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("1.5h", timedelta(hours=1.5)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("1h30m", timedelta(minutes=90)),
    ],
)
def test_age_is_counted_from_now(text, ago):
    before = datetime.now(UTC)
    assert before <= moment(text) + ago <= datetime.now(UTC)


def test_date_uses_its_or_local_zone():
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert moment("2026-11-20T14:00+02:00") == noon
    assert moment("2026-11-20T12:00") == datetime(2026, 11, 20, 12).astimezone()
    assert moment("2026-11-20T14:00+02:00").tzinfo is UTC


@pytest.mark.parametrize(
    "text", ["", "h", "3", "3y", "-3h", "yesterday", "2026-13-01", f"{9**20}w"]
)
def test_invalid_time_is_rejected(text):
    with pytest.raises(click.BadParameter, match="is not an age, such as 90s"):
        moment(text)


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("90s", 90), ("1h30m", 5400)])
def test_duration_accepts_seconds_or_units(text, value):
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "-1", "soon", "1:30", "nan", "10 minutes"])
def test_invalid_duration_is_rejected(text):
    with pytest.raises(click.BadParameter, match=r"not a valid duration: use units, such as 90s"):
        seconds(text)


async def test_silent_platform_is_named(capsys):
    with reporting_wait("Kubernetes", after_s=0):
        await asyncio.sleep(0.01)
    with reporting_wait("Batch"):
        await asyncio.sleep(0)
    assert capsys.readouterr().err == "farcall: still waiting for Kubernetes to respond\n"
