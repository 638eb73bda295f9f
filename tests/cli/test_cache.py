"""``farcall cache``."""

import json

import pytest

KEY = "the key of these tests"


def double(x):
    return 2 * x


@pytest.fixture
async def cached(make_executor):
    """Cache two results, and return the variables with which commands find them."""
    async with make_executor(cache=True, cache_key=KEY, prefix="farcall/cached") as executor:
        assert await executor.task(double).map([1, 2]) == [2, 4]
    return {"FARCALL_PREFIX": "farcall/cached"}


async def test_cached_results_are_listed_and_deleted(cached, farcall_command):
    done = await farcall_command("cache", "list", "--json", **cached)
    (function,) = json.loads(done.stdout)
    assert (function["function"], function["results"]) == ("double", 2)
    listed = (await farcall_command("cache", "list", **cached)).stdout.splitlines()
    assert listed[1].startswith(f"double    {function['digest'][:8]}        2")
    done = await farcall_command("cache", "clear", "double", **cached)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no cached result was deleted: stdin is not a terminal" in done.stderr
    done = await farcall_command("cache", "clear", "other", "--yes", **cached)
    assert done.stdout == "There are no such cached results.\n"
    done = await farcall_command("cache", "clear", "--yes", **cached)
    assert done.stdout == "Deleted 2 cached results.\n"
    done = await farcall_command("cache", "list", **cached)
    assert (done.stdout, done.stderr.startswith("There are no cached results.")) == ("", True)
