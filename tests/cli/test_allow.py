"""``farcall allow``, and what a command believes of the folder it is called in."""

from __future__ import annotations

import asyncio
import json
import pathlib

import pytest

from tests.support import terminal
from tests.support.commands import FARCALL


class Value:
    """Reading it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(self.mark),)


def give(mark):
    return Value(mark)


@pytest.fixture
async def cloned(aws, executor, tmp_path, monkeypatch):
    """A folder whose farcall.toml leads to somebody's AWS, and the job of theirs that waits."""
    mark = tmp_path / "mark"
    job = await executor.submit(give, str(mark))
    await job.wait()
    folder = tmp_path / "cloned"
    folder.mkdir()
    (folder / "farcall.toml").write_text(
        f'[executors.awsbatch]\nendpoint_url = "{aws.endpoint_url}"\n'
        's3_bucket_name = "farcall-local"\nvcpu = 1\n'
    )
    monkeypatch.chdir(folder)
    for name in ("AWS_ENDPOINT_URL", "FARCALL_ENDPOINT_URL", "FARCALL_S3_BUCKET_NAME"):
        monkeypatch.delenv(name, raising=False)
    return job.id, mark


async def test_a_cloned_folder_has_nothing_read_before_its_user_agreed(
    cloned, farcall_command, installed_command
):
    job_id, mark = cloned
    for command in (
        ["result", job_id],
        ["attach", job_id],
        ["recover"],
        ["list"],
        ["logs", job_id],
    ):
        done = await farcall_command(*command)
        assert (done.returncode, done.stdout) == (1, "")
        assert "cloned/farcall.toml decides endpoint_url, s3_bucket_name" in done.stderr
        assert "`farcall allow`" in done.stderr
    assert not mark.exists()

    done = await installed_command("allow")
    assert (done.returncode, done.stdout) == (0, "")
    assert "  s3_bucket_name = farcall-local\n" in done.stderr
    assert "vcpu" not in done.stderr
    done = await farcall_command("result", job_id)
    assert done.returncode == 0, done.stderr
    assert mark.exists()


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\x04", 130)])
async def test_a_terminal_is_asked(cloned, answer, code):
    job_id, mark = cloned
    shown = await asyncio.to_thread(
        terminal.run, [FARCALL, "result", job_id], answer=answer, columns=200
    )
    assert shown.returncode == code, shown.text
    assert "endpoint_url = http" in shown.text
    assert "Agree to that? [y/N]" in shown.text
    assert mark.exists() == (code == 0)


async def test_what_configure_writes_is_agreed_to(tmp_path, farcall_command):
    done = await farcall_command("configure", "--file", "farcall.toml", "--set", "prefix=mine")
    assert done.returncode == 0, done.stderr
    done = await farcall_command("configure", "--set", "batch_queue=mine")
    assert done.returncode == 0, done.stderr
    done = await farcall_command("configure", "--print")
    assert 'batch_queue = "mine"' in done.stdout

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "farcall.toml").write_text('[executors.awsbatch]\nregion = "theirs"\n')
    done = await farcall_command(
        "configure", "--file", "other/farcall.toml", "--set", "prefix=mine"
    )
    assert done.returncode == 0, done.stderr
    noted = json.loads((tmp_path / ".config/farcall/agreed.json").read_text())
    assert list(noted) == [str(tmp_path / "farcall.toml")]


async def test_a_function_of_the_folder_needs_no_yes(tmp_path, farcall_command):
    (tmp_path / "farcall.toml").write_text('[executors.awsbatch]\nbatch_queue = "mine"\n')
    (tmp_path / "train.py").write_text("def fit(): pass\n")
    for target in ("train:fit", "train.py:fit"):
        done = await farcall_command("plan", "--offline", target)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["SubmitJob"]["jobQueue"] == "mine"
    done = await farcall_command("plan", "--offline", "json:dumps", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "batch_queue, and you have not agreed" in done.stderr
