"""Reports of a map about its failed calls, on the fake cloud."""

import pytest

from farcall import BatchExecutor
from farcall.testing import fake_cloud
from tests.support.notes import notes


def fit(lr, depth=3):
    if lr > 2:
        raise ValueError(f"singular matrix {lr}")
    if lr == 2:
        raise KeyError("lr")
    return lr


@pytest.fixture
def task():
    with fake_cloud():
        yield BatchExecutor(vcpu=1, memory=1, retry_attempts=1, linger_s=0).task(fit)


async def test_failed_calls_are_reported_with_reasons(task, capsys):
    found = await task.map(range(6), depth=5, return_exceptions=True, progress=True)
    assert found[:2] == [0, 1]
    assert [type(error) for error in found[2:]] == [KeyError, *[ValueError] * 3]
    assert "In call 4 of the map: fit(lr=4, depth=5)" in str(notes(found[4]))
    *_, last, first, second = capsys.readouterr().err.splitlines()
    assert "2 of 6 done, 4 failed (ValueError x3, KeyError x1), " in last
    example = first.partition("such as call ")[2].partition(":")[0]
    assert first == (
        f"farcall: fit: 3 x ValueError: singular matrix ... "
        f"(such as call {example}: fit(lr={example}, depth=5))"
    )
    assert second == "farcall: fit: KeyError: 'lr' (call 2: fit(lr=2, depth=5))"


async def test_raised_error_names_its_call(task):
    with pytest.raises(KeyError) as caught:
        await task.map([0, 1, 2], chunksize=3)
    assert "In call 2 of the map: fit(lr=2)" in str(notes(caught.value))


async def test_calls_are_unnamed_without_summaries(task, capsys):
    quiet = task.with_options(store_call_summaries=False)
    (error,) = await quiet.map([3], return_exceptions=True, progress=True)
    assert "of the map" not in str(notes(error))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "farcall: fit: ValueError: singular matrix 3 (call 0)"
