"""What a file of the working directory decides, and whether its user agreed."""

from __future__ import annotations

import grp
import json
import pickle
import pwd
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from farcall import Settings
from farcall.model import config_trust, settings
from farcall.model.config_trust import NotAgreedError
from farcall.model.errors import SettingsError


def write(text, path="farcall.toml"):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[executors.awsbatch]\n{text}\n")
    return path


def agree(path="farcall.toml"):
    path = Path(path)
    return config_trust.agree(path, settings.decided(path))


@pytest.mark.parametrize(
    "text",
    [
        'endpoint_url = "http://127.0.0.1:9"',
        'batch_queue = "theirs"',
        'container_image_uri = "theirs"',
        'job_definition_extra = {containerProperties = {image = "theirs"}}',
    ],
)
def test_what_says_where_counts_only_once_its_user_agreed(text):
    option = text.partition(" ")[0]
    path = write(text).absolute()
    with pytest.raises(SettingsError) as caught:
        Settings()
    for part in (str(path), option, "farcall allow", "FARCALL_CONFIG=PATH"):
        assert part in str(caught.value)
    assert caught.value.option == option
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    agree()
    assert option in Settings().model_fields_set


def test_what_says_how_needs_no_yes():
    write('vcpu = 4\nmemory = 8\nretry_attempts = 1\nworkflow = "nightly"\ntags = {a = "b"}')
    assert (Settings().vcpu, Settings().workflow) == (4, "nightly")


def test_agreed_is_to_values():
    write('batch_queue = "mine"\nvcpu = 1')
    agree()
    write('batch_queue = "mine"\nvcpu = 2')
    assert Settings().vcpu == 2
    write('batch_queue = "theirs"\nvcpu = 2')
    with pytest.raises(NotAgreedError, match="batch_queue"):
        Settings()
    write('batch_queue = "mine"\nendpoint_url = "http://127.0.0.1:9"')
    with pytest.raises(NotAgreedError, match="endpoint_url"):
        Settings()


def test_what_comes_from_elsewhere_needs_no_yes(monkeypatch):
    write('batch_queue = "theirs"\nprefix = "theirs"')
    monkeypatch.setenv("FARCALL_BATCH_QUEUE", "mine")
    with pytest.raises(NotAgreedError):
        Settings()
    assert Settings(prefix="mine").batch_queue == "mine"


def test_of_a_file_that_others_can_write_each_option_needs_a_yes():
    path = write("vcpu = 96")
    path.chmod(0o666)
    with pytest.raises(NotAgreedError, match="vcpu"):
        Settings()
    agree()
    assert Settings().vcpu == 96


@pytest.mark.parametrize(
    ("group", "primary", "members", "is_own"),
    [
        ("me", 7, [], True),
        ("me", 7, ["me"], True),
        ("me", 7, ["other"], False),
        ("staff", 7, [], False),  # everybody's primary one
        ("me", 8, [], False),
    ],
)
def test_a_group_that_is_not_the_user_s_own_can_write_a_file(
    monkeypatch, group, primary, members, is_own
):
    monkeypatch.setattr(
        grp, "getgrgid", lambda _: SimpleNamespace(gr_gid=7, gr_name=group, gr_mem=members)
    )
    monkeypatch.setattr(
        pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me", pw_gid=primary, pw_dir="/")
    )
    path = write("vcpu = 96")
    path.chmod(0o664)
    assert config_trust.is_own(path) is is_own
    path.chmod(0o644)
    assert config_trust.is_own(path)


def test_the_home_s_file_needs_no_yes():
    write('batch_queue = "mine"', Path("~/.config/farcall/farcall.toml").expanduser())
    assert Settings().batch_queue == "mine"


def test_a_file_that_is_named_needs_no_yes_and_is_alone(monkeypatch):
    write('batch_queue = "theirs"')
    monkeypatch.setenv("FARCALL_CONFIG", str(write('prefix = "mine"', "other/mine.toml")))
    assert (Settings().prefix, Settings().batch_queue) == ("mine", "covalent-batch-queue")
    monkeypatch.setenv("FARCALL_CONFIG", "nowhere.toml")
    with pytest.raises(SettingsError, match="FARCALL_CONFIG is 'nowhere.toml'"):
        Settings()


def test_where_it_is_noted_is_the_user_s_alone():
    write('batch_queue = "mine"')
    noted = agree()
    assert noted.stat().st_mode & 0o777 == 0o600
    assert list(json.loads(noted.read_text())) == [str(Path("farcall.toml").resolve())]
    noted.write_text("no JSON")
    with pytest.raises(NotAgreedError):
        Settings()


def test_what_is_installed_beside_python_is_no_program_of_its_folder(tmp_path, monkeypatch):
    write('batch_queue = "theirs"')
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "python"))
    monkeypatch.setattr(config_trust, "_programs", [])
    config_trust.note_program(str(tmp_path / "python" / "bin" / "farcall"))
    with pytest.raises(NotAgreedError):
        Settings()
    config_trust.note_program(str(tmp_path / "bin" / "mine"))
    assert Settings().batch_queue == "theirs"


def test_without_a_home_no_file_of_the_working_directory_is_taken_for_the_home_s(monkeypatch):
    write('batch_queue = "theirs"', Path("~/.config/farcall/farcall.toml"))

    def unknown(_):
        raise KeyError("no such user")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert settings.files() == []
    assert Settings().batch_queue == "covalent-batch-queue"
