from __future__ import annotations

import fcntl
import hashlib
import os
import resource
import time
from types import SimpleNamespace

import pytest

from farcall_runtime.host_folder import FREE_BYTES, UNUSED_S, HostFolder, UnusableError

DATA = b"archive" * 400_000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def mounted(tmp_path):
    path = tmp_path / "mounted"
    path.mkdir()
    return path


@pytest.fixture
def own(mounted):
    """The folder of this user's jobs."""
    return mounted / str(os.geteuid())


@pytest.fixture
def opened(mounted):
    """Return a function that opens the folder, as each container does."""
    made = []

    def make():
        made.append(HostFolder(str(mounted)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def keep(host, data=DATA):
    digest = hashlib.sha256(data).hexdigest()
    claim = host.claim(digest, len(data))
    claim.write(data)
    claim.keep()
    return digest


def names(own):
    return sorted(each.name for each in own.iterdir())


def test_what_one_container_keeps_another_finds(opened, own):
    assert not opened().has(DIGEST, len(DATA))
    keep(opened())
    assert opened().has(DIGEST, len(DATA))
    assert b"".join(opened().pieces(DIGEST, len(DATA))) == DATA
    assert names(own) == [DIGEST]
    assert own.stat().st_mode & 0o777 == 0o700


def test_one_container_fetches_and_the_others_see_that(opened, own):
    claim = opened().claim(DIGEST, len(DATA))
    assert opened().claim(DIGEST, len(DATA)) is None
    claim.write(DATA)
    assert not opened().has(DIGEST, len(DATA))
    claim.keep()
    assert opened().claim(DIGEST, len(DATA)) is None
    assert names(own) == [DIGEST]


def test_what_was_given_up_another_one_fetches(opened, own):
    claim = opened().claim(DIGEST, len(DATA))
    claim.write(DATA[:10])
    claim.give_up()
    assert names(own) == []
    keep(opened())
    assert names(own) == [DIGEST]


def test_what_a_killed_container_left_another_one_begins_anew(opened, own):
    host = opened()
    child = os.fork()
    if child == 0:
        host.claim(DIGEST, len(DATA)).write(b"x" * 10_000_000)
        os._exit(0)
    os.waitpid(child, 0)
    assert names(own) == [f"{DIGEST}.part"]
    keep(opened())
    assert b"".join(opened().pieces(DIGEST, len(DATA))) == DATA


def test_whoever_waited_for_the_lock_of_a_file_that_is_kept_by_then_has_no_claim(
    opened, own, monkeypatch
):
    """The other container renames the file between the opening and the locking of it."""
    first, second = opened(), opened()
    claim = first.claim(DIGEST, len(DATA))
    claim.write(DATA)
    lock = fcntl.flock

    def keep_first(descriptor, how):
        claim.keep()
        return lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", keep_first)
    assert second.claim(DIGEST, len(DATA)) is None
    assert b"".join(opened().pieces(DIGEST, len(DATA))) == DATA


def test_what_a_stranger_puts_there_is_not_opened(opened, own, tmp_path):
    host = opened()
    secret = tmp_path / "secret"
    secret.write_bytes(DATA)
    for put in (
        lambda path: path.symlink_to(secret),
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(DATA + b"more"),
        lambda path: path.write_bytes(b""),
    ):
        path = own / DIGEST
        put(path)
        assert b"".join(host.pieces(DIGEST, len(DATA))) == b""
        assert not host.has(DIGEST, len(DATA))
        path.rmdir() if path.is_dir() else path.unlink()


def test_no_file_of_a_stranger_is_written_to(opened, own, tmp_path):
    host = opened()
    part = own / f"{DIGEST}.part"
    secret = tmp_path / "secret"
    for put in (lambda: part.symlink_to(secret), lambda: part.hardlink_to(secret)):
        secret.write_bytes(b"secret")
        put()
        assert host.claim(DIGEST, len(DATA)) is None
        assert secret.read_bytes() == b"secret"
        assert not part.exists()
        assert not part.is_symlink()
    keep(host)


def test_a_folder_that_is_another_s_is_refused(mounted, own, tmp_path):
    own.symlink_to(tmp_path)
    with pytest.raises(UnusableError):
        HostFolder(str(mounted))
    own.unlink()
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(UnusableError, match="others may write to it"):
        HostFolder(str(mounted))
    with pytest.raises(UnusableError, match="No such file"):
        HostFolder(str(mounted / "absent"))


def test_a_link_in_the_place_of_the_folder_is_not_followed(opened, own, tmp_path):
    host = opened()
    keep(host)
    own.rename(own.with_name("moved"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / DIGEST).write_bytes(DATA)
    own.symlink_to(elsewhere)
    host.discard(DIGEST)
    assert (elsewhere / DIGEST).exists()


def unused(path, seconds):
    at = time.time() - seconds
    os.utime(path, (at, at))


def test_what_was_not_used_for_a_week_goes(opened, own):
    host = opened()
    old, new = keep(host, b"old"), keep(host, b"new")
    unused(own / old, UNUSED_S + 60)
    (own / "of-somebody-else").write_text("")
    unused(own / "of-somebody-else", UNUSED_S + 60)
    assert host.make_room(0, ())
    assert names(own) == sorted([new, "of-somebody-else"])


def test_use_is_noted(opened, own):
    host = opened()
    keep(host)
    unused(own / DIGEST, UNUSED_S + 60)
    assert b"".join(host.pieces(DIGEST, len(DATA))) == DATA
    host.make_room(0, ())
    assert names(own) == [DIGEST]


@pytest.fixture
def disk(monkeypatch):
    """A disk of 1000 bytes, so that 100 are to stay free and 250 are for the cache."""
    disk = SimpleNamespace(f_frsize=1, f_blocks=1000, f_bavail=1000, f_flag=0)
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: disk)
    return disk


def test_for_want_of_room_the_least_lately_used_goes_first(opened, own, disk):
    host = opened()
    digests = [keep(host, bytes([each]) * 100) for each in range(2)]
    unused(own / digests[1], 100)
    assert host.make_room(50, ())
    assert len(names(own)) == 2
    assert host.make_room(100, ())
    assert names(own) == [digests[0]]


def test_what_is_needed_now_and_what_is_being_fetched_stays(opened, own, disk):
    host = opened()
    digests = [keep(host, bytes([each]) * 100) for each in range(2)]
    claim = host.claim(DIGEST, 50, digests)
    claim.write(b"x" * 50)
    assert not host.make_room(50, digests)
    assert len(names(own)) == 3
    unused(own / f"{DIGEST}.part", 2 * 3600)
    assert host.make_room(50, digests)
    assert names(own) == sorted(digests)
    claim.give_up()


def test_some_of_the_disk_stays_free(opened, disk):
    host = opened()
    disk.f_bavail = 150
    assert host.make_room(50, ())
    assert not host.make_room(51, ())
    assert not host.make_room(10, (), 50)
    disk.f_blocks, disk.f_bavail = 100 * FREE_BYTES, FREE_BYTES + 10
    assert host.make_room(10, ())
    assert not host.make_room(11, ())


def test_a_disk_that_fills_up_leaves_nothing_half(opened, own):
    host = opened()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        claim = host.claim(DIGEST, len(DATA))
        claim.write(DATA)
        claim.keep()
        os._exit(len(names(own)))
    assert os.waitpid(child, 0)[1] == 0
    assert names(own) == []
