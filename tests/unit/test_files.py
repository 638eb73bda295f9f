"""Files that are replaced as a whole."""

from __future__ import annotations

import pytest

from farcall.model.files import replacing


def test_a_file_is_as_before_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "folder" / "file"
    with replacing(path) as file:
        file.write(b"one")
        assert not path.exists()
    with replacing(path) as file:
        file.write(b"two")
        file.flush()
        assert path.read_bytes() == b"one"
    assert path.read_bytes() == b"two"
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_what_cannot_be_written_to_its_end_leaves_the_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"tw")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_file_is_nobody_elses_from_its_first_byte(tmp_path):
    with replacing(tmp_path / "file", mode=0o600) as file:
        file.write(b"secret")
        (part,) = tmp_path.iterdir()
        assert part.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
