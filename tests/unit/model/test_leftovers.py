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

# Elsewhere nothing is taken for gone, which `is_gone` says.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def ended():
    """The identity of a process that has ended."""
    process = subprocess.Popen(["sleep", "60"])
    owner = identity(process.pid)
    process.kill()
    process.wait()
    return owner


def test_a_process_that_has_ended_is_gone(ended):
    assert is_gone(ended)


def test_this_process_is_not_gone():
    assert not is_gone(identity(os.getpid()))


def test_a_process_id_used_again_is_another_process():
    """Another process with an earlier start had this ID before."""
    where, _, began = identity(os.getpid()).rpartition("-")
    assert is_gone(f"{where}-{int(began) - 1}")


def test_what_cannot_be_seen_from_here_is_left_alone(ended):
    """Processes of another host, or of a container with processes of its own."""
    host, namespace, pid, began = ended.rsplit("-", 3)
    assert not is_gone(f"x{host}-{namespace}-{pid}-{began}")
    assert not is_gone(f"{host}-{int(namespace) + 1}-{pid}-{began}")
    assert not is_gone("")
    assert not is_gone("alice's")


def test_folders_go_with_their_owner(ended, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for owner in (ended, identity(os.getpid())):
        Path(tempfile.mkdtemp(prefix=f"things-{owner}-")).joinpath("file").write_text("x")
    remove_folders("things-")
    assert [
        is_gone(path.name.split("-", 1)[1].rpartition("-")[0]) for path in tmp_path.iterdir()
    ] == [False]
