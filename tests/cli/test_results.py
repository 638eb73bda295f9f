"""``farcall result`` and ``farcall recover``.

Starts the local AWS emulator, because the commands read jobs of another session.
"""

import asyncio
import json
import pickle
import sys
import time
from pathlib import Path

import pytest


def talk(go):
    print("to stdout", flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    while not Path(go).exists():
        time.sleep(0.05)
    print("the last line", flush=True)
    return {"answer": 42}


def double(x):
    if x == 2:
        raise LookupError(f"no double of {x}")
    return 2 * x


def fail():
    print("before", flush=True)
    raise LookupError("on purpose")


class Word:
    """A class of the workflow, which is pickled by value."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return f"Word({self.text!r})"


def word(text):
    return Word(text)


async def run_of(executor):
    return await executor.run_name()


# --- result -------------------------------------------------------------------------------------


@pytest.mark.core
async def test_printed_result_is_kept(executor, tmp_path, farcall):
    go = tmp_path / "go"
    go.touch()
    job = await executor.submit(talk, str(go))

    for _ in range(2):
        assert await farcall("result", job.id) == (0, "{'answer': 42}\n", "")


async def test_saved_result_is_deleted_remotely(executor, tmp_path, farcall):
    job = await executor.submit(word, "hello")
    path = tmp_path / "values" / "word.pickle"

    assert await farcall("result", job.id, "--output", path) == (0, "", "")

    assert repr(pickle.loads(path.read_bytes())) == "Word('hello')"
    assert [found.name for found in path.parent.iterdir()] == ["word.pickle"]
    code, _, err = await farcall("result", job.id)
    assert code == 1
    assert err.startswith("farcall: ")
    assert "its result is not in the bucket" in err


# --- recover ------------------------------------------------------------------------------------


async def test_recover_lists_runs(executor, farcall):
    await executor.submit(double, 1)

    code, out, err = await farcall("recover")

    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if await run_of(executor) in line]
    assert "double  1 bundle, the first of 20" in line

    code, out, _ = await farcall("recover", "--json")
    (run,) = [run for run in json.loads(out) if run["name"] == await run_of(executor)]
    assert (code, run["bundles"], run["stored_at"][:2]) == (0, 1, "20")
    assert run["functions"] == ["double"]


async def test_recover_shows_each_task_result(make_executor, farcall):
    async with make_executor(linger_s=0.5) as executor:
        jobs = await asyncio.gather(*(executor.submit(double, x) for x in range(3)))
        run = await run_of(executor)

        code, out, err = await farcall("recover", run)

    assert code == 1  # one task failed
    assert sorted(out.splitlines()) == sorted(
        [
            f"{jobs[0].id}  double  returned",
            f"{jobs[1].id}  double  returned",
            f"{jobs[2].id}  double  LookupError: no double of 2",
        ]
    )
    assert err == f"{run}: 3 tasks to collect\n"


async def test_recovered_results_are_deleted_remotely(
    make_executor, tmp_path, farcall, installed_command
):
    async with make_executor(linger_s=0.5) as executor:
        jobs = await asyncio.gather(*(executor.submit(double, x) for x in (3, 4)))
        run = await run_of(executor)
        folder = tmp_path / "values"

        done = await installed_command("recover", run, "--output", folder)

    assert done.returncode == 0
    paths = [folder / f"double-{job.id.replace(':', '-')}.pickle" for job in jobs]
    assert {path.name for path in folder.iterdir()} == {path.name for path in paths}
    assert [pickle.loads(path.read_bytes()) for path in paths] == [6, 8]
    assert sorted(done.stdout.splitlines()) == sorted(
        f"{job.id}  double  saved as {path}" for job, path in zip(jobs, paths, strict=True)
    )
    code, _, err = await farcall("recover", run)
    assert code == 3
    assert err.startswith(f"farcall: run '{run}' has nothing left in s3://")
