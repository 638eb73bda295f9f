"""``farcall logs``.

Starts the local AWS emulator, because the command follows the output of running jobs.
"""

import asyncio
import functools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import boto3
import pytest

from tests.cli.started import end, line_of, start
from tests.support import foreign, terminal
from tests.support.command_jobs import described, shell, submit
from tests.support.commands import FARCALL


@pytest.fixture
def logs(farcall):
    return functools.partial(farcall, "logs")


def talk(go):
    print("out 1", flush=True)
    print("err 1", file=sys.stderr, flush=True)
    while not Path(go).exists():
        time.sleep(0.05)
    for number in range(2, 2001):
        print(f"out {number}")
    print("err 2", file=sys.stderr)


HOSTILE = "\x1b[2J\x1b]0;title\x07 \x1b[31mred\x1b[0m \x9b1A \u202egnol\ttab"


def write_hostile():
    print(HOSTILE)


@pytest.fixture
async def job(executor, tmp_path):
    """A finished job."""
    (tmp_path / "go").touch()
    submitted = await executor.submit(talk, str(tmp_path / "go"))
    await submitted.wait()
    return submitted


@pytest.mark.core
async def test_follow_shows_both_streams_completely(executor, tmp_path):
    go = tmp_path / "go"
    submitted = await executor.submit(talk, str(go))
    started = start("logs", "-f", submitted.id)
    first = await line_of(started)
    go.touch()
    code, out, err = await end(started)

    assert (code, first) == (0, "out 1\n")
    assert out.splitlines() == [f"out {n}" for n in range(2, 2001)]
    assert err == "err 1\nerr 2\n"


async def test_options_filter_lines(job, logs):
    everything = [f"out {n}" for n in range(1, 2001)]
    code, out, err = await logs(job.id)
    assert (code, out.splitlines(), err) == (0, everything, "err 1\nerr 2\n")

    assert await logs(job.id, "--stderr", "--tail", 1) == (0, "", "err 2\n")
    assert await logs(job.id, "--stdout", "--grep", r"7\d7$", "--tail", 300) == (
        0,
        "".join(f"out {n}\n" for n in range(1707, 1800, 10)),
        "",
    )
    assert await logs(job.id, "--since", "2099-01-01") == (0, "", "")
    _, out, _ = await logs(job.id, "--stderr", "--json", "--since", "1h")
    first, last = map(json.loads, out.splitlines())
    assert {**first, "at": ""} == {
        "text": "err 1",
        "stream": "stderr",
        "attempt": 1,
        "at": "",
        "job": job.id,
    }
    assert first["at"] <= last["at"] < "2099"
    _, out, _ = await logs(job.id, "--timestamps", "--tail", 1, "--stdout")
    assert out == f"{last['at'][:23]}Z out 2000\n"


async def test_only_terminal_output_is_escaped(executor, logs):
    submitted = await executor.submit(write_hostile)
    await submitted.wait()
    assert await logs(submitted.id) == (0, f"{HOSTILE}\n", "")

    shown = await asyncio.to_thread(terminal.run, [FARCALL, "logs", submitted.id])
    text = "^[[2J^[]0;title^G \x1b[31mred\x1b[0m <9B>1A <U+202E>gnol\ttab\x1b[0m\n"
    assert shown == (text, 0)


async def test_ctrl_c_leaves_the_job_running(executor, tmp_path):
    submitted = await executor.submit(talk, str(tmp_path / "go"))
    started = start("logs", "--follow", submitted.id)
    await line_of(started)
    started.send_signal(signal.SIGINT)
    code, _, err = await end(started)

    assert (code, "Traceback" in err) == (130, False)
    assert (await submitted.status()).value == "RUNNING"
    (tmp_path / "go").touch()
    await submitted.wait()


async def test_closed_pipe_ends_quietly(job):
    out = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-o", "pipefail", "-c", f"{FARCALL} logs {job.id} --json | head -c 9"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, '{"text": ', "")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--grep", "["], 2, "is not a valid regular expression"),
        (["--since", "yesterday"], 2, "'yesterday' is not an age"),
        (["--attempt", "0"], 2, "'--attempt'"),
        (["--tail", "-1"], 2, "'--tail'"),
        ([], 3, "farcall: Batch does not know job"),
    ],
)
async def test_wrong_usage_is_explained(aws, logs, arguments, code, words):
    found = await logs("00000000-0000-0000-0000-000000000000", *arguments)
    assert found[:2] == (code, "")
    assert words in found[2]
    assert "Traceback" not in found[2]


# --- command jobs -----------------------------------------------------------------------------


def by_node(lines):
    """Group lines by node; keep the order of each node's lines."""
    found = {}
    for line in lines:
        node, _, text = line.partition(": ")
        found.setdefault(node, []).append(text)
    return found


@pytest.fixture
async def gang(session, tmp_path):
    """A finished job on two nodes, each of which printed two lines."""
    both = " && ".join(f"[ -e {tmp_path}/{n} ]" for n in range(2))
    text = f"echo first; echo second >&2; touch {tmp_path}/$AWS_BATCH_JOB_NODE_INDEX; until {both}"
    job_id = await submit(session, shell(f"{text}; do sleep 0.05; done", 2))
    await described(session, job_id)
    await described(session, f"{job_id}#1")
    return job_id


async def test_lines_begin_with_node_index(gang, logs):
    both = {"0": ["first", "second"], "1": ["first", "second"]}
    code, out, err = await logs(gang)
    assert (code, by_node(out.splitlines()), err) == (0, both, "")
    code, out, err = await logs("-f", gang, "--node", 0, "--node", 1)
    assert (code, by_node(out.splitlines()), err) == (0, both, "")
    assert (await logs(gang, "--grep", "no such"))[1] == ""
    _, out, _ = await logs(gang, "--tail", 1)
    assert len(out.splitlines()) == 1


async def test_foreign_job_logs_are_not_read(aws, logs):
    job_id = foreign.submit(
        boto3.client("batch"), "farcall-local", environment={"FARCALL_RUN": "me"}
    )
    for arguments in ((), ("--node", 0)):
        code, out, err = await logs(job_id, *arguments)
        told = f"farcall: job {job_id} was not submitted by farcall\n"
        assert (code, out, err) == (3, "", told)
