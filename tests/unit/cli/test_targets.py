"""Functions named by `MODULE:FUNCTION`."""

import sys

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

UNGUARDED = """
import asyncio
from farcall import BatchExecutor, BatchPoolExecutor

def add(x): ...

if {is_async}:
    async def main():
        async with BatchExecutor():
            ...
    asyncio.run(main())
else:
    BatchPoolExecutor().submit(add, 1)
"""


@pytest.fixture(autouse=True)
def _modules_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "faulty.py").write_text("import nothing_of_this_name\ndef add(): ...\n")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield
    for name in {"work", "faulty"} - before:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("work:ad", click.UsageError, "work has no function 'ad'. Did you mean add?"),
        ("math:sqroot", click.UsageError, "math has no function 'sqroot'. Did you mean sqrt?"),
        ("wrok:add", click.UsageError, "no module 'wrok' in"),
        ("json.decode:add", click.UsageError, "no module 'json.decode'"),
        ("wrok.py:add", click.UsageError, "file wrok.py does not exist"),
        ("work.py:zzz", click.UsageError, "Available: add, sleep, task"),
        ("work:broken", click.UsageError, "work:broken is a int, not a function"),
        ("work", click.UsageError, "MODULE:FUNCTION"),
        ("faulty:add", FarcallError, "No module named 'nothing_of_this_name'"),
        ("faulty.py:add", FarcallError, "line 1, in <module>"),
    ],
)
def test_missing_function_gets_suggestion(name, error, message):
    with pytest.raises(error) as caught:
        find(name)

    assert message in str(getattr(caught.value, "message", caught.value))


@pytest.mark.parametrize(("is_async", "line"), [(True, 11), (False, 13)])
def test_unguarded_module_is_refused_with_line(tmp_path, is_async, line):
    path = tmp_path / "unguarded.py"
    path.write_text(UNGUARDED.format(is_async=is_async))
    with pytest.raises(FarcallError, match=f"line {line} of .*unguarded.py runs jobs"):
        find(f"{path}:add")
