"""Arguments that do not fit in memory are stored in a file."""

import os
import pickle
import resource
import signal

import pytest

from farcall import Settings
from farcall.payload import pickling, spill
from farcall.payload.spill import NoRoomError, is_needed, open_file
from farcall_runtime import envelope, memory, pickles

MANY = [f"text number {number}" for number in range(100_000)]  # in band, without buffers


@pytest.fixture
def tight(monkeypatch):
    """Simulate that memory is short once a pickle has 100 kB."""
    monkeypatch.setattr(spill, "_STEP_BYTES", 100_000)
    monkeypatch.setattr(spill, "is_needed", lambda size: size >= 100_000)


def packed(value, folder):
    (found,) = pickling.pack_calls([[((value,), {})]], str(folder))
    return found


def unpacked(found):
    ((args, _),) = pickles.load(envelope.unpack(b"".join(found.pieces)))
    return args[0]


def test_large_pickle_is_in_unnamed_file(tight, tmp_path):
    folder = tmp_path / "cache"
    found = packed(MANY, folder)
    assert unpacked(found) == MANY
    assert (folder.is_dir(), list(folder.iterdir())) == (True, [])
    in_memory = sum(len(piece) for piece in found.pieces if isinstance(piece, bytes))
    assert in_memory < 1000 < found.size


def test_spilled_pickle_has_same_bytes(tight, tmp_path):
    (found,) = pickling.pack_calls([[((MANY,), {})]])
    assert b"".join(packed(MANY, tmp_path).pieces) == b"".join(found.pieces)


def test_sufficient_memory_creates_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(spill, "_STEP_BYTES", 100_000)
    folder = tmp_path / "cache"
    assert unpacked(packed(MANY, folder)) == MANY
    assert not folder.exists()


def test_unusable_folder_is_named_with_option(tight, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NoRoomError, match=r"in cache_dir '.*/file/cache'.*Free space there"):
        packed(MANY, tmp_path / "file" / "cache")


USER, OTHER_USER = 23_456, 23_457
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


def as_user(user, function):
    """Run a function as another user of this machine; return what it prints."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            os.write(writer, repr(function()).encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        content = file.read()
    os.waitpid(pid, 0)
    return content


# The other threads of the test process do not matter to a child that only opens a file.
@pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork:DeprecationWarning")
@as_root
def test_default_folder_works_for_every_user():
    folder = Settings().cache_dir

    def write_and_read():
        with open_file(folder) as file:
            file.write(b"1")
            file.seek(0)
            return file.read()

    assert ["b'1'", "b'1'"] == [as_user(user, write_and_read) for user in (USER, OTHER_USER)]


@as_root
def test_foreign_symbolic_link_is_not_followed(tmp_path):
    (tmp_path / "theirs").mkdir()
    for name, owner in ("trap", OTHER_USER), ("mine", os.geteuid()):
        (tmp_path / name).symlink_to(tmp_path / "theirs")
        os.chown(tmp_path / name, owner, owner, follow_symlinks=False)
    with pytest.raises(OSError, match="symbolic link of another user"):
        open_file(str(tmp_path / "trap" / "cache"))
    assert [] == list((tmp_path / "theirs").iterdir())
    open_file(str(tmp_path / "mine" / "cache")).close()


def test_new_folder_is_private(tmp_path):
    open_file(str(tmp_path / "cache")).close()
    assert 0o700 == (tmp_path / "cache").stat().st_mode & 0o777


def test_full_folder_is_reported(tight, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(NoRoomError, match="File too large"):
            packed(MANY, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_arrays_are_not_spilled(tight, tmp_path):
    array = bytearray(1_000_000)
    found = packed(pickle.PickleBuffer(array), tmp_path)
    assert any(isinstance(piece, memoryview) and piece.obj is array for piece in found.pieces)


def test_file_needed_for_half_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "limit_bytes", lambda: None)
    monkeypatch.setattr(spill, "_MEMINFO", tmp_path / "meminfo")
    assert not is_needed(1 << 50)  # no information on memory
    (tmp_path / "meminfo").write_text("MemTotal: 99999 kB\nMemAvailable:    1000 kB\n")
    assert [is_needed(size) for size in (511_000, 513_000)] == [False, True]
    monkeypatch.setattr(memory, "limit_bytes", lambda: 100_000)
    assert [is_needed(size) for size in (49_000, 51_000)] == [False, True]


def test_machine_reports_available_memory():
    assert not is_needed(1)
    assert is_needed(1 << 50)


def test_file_has_no_name(tmp_path):
    with open_file(str(tmp_path / "a" / "b")) as file:
        file.write(b"x")
        assert list((tmp_path / "a" / "b").iterdir()) == []
