"""The key of a user's cached results."""

import re
import stat

import pytest

from farcall import Settings, SettingsError
from farcall.config.cache_keys import cache_key


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".config/farcall/cache.key"


def test_key_is_created_once(file):
    key = cache_key(Settings())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (len(key), cache_key(Settings())) == (32, key)
    assert [each.name for each in file.parent.iterdir()] == ["cache.key"]


def test_option_replaces_file(file):
    key = cache_key(Settings(cache_key="the key of our team"))
    assert key == cache_key(Settings(cache_key="the key of our team")) != cache_key(Settings())


def test_key_that_others_read_is_refused(file):
    cache_key(Settings())
    file.chmod(0o640)
    with pytest.raises(SettingsError, match=f"chmod 600 {re.escape(str(file))}"):
        cache_key(Settings())


def test_damaged_key_is_refused(file):
    cache_key(Settings())
    file.write_text("abc")
    with pytest.raises(SettingsError, match="does not contain a key of 64"):
        cache_key(Settings())


def test_folder_that_cannot_be_used_is_an_error(file):
    file.parent.parent.mkdir()
    file.parent.write_text("no folder")
    with pytest.raises(SettingsError, match="Set cache_key"):
        cache_key(Settings())
