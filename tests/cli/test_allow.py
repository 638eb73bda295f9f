"""``farcall allow``, and commands in a folder with an untrusted farcall.toml.

Starts the local AWS emulator, because nothing may be read from there before approval.
"""

from __future__ import annotations

import pathlib

import pytest


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
