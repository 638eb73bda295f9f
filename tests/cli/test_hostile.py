"""Control characters from untrusted parties in the output of commands.

Starts the local AWS emulator, because names, errors and lines come from jobs.
"""

import asyncio
import json
import re
import shutil
import sys
import uuid

import boto3
import pytest

from farcall.cli import main
from farcall.engine.session import this_user
from tests.support import hostile
from tests.support.foreign import submit

ARGUMENT = hostile.TEXT.encode(errors="ignore").decode()
"""The hostile text that can be an argument or an environment variable."""

SCRIPT = """
import hostile

def fails():
    raise ValueError(hostile.TEXT + hostile.OVERWRITE)
"""


class Value:
    def __repr__(self):
        return hostile.TEXT + hostile.OVERWRITE


def fails():
    print(hostile.TEXT)
    print(hostile.TEXT, file=sys.stderr)
    raise ValueError(hostile.TEXT + hostile.OVERWRITE)


def gives():
    print(f"\x1b[31m{hostile.TEXT}")
    return Value()


@pytest.fixture
async def references(aws, make_executor, tmp_path, monkeypatch):
    """Return placeholder to hostile job, run or script for command lines."""
    (tmp_path / "script.py").write_text(SCRIPT)
    shutil.copy(hostile.__file__, tmp_path)
    batch, queue = boto3.client("batch"), aws.environment["FARCALL_QUEUE"]
    run = f"{this_user()}-20260101-000000-{uuid.uuid4().hex[:6]}"
    foreign = submit(
        batch,
        queue,
        definition=f"farcall-{uuid.uuid4().hex}",
        name="foreign-0123456789abcdef",
        environment={
            "FARCALL_BUNDLE": f"s3://farcall-local/farcall/v1/{run}/bundles/other-0",
            "FARCALL_WORKFLOW": hostile.TEXT,
        },
    )
    batch.terminate_job(jobId=foreign, reason=hostile.TEXT)
    async with make_executor() as executor:
        failed, given = await asyncio.gather(executor.submit(fails), executor.submit(gives))
        await asyncio.gather(failed.wait(), given.wait())
        yield {
            "FOREIGN": foreign,
            "FAILED": failed.id,
            "GIVEN": given.id,
            "RUN": await executor.run_name(),
            "SCRIPT": tmp_path / "script.py",
        }


# Arguments of each command, and an environment variable if one is needed.
SHOWING = [
    ("list --all-users --since 1d",),
    (f"list {ARGUMENT}",),
    ("describe FOREIGN",),
    ("describe FAILED",),
    ("logs FAILED",),
    ("logs GIVEN --timestamps",),
    ("result FAILED",),
    ("result GIVEN",),
    ("recover RUN",),
    (f"recover {ARGUMENT}",),
    ("run SCRIPT:fails",),
    (f"cancel --workflow {ARGUMENT} --all-users",),
    (f"cancel --run {ARGUMENT}",),
    ("doctor", "FARCALL_QUEUE", ARGUMENT),
    ("ui", "FARCALL_QUEUE", ARGUMENT),
    ("configure --print", "FARCALL_QUEUE", ARGUMENT),
]
LIVE = ("logs", "run")
"""Commands that let a task overwrite its own line."""


async def test_untrusted_text_is_escaped(references, commands, monkeypatch):
    for line, *variable in SHOWING:
        with monkeypatch.context() as changes:
            if variable:
                changes.setenv(*variable)
            words = [
                re.sub("^[A-Z]+", lambda w: str(references.get(w[0], w[0])), w)
                for w in line.split(" ")
            ]
            shown = await asyncio.to_thread(commands.run_on_terminal, *words, columns=300)
        assert hostile.obeyed(shown.text.replace("\r", "")) == set(), (line, shown.text)
        assert hostile.MARK in shown.text, (line, shown.text)
        if line.partition(" ")[0] not in LIVE:  # where output is
            assert hostile.OVERWRITE not in shown.text, (line, shown.text)


@pytest.mark.parametrize("name", main.COMMANDS)
def test_arguments_are_escaped(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["farcall", name, f"--{ARGUMENT}"])
    with pytest.raises(SystemExit):
        main.main()
    out, err = capsys.readouterr()
    assert hostile.obeyed(out + err) == set(), err
    assert hostile.MARK in out + err


async def test_json_output_is_valid(references, farcall_command):
    for words in (["list", "--all-users"], ["describe", "FAILED"]):
        done = await farcall_command(*(references.get(word, word) for word in words), "--json")
        assert hostile.obeyed(done.stdout) == set()
        assert hostile.MARK in json.dumps(json.loads(done.stdout)), words
    done = await farcall_command("logs", references["FAILED"], "--json")
    assert hostile.obeyed(done.stdout) == set()
    texts = {json.loads(line)["text"] for line in done.stdout.splitlines()}
    assert any(ARGUMENT[:40] in text for text in texts)
