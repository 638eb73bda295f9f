"""Shorter waits for users' tests, and their scope."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import typing
from dataclasses import replace
from pathlib import Path

import pytest

from farcall import Settings
from farcall.aws.clients import Aws
from farcall.testing import Happening, ScriptedFailure, Timing, use_timing

DOCS = Path(__file__).parents[3] / "docs"
SETTINGS = Settings(endpoint_url="http://127.0.0.1:9", region="us-east-1")


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


async def opened_with():
    aws = await Aws.open(SETTINGS)
    await aws.close()
    return aws.timing


async def test_real_timing_is_the_default():
    assert await opened_with() == Timing()


async def test_client_keeps_timing_of_its_block():
    short = replace(Timing.fast(), read_timeout_s=1.5)
    with use_timing(Timing.fast()):
        with use_timing(short):
            aws = await Aws.open(SETTINGS)
        assert await opened_with() == Timing.fast()
    assert aws.timing == short
    assert aws.batch.meta.config.read_timeout == 1.5
    await aws.close()
    assert await opened_with() == Timing()


async def test_timing_block_covers_all_threads():
    found = []
    with pytest.raises(LookupError), use_timing(Timing.fast()):
        found.append(await asyncio.to_thread(asyncio.run, opened_with()))
        raise LookupError
    assert found == [Timing.fast()]
    assert await opened_with() == Timing()


# --- the fake cloud in docs/testing.md --------------------------------------------------------


def test_page_shows_the_tested_files():
    page = (DOCS / "testing.md").read_text(encoding="utf-8")
    for name in ("pipeline.py", "test_pipeline.py"):
        assert (DOCS / "testing" / name).read_text(encoding="utf-8") in page


def test_page_lists_all_scripted_events():
    page = (DOCS / "testing.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)\(", page, re.MULTILINE)
    known = {*typing.get_args(Happening), *ScriptedFailure.__subclasses__()}
    assert sorted(listed) == sorted(each.__name__ for each in known)


@pytest.mark.slow
def test_example_works_without_plugins(tmp_path):
    """It runs in another pytest, without plugins and configuration."""
    shutil.copytree(DOCS / "testing", tmp_path / "project")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"],
        cwd=tmp_path / "project",
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project"]
