"""What ``MODULE:FUNCTION`` names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from farcall import FarcallError
from farcall.cli.targets import find

WORK = """
from farcall import BatchExecutor

def add(x, y=2): ...

def sleep(seconds): ...

@BatchExecutor().task
def task(x): ...

broken = 3
"""


@pytest.fixture(autouse=True)
def _modules_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "faulty.py").write_text("import nothing_of_this_name\n")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield
    for name in {"work", "faulty"} - before:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("work:ad", click.UsageError, "work has no function 'ad'; did you mean add?"),
        ("math:sqroot", click.UsageError, "math has no function 'sqroot'; did you mean sqrt?"),
        ("wrok:add", click.UsageError, "there is no module 'wrok' in"),
        ("json.decode:add", click.UsageError, "in json; did you mean json.decoder?"),
        ("wrok.py:add", click.UsageError, "did you mean work.py?"),
        ("work.py:zzz", click.UsageError, "there is add, sleep, task"),
        ("work:broken", click.UsageError, "work:broken is a int, not a function"),
        ("work", click.UsageError, "MODULE:FUNCTION"),
        ("faulty:add", FarcallError, "No module named 'nothing_of_this_name'"),
        ("faulty.py:add", FarcallError, "line 1, in <module>"),
    ],
)
def test_what_is_not_there_is_named_with_what_is_near(
    name: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        find(name)

    assert said in str(getattr(caught.value, "message", caught.value))
