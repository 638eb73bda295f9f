"""Files that are replaced atomically."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from farcall.model.files import replacing


def test_file_is_replaced_only_when_complete(tmp_path):
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


def test_interrupted_write_leaves_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"tw")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_file_is_private_from_first_byte(tmp_path):
    with replacing(tmp_path / "file", mode=0o600) as file:
        file.write(b"secret")
        (part,) = tmp_path.iterdir()
        assert part.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_link_is_kept_and_target_replaced(tmp_path):
    real, link = tmp_path / "real", tmp_path / "folder" / "link"
    link.parent.mkdir()
    link.symlink_to(real)
    for text in (b"one", b"two"):  # at first, the link is broken
        with replacing(link) as file:
            file.write(text)
        assert link.is_symlink()
        assert real.read_bytes() == text
    assert [each.name for each in link.parent.iterdir()] == ["link"]


def test_fifo_is_written_to(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    with replacing(path) as file:
        file.write(b"value")
    assert path.is_fifo()
    reader.join()
    assert read == [b"value"]


def test_standard_output_is_written_to():
    code = "\n".join(
        [
            "from pathlib import Path",
            "from farcall.model.files import replacing",
            "with replacing(Path('/dev/fd/1')) as file:",
            "    file.write(b'value')",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"value"
