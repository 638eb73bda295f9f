"""``farcall replay``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from farcall import VersionMismatchError
from farcall.engine.session import session_for
from farcall.model.settings import Settings
from farcall.operations import replay
from tests.service.attacker import Attacker
from tests.support.wheels import Index

LARGE = 2 * 1024 * 1024
"""Bytes of what is stored by itself, as values are that tasks share."""

IMAGE = """#!{python}
import json, subprocess, sys
words = sys.argv[1:]
mount = dict(part.partition("=")[::2] for part in words[words.index("--mount") + 1].split(","))
at = words.index("--entrypoint")
program, image, *rest = words[at + 1:]
print(json.dumps([words[3:5], program, image, sorted(mount)]), file=sys.stderr)
rest[rest.index(mount["target"])] = mount["source"]
sys.exit(subprocess.run([sys.executable, *rest]).returncode)
"""
"""In the place of docker: it runs here what it is told to run in an image."""


@pytest.fixture
def docker(tmp_path):
    program = tmp_path / "programs" / "docker"
    program.parent.mkdir()
    program.write_text(IMAGE.format(python=sys.executable))
    program.chmod(0o755)
    return program


@pytest.fixture
def farcall(farcall_command):
    """Gives the exit code, stdout and stderr of a command."""

    async def run(*arguments, **environment):
        done = await farcall_command(*arguments, **environment)
        return done.returncode, done.stdout, done.stderr

    return run


def parse(text, number, large=b""):
    print(f"number {number}", os.environ.get("AWS_BATCH_JOB_ARRAY_INDEX"), flush=True)
    assert not large or len(large) == LARGE
    wanted = json.loads(text)
    return {"wanted": wanted}


async def test_a_failed_call_runs_again_here(executor, farcall):
    job = await executor.submit(parse, "{", 7)
    await job.exception()

    code, out, err = await farcall("replay", job.id, "--yes")

    assert (code, out) == (1, "number 7 None\n")
    told, _, trace = err.partition("farcall: the call failed after ")
    assert f"job {job.id} (parse-" in told
    assert "on Batch: the function raised json.decoder.JSONDecodeError" in told
    assert "yours, by its name" in told
    assert "with your rights" in told
    assert "wanted = json.loads(text)" in trace
    assert "farcall_runtime" not in trace


async def test_the_debugger_stops_in_the_users_own_frame(executor, commands):
    job = await executor.submit(parse, "{", 7)
    await job.exception()

    done = commands.run("replay", job.id, "--pdb", "--yes", answer="p (text, number + 1)\nq\n")

    assert done.returncode == 1
    assert "('{', 8)" in done.stdout


async def test_of_an_array_the_first_failed_call_is_meant(executor, farcall):
    calls = [("0", 0), ("1", 1), ("2", 2), ("{", 3), ("4", 4), ("5", 5)]
    sweep = executor.task(parse).starmap(calls, chunksize=2, return_exceptions=True)
    assert isinstance((await sweep)[3], json.JSONDecodeError)
    session = await session_for(Settings())
    (array,) = [
        job.job_id
        async for page in session.backend.list_jobs(Settings().batch_queue, named="parse")
        for job in page
        if job.array_size == 3
    ]

    code, out, err = await farcall("replay", array, "--yes")
    again, value, _ = await farcall("replay", f"{array}:1", "--call", "0", "--yes")
    beyond, _, why = await farcall("replay", f"{array}:1", "--call", "2", "--yes")

    assert (code, out) == (1, "number 3 1\n")
    assert f"job {array}:1 (parse-" in err
    assert (again, value) == (0, "number 2 1\n{'wanted': 2}\n")
    assert (beyond, why.splitlines()[-1]) == (
        1,
        "farcall: --call is 2; the task's calls are 0 to 1",
    )


async def test_nothing_runs_before_somebody_agrees(executor, farcall, commands):
    job = await executor.submit(parse, "{", 7)
    await job.exception()

    code, out, err = await farcall("replay", job.id)
    shown = commands.run_on_terminal("replay", job.id, answer="n\n")

    assert (code, out) == (1, "")
    assert "farcall: there is no terminal to ask on" in err
    assert "Run it? [y/N]" in str(shown)
    assert "number 7" not in str(shown)


async def test_what_somebody_put_in_the_bundles_place_is_not_run(executor, farcall, aws, tmp_path):
    job = await executor.submit(parse, "{", 7)
    await job.exception()
    attacker = Attacker(aws, tmp_path / "marker")
    name = (await job.detail()).name
    (key,) = (key for key in attacker.keys("bundles") if key.endswith(name))
    changed = bytearray(attacker.get(key))
    changed[changed.index(b"wanted")] ^= 1

    for forged in (bytes(changed), attacker.bundle()):
        attacker.put(key, forged)
        code, out, err = await farcall("replay", job.id, "--yes")
        assert (code, out) == (1, "")
        assert "is not what was submitted" in err
    assert not attacker.marker.exists()


async def test_the_image_gets_the_same_call(executor, farcall, docker, aws):
    job = await executor.submit(parse, "{", 7, os.urandom(LARGE))
    await job.exception()
    assert Attacker(aws, docker).keys("/v1/shared/")

    code, out, err = await farcall(
        "replay", job.id, "--image", "--yes", PATH=f"{docker.parent}:{os.environ['PATH']}"
    )

    assert (code, out) == (1, "number 7 None\n")
    (said,) = [json.loads(line) for line in err.splitlines() if line.startswith("[[")]
    image = (await job.detail()).image
    names = ["readonly", "source", "target", "type"]
    assert said == [["--rm", "--interactive"], "python3", image, names]
    assert "JSONDecodeError" in err


async def test_the_runtime_of_a_stock_image_is_the_job_s_or_nothing_runs(
    make_executor, farcall, docker, aws
):
    path = f"{docker.parent}:{os.environ['PATH']}"
    async with make_executor(container_image_uri="", prefix="stock-replay") as executor:
        job = await executor.submit(parse, "{", 7)
        await job.exception()
    key = (await job.detail()).runtime.partition("/")[2]
    attacker = Attacker(aws, docker)

    code, out, err = await farcall("replay", job.id, "--image", "--yes", PATH=path)
    attacker.put(key, b"another")
    refused, _, changed = await farcall("replay", job.id, "--image", "--yes", PATH=path)
    attacker.delete(key)
    again, _, gone = await farcall("replay", job.id, "--image", "--yes", PATH=path)

    assert (code, out) == (1, "number 7 None\n")
    assert "JSONDecodeError" in err
    assert (refused, again) == (1, 1)
    assert "is not what its name says" in changed
    assert "is no longer there, and farcall's part of the container with it" in gone
    assert "[[" not in changed + gone  # docker was not called


def use_travelled():
    import travelled

    raise LookupError(travelled.VERSION)


async def test_packages_of_the_job_are_the_images_and_here_it_is_told_what_differs(
    make_executor, farcall, docker, tmp_path, monkeypatch
):
    with contextlib.closing(Index(tmp_path / "index")) as index:
        for name, value in index.environment.items():
            monkeypatch.setenv(name, value)
        index.add("travelled")
        async with make_executor(packages=["travelled"]) as executor:
            job = await executor.submit(use_travelled)
            assert "1.0" in str(await job.exception())

    here, _, missing = await farcall("replay", job.id, "--yes")
    there, _, raised = await farcall(
        "replay", job.id, "--image", "--yes", PATH=f"{docker.parent}:{os.environ['PATH']}"
    )

    assert (here, there) == (1, 1)
    assert "packages of the job that this Python has not: travelled 1.0, here none" in missing
    assert "ModuleNotFoundError: No module named 'travelled'" in missing
    assert "LookupError: 1.0" in raised
    assert "has not" not in raised


async def test_what_another_python_pickled_is_refused_with_a_way_out(executor):
    job = await executor.submit(parse, "{", 7)
    await job.exception()
    found = await replay.find(await session_for(executor.settings), job.id)

    found.check_python()
    with pytest.raises(VersionMismatchError, match=r"Python 3\.9, .* or add --image"):
        replace(found, bundle=SimpleNamespace(python=(3, 9))).check_python()
