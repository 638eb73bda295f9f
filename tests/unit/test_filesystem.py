"""Files that are replaced atomically, and folders of killed processes."""

import grp
import os
import pwd
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from farcall.filesystem import identity, is_gone, is_own, remove_folders, replacing

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
"""On other systems, `is_gone` never returns True."""


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
            "from farcall.filesystem import replacing",
            "with replacing(Path('/dev/fd/1')) as file:",
            "    file.write(b'value')",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"value"


@pytest.fixture
def ended():
    """Identity of a process that has exited."""
    process = subprocess.Popen(["sleep", "60"])
    owner = identity(process.pid)
    process.kill()
    process.wait()
    return owner


@linux
def test_exited_process_is_gone(ended):
    assert is_gone(ended)


@linux
def test_current_process_is_not_gone():
    assert not is_gone(identity(os.getpid()))


@linux
def test_reused_process_id_is_another_process():
    """Another process that started earlier had this ID."""
    where, _, began = identity(os.getpid()).rpartition("-")
    assert is_gone(f"{where}-{int(began) - 1}")


@linux
def test_invisible_process_is_not_gone(ended):
    """Examples are processes of another host or of a container with its own processes."""
    host, namespace, pid, began = ended.rsplit("-", 3)
    assert not is_gone(f"x{host}-{namespace}-{pid}-{began}")
    assert not is_gone(f"{host}-{int(namespace) + 1}-{pid}-{began}")
    assert not is_gone("")
    assert not is_gone("alice's")


@linux
def test_folders_of_gone_processes_are_removed(ended, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for owner in (ended, identity(os.getpid())):
        Path(tempfile.mkdtemp(prefix=f"things-{owner}-")).joinpath("file").write_text("x")
    remove_folders("things-")
    assert [
        is_gone(path.name.split("-", 1)[1].rpartition("-")[0]) for path in tmp_path.iterdir()
    ] == [False]


# --- files of other users -----------------------------------------------------------------------

OTHER = 1234

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes owners")


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own"
    path.touch(0o644)
    return path


def group_is(monkeypatch, name, *members):
    """Give all groups a name and members; this user's name is "ada"."""
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="ada"))
    group = SimpleNamespace(gr_name=name, gr_mem=list(members))
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)


@pytest.mark.parametrize(("mode", "expected"), [(0o644, True), (0o600, True), (0o646, False)])
def test_file_writable_by_all_is_not_own(own, mode, expected):
    own.chmod(mode)
    assert is_own(own) is expected


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (("ada",), True),
        (("ada", "ada"), True),
        (("ada", "bob"), False),
        (("users",), False),  # primary group of many users, who are not listed as members
    ],
)
def test_only_private_group_may_write(own, group, expected, monkeypatch):
    group_is(monkeypatch, *group)
    own.chmod(0o664)
    assert is_own(own) is expected


def test_unnamed_group_may_not_write(own, monkeypatch):
    def fail(_):
        raise KeyError

    monkeypatch.setattr(grp, "getgrgid", fail)
    own.chmod(0o664)
    assert not is_own(own)


@linux
def test_access_list_is_no_private_group(own, monkeypatch):
    group_is(monkeypatch, "ada")
    own.chmod(0o664)
    monkeypatch.setattr(os, "listxattr", lambda _: ["system.posix_acl_access"])
    assert not is_own(own)


@as_root
def test_file_of_other_user_is_not_own(own):
    os.chown(own, OTHER, OTHER)
    assert not is_own(own)


@as_root
def test_own_file_in_sticky_folder_is_own(own):
    own.parent.chmod(0o1777)
    assert is_own(own)
    assert not is_own(own.parent)


@as_root
def test_link_of_other_user_is_not_own(own):
    first, second = own.with_name("first"), own.with_name("second")
    second.symlink_to(own.name)
    first.symlink_to(second)
    assert is_own(first)
    os.lchown(second, OTHER, OTHER)
    assert not is_own(first)


def test_missing_file_and_link_loop_are_not_own(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert not is_own(loop)
    assert not is_own(tmp_path / "missing")
