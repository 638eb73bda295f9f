"""Distinction between folders of killed processes and folders in use.

Starts one process that ends at once, because its ID must have been used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from farcall.model.leftovers import identity, is_gone, remove_folders

# On other systems, `is_gone` never returns True.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def ended():
    """Identity of a process that has exited."""
    process = subprocess.Popen(["sleep", "60"])
    owner = identity(process.pid)
    process.kill()
    process.wait()
    return owner


def test_exited_process_is_gone(ended):
    assert is_gone(ended)


def test_current_process_is_not_gone():
    assert not is_gone(identity(os.getpid()))


def test_reused_process_id_is_another_process():
    """Another process that started earlier had this ID."""
    where, _, began = identity(os.getpid()).rpartition("-")
    assert is_gone(f"{where}-{int(began) - 1}")


def test_invisible_process_is_not_gone(ended):
    """Examples are processes of another host or of a container with its own processes."""
    host, namespace, pid, began = ended.rsplit("-", 3)
    assert not is_gone(f"x{host}-{namespace}-{pid}-{began}")
    assert not is_gone(f"{host}-{int(namespace) + 1}-{pid}-{began}")
    assert not is_gone("")
    assert not is_gone("alice's")


def test_folders_of_gone_processes_are_removed(ended, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for owner in (ended, identity(os.getpid())):
        Path(tempfile.mkdtemp(prefix=f"things-{owner}-")).joinpath("file").write_text("x")
    remove_folders("things-")
    assert [
        is_gone(path.name.split("-", 1)[1].rpartition("-")[0]) for path in tmp_path.iterdir()
    ] == [False]
