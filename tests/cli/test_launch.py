"""``farcall launch``.

Starts the local AWS emulator, because exit codes and lines come from real nodes.
"""

import asyncio
import functools
import signal
import subprocess
from pathlib import Path

import boto3
import pytest

from tests.support.commands import FARCALL
from tests.support.patience import PATIENCE_S, until_async
from tests.support.proxy import Proxy

SMALL = ("--vcpu", "1", "--memory", "0.25", "-o", "retry_attempts=1")


@pytest.fixture
def launch(farcall_command, aws):
    """Run ``farcall launch`` with small jobs; words after ``--`` are not changed."""
    return functools.partial(farcall_command, "launch", *SMALL)


@pytest.fixture
def batch(aws):
    return boto3.client("batch")


def job_in(err):
    """Return the ID on stderr."""
    return next(words[1] for words in map(str.split, err.splitlines()) if words[:1] == ["job"])


# --- results ---------------------------------------------------------------------------------


async def test_main_node_exit_code_is_returned(farcall_command, aws, tmp_path):
    # The other node is stopped when the main node exits, so the main node waits for its output.
    said = tmp_path / "said"
    text = (
        "echo node $AWS_BATCH_JOB_NODE_INDEX; "
        f"if [ $AWS_BATCH_JOB_NODE_INDEX = 1 ]; then touch {said}; sleep 600; fi; "
        f"until [ -e {said} ]; do sleep 0.05; done; exit 3"
    )
    words = ["launch", "img-of-two", "--nodes", "2", *SMALL, "--", "sh", "-c", text]
    with Proxy(aws.endpoint_url) as proxy:
        for number, registered in ((1, 1), (2, 1)):  # the second job reuses the definition
            said.unlink(missing_ok=True)
            done = await farcall_command(*words, AWS_ENDPOINT_URL=proxy.url)
            assert 3 == done.returncode, done.stderr
            assert ["0: node 0", "1: node 1"] == sorted(done.stdout.splitlines())
            assert f"job {job_in(done.stderr)} (img-of-two-" in done.stderr
            assert "the command failed (exit code 3)" in done.stderr
            assert "Traceback" not in done.stderr
            assert proxy.counts["batch registerjobdefinition"] == registered
            assert proxy.counts["batch submitjob"] == number
    assert not proxy.of("s3")


async def test_command_arguments_and_output_are_unchanged(launch):
    command = ["sh", "-c", "echo $A $B $0 $@", "--vcpu", "-h", "--"]
    done = await launch("img", "-e", "A=1=2", "-e", "B", "--", *command, B="two words")
    assert (0, "1=2 two words --vcpu -h --\n") == (done.returncode, done.stdout), done.stderr


async def test_options_are_applied_to_job(launch, batch):
    words = ["--name", "my hello", "--workflow", "nightly", "--time-limit", "77", "-o", "nodes=2"]
    done = await launch(*words, "img", "--detach", "--", "true")
    job_id = done.stdout.strip()
    assert f"{job_id}\n" == done.stdout
    assert f"Run `farcall logs -f {job_id}` to follow" in done.stderr
    (job,) = batch.describe_jobs(jobs=[job_id])["jobs"]
    assert job["jobName"].startswith("my-hello-")
    assert 77 == job["timeout"]["attemptDurationSeconds"]
    assert 2 == job["nodeProperties"]["numNodes"]
    group = job["nodeProperties"]["nodeRangeProperties"][0]["container"]
    said = {pair["name"]: pair["value"] for pair in group["environment"]}
    assert "nightly" == said["FARCALL_WORKFLOW"]


async def test_job_without_exit_code_returns_1(launch, batch, aws):
    aws.configure(delays={"RUNNABLE": 600})
    try:
        done = asyncio.ensure_future(launch("img", "--name", "never", "--", "true"))

        def listed():
            only = [{"name": "JOB_NAME", "values": ["never-*"]}]
            found = batch.list_jobs(jobQueue="farcall-local", filters=only)["jobSummaryList"]
            return [job["jobId"] for job in found if job["status"] == "RUNNABLE"]

        (job_id,) = await until_async(listed)
        batch.terminate_job(jobId=job_id, reason="the lab needs the queue")
        ended = await done
    finally:
        aws.configure(delays={})
    assert (1, "") == (ended.returncode, ended.stdout)
    assert "the lab needs the queue" in ended.stderr


async def test_ctrl_c_cancels_all_nodes(batch, tmp_path, aws):
    both = tmp_path / "both"
    text = f"touch {both}$AWS_BATCH_JOB_NODE_INDEX; echo it begins; sleep 600"
    running = await asyncio.create_subprocess_exec(
        *(FARCALL, "launch", *SMALL, "--nodes", "2", "img", "--", "sh", "-c", text),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    await until_async(lambda: all(Path(f"{both}{n}").exists() for n in range(2)))
    first = await asyncio.wait_for(running.stdout.readline(), PATIENCE_S)
    assert first in (b"0: it begins\n", b"1: it begins\n")

    running.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(running.communicate(), PATIENCE_S)

    assert 130 == running.returncode
    (job,) = batch.describe_jobs(jobs=[job_in(err.decode())])["jobs"]
    assert job["isTerminated"]
    assert "Traceback" not in err.decode()


# --- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "Missing argument 'IMAGE'"),
        (
            ["img", "echo", "hi"],
            2,
            "Write the command after --: farcall launch IMAGE -- COMMAND",
        ),
        (["img", "--nodes", "many"], 2, "nodes is 'many'"),
        (["img", "-e", "NO_SUCH_VARIABLE"], 2, "the variable is not set in this shell"),
        (["img", "-e", "AWS_BATCH_X=1"], 2, "Batch reserves names that begin with AWS_BATCH"),
        (["img", "--vcpu", "1.5"], 2, "vcpu=1.5 is not supported on EC2"),
        ([""], 2, "a command job needs an image or groups"),
        (["img", "--detach", "--dry-run"], 2, "--detach and --dry-run cannot be used together"),
        (["img", "--offline"], 2, "--offline requires --dry-run"),
        (["img", "-o", "queue=none"], 2, "queue is 'none'"),
    ],
)
async def test_wrong_usage_submits_nothing(farcall_command, aws, arguments, code, told):
    with Proxy(aws.endpoint_url) as proxy:
        done = await farcall_command("launch", *arguments, AWS_ENDPOINT_URL=proxy.url)
        assert not proxy.counts["batch submitjob"]
        assert not proxy.counts["batch registerjobdefinition"]
    assert (code, "") == (done.returncode, done.stdout), done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


# --- workspaces -------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "work"
    made.mkdir()
    (made / "value").write_text("only here\n")
    return made


async def test_command_starts_in_its_workspace(launch, folder, tmp_path):
    there = tmp_path / "there"
    words = ["--workspace", str(folder), "--workspace-dir", str(there), "img", "--"]
    done = await launch(*words, "cat", "value")
    assert (done.returncode, done.stdout) == (0, "only here\n")
    assert (there / "value").is_file()
