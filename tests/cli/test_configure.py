"""``farcall configure``.

Starts the command on a pseudo-terminal where it prompts; it needs no service.
"""

import asyncio
import json
from pathlib import Path

import pytest
import tomlkit

from farcall import FarcallError, Settings
from farcall.cli.options_file import updated
from farcall.config.files import SECTIONS
from farcall.config.help import describe
from farcall.config.settings import options_of
from tests.support import terminal
from tests.support.commands import FARCALL

MINE = """\
# mine
[other]
a = 1  # kept

[executors.awsbatch]
vcpu = 1  # few
# memory = 3.75

[executors.another]
memory = "theirs"
"""


async def test_unset_options_are_comments(farcall_command, tmp_path):
    done = await farcall_command("configure", "--set", "vcpu=4", "--set", 'tags={"a": "b"}')

    path = tmp_path / ".config/farcall/farcall.toml"
    assert (0, f"{path} was written\n") == (done.returncode, done.stdout), done.stderr
    assert "farcall doctor" in done.stderr
    text = path.read_text()
    section = tomlkit.parse(text)["executors"]["awsbatch"]
    assert {"vcpu": 4, "tags": {"a": "b"}} == section
    assert Settings().vcpu == 4  # the written file is loaded
    for name in options_of("batch"):
        assert f"\n{name} = " in text or f"\n# {name} =" in text
    assert "\n# namespace =" not in text


async def test_update_keeps_content_and_backups(farcall_command, tmp_path):
    path = tmp_path / "farcall.toml"
    path.write_text(MINE)
    for value in (8, 16):
        done = await farcall_command("configure", "--set", f"memory={value}", "--set", "vcpu=2")
        assert 0 == done.returncode, done.stderr

    expected = MINE.replace("# memory = 3.75", "memory = 16").replace("vcpu = 1 ", "vcpu = 2 ")
    assert expected == path.read_text()
    assert MINE == (tmp_path / "farcall.toml.bak").read_text()
    assert "memory = 8" in (tmp_path / "farcall.toml.bak1").read_text()


async def test_invalid_value_writes_nothing(farcall_command, tmp_path):
    path = tmp_path / "farcall.toml"
    path.write_text(MINE)

    done = await farcall_command("configure", "--set", "vcpu=-1")

    assert 2 == done.returncode
    assert "vcpu is -1" in done.stderr
    assert not (tmp_path / "farcall.toml.bak").exists()
    assert MINE == path.read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("executors = 3", "not valid TOML"),
        ("[executors", "not valid TOML"),
        ("[executors.awsbatch]\nvpcu = 1", "did you mean vcpu?"),
        ("[executors.awsbatch]\nvcpu = 'x'", "vcpu is 'x'"),
    ],
)
def test_invalid_options_file_is_rejected(text, said, tmp_path):
    with pytest.raises(FarcallError) as caught:
        updated(text, {"memory": 8}, tmp_path / "farcall.toml")

    assert said in str(caught.value)


@pytest.mark.parametrize("backend", ["batch", "kubernetes"])
def test_options_have_descriptions_and_writable_defaults(backend):
    assert list(Settings.model_fields) == [each.name for each in describe()]
    assert all(each.text for each in describe())
    defaults = {each.name: each.default for each in describe() if each.default is not None}
    values = {name: value for name, value in defaults.items() if name in options_of(backend)}
    values["backend"] = backend

    text = updated("", values, Path("farcall.toml"), backend)

    assert values == tomlkit.parse(text)["executors"][SECTIONS[backend][1]]


async def test_kubernetes_options_have_separate_section(farcall_command, tmp_path):
    path = tmp_path / ".config/farcall/farcall.toml"
    mount = {"type": "volume", "src": "data", "dst": "/data"}
    for assignment in ("backend=kubernetes", f"mounts={json.dumps([mount])}", "namespace=mine"):
        done = await farcall_command("configure", "--set", assignment)
        assert (0, f"{path} was written\n") == (done.returncode, done.stdout.split("backup")[0])
    section = tomlkit.parse(path.read_text())["executors"]["kubernetes"]
    assert {"backend": "kubernetes", "namespace": "mine", "mounts": [mount]} == section
    assert ("kubernetes", "mine") == (Settings().backend, Settings().namespace)
    assert "share_identifier" not in path.read_text()

    refused = await farcall_command("configure", "--set", "share_identifier=mine")
    assert 2 == refused.returncode
    assert "share_identifier, an option for Batch" in refused.stderr

    done = await farcall_command("configure", "--set", "backend=batch", "--set", "queue=q")
    assert 0 == done.returncode, done.stderr
    assert ("batch", "q") == (Settings().backend, Settings().queue)
    assert "mine" == Settings(backend="kubernetes").namespace


async def test_invalid_answer_is_prompted_again(tmp_path):
    command = [FARCALL, "configure", "--file", "new.toml"]
    answers = "eu-west-1\nNo Bucket\nmy-bucket\n\n\n\n\n\n"
    shown = await asyncio.to_thread(terminal.run, command, answer=answers)

    assert 0 == shown.returncode, shown.text
    assert "s3_bucket_name is 'No Bucket'" in shown.text
    section = tomlkit.parse((tmp_path / "new.toml").read_text())["executors"]["awsbatch"]
    assert ("eu-west-1", "my-bucket") == (section["region"], section["s3_bucket_name"])
    assert "farcall-ec2" == section["queue"]
