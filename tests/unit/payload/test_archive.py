"""Archives of real folders: equal content has equal bytes, and archives contain nothing else."""

import hashlib
import io
import logging
import os
import socket
import subprocess
import tarfile
import tempfile
import tracemalloc
from pathlib import Path

import pytest

from farcall.config.settings import DEFAULT_CACHE_DIR
from farcall.model.errors import SettingsError
from farcall.payload import archive as module
from farcall.payload.archive import Source, pack
from farcall.payload.spill import NoRoomError


def packed(*sources):
    """Pack folders, check the archive's attributes, and return its bytes."""
    archive = pack([s if isinstance(s, Source) else Source(s) for s in sources], DEFAULT_CACHE_DIR)
    data = b"".join(archive.pieces())
    archive.close()
    assert (archive.size, archive.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    return data


def members(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: member for member in tar}


def content(data, name):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.extractfile(name).read()


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "work"
    (made / "sub" / "empty").mkdir(parents=True)
    (made / "run.sh").write_text("echo\n")
    (made / "run.sh").chmod(0o755)
    (made / "sub" / "data").write_bytes(bytes(range(256)))
    (made / "sub" / "data").chmod(0o640)
    (made / "link").symlink_to("sub/data")
    return made


def test_equal_content_has_equal_bytes(folder, tmp_path):
    other = tmp_path / "other" / "place"
    (other / "sub").mkdir(parents=True)
    (other / "link").symlink_to("sub/data")
    (other / "sub" / "data").write_bytes(bytes(range(256)))
    (other / "sub" / "data").chmod(0o640)
    (other / "sub" / "empty").mkdir()
    (other / "run.sh").write_text("echo\n")
    (other / "run.sh").chmod(0o755)
    os.utime(other / "run.sh", (1, 1))
    assert packed(folder) == packed(other)


CHANGES = {
    "content": lambda folder: (folder / "run.sh").write_text("echo \n"),
    "mode": lambda folder: (folder / "run.sh").chmod(0o700),
    "a new file": lambda folder: (folder / "new").touch(),
    "a name": lambda folder: (folder / "run.sh").rename(folder / "other.sh"),
    "a link": lambda folder: (folder / "link").rename(folder / "sub" / "link"),
    "an empty folder": lambda folder: (folder / "sub" / "empty").rmdir(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_change_changes_the_hash(folder, change):
    before = packed(folder)
    change(folder)
    assert packed(folder) != before


def test_archive_keeps_modes_but_not_owners(folder):
    found = members(packed(folder))
    assert list(found) == ["link", "run.sh", "sub", "sub/data", "sub/empty"]
    assert (found["run.sh"].mode, found["sub/data"].mode) == (0o755, 0o640)
    assert (found["link"].issym(), found["link"].linkname) == (True, "sub/data")
    assert found["sub/empty"].isdir()
    owners = {(each.uid, each.gid, each.uname, each.gname) for each in found.values()}
    assert owners == {(0, 0, "", "")}
    assert len({each.mtime for each in found.values()}) == 1


def test_special_bits_are_dropped(folder):
    """A folder gets the permissions that unpacking into it needs."""
    (folder / "run.sh").chmod(0o4755)
    (folder / "sub" / "empty").chmod(0o1055)
    found = members(packed(folder))
    assert (found["run.sh"].mode, found["sub/empty"].mode) == (0o755, 0o755)


def test_unusual_names_are_kept(folder):
    names = ["naïve", "two\nlines", "-rf", "a b", "x" * 250, "ends."]
    for name in names:
        (folder / name).write_text(name)
    deep = folder.joinpath(*["d" * 60] * 5)
    deep.mkdir(parents=True)
    (deep / "file").touch()
    raw = os.fsencode(folder) + b"/not\xffutf8"
    Path(os.fsdecode(raw)).touch()
    data = packed(folder)
    found = members(data)
    assert [name for name in names if content(data, name) != name.encode()] == []
    assert "/".join(["d" * 60] * 5) + "/file" in found
    assert os.fsdecode(b"not\xffutf8") in found
    assert packed(folder) == data


def test_dockerignore_excludes_files(folder):
    (folder / ".dockerignore").write_text("# of the job's no concern\nsub\n!sub/data\n*.sh\n")
    assert list(members(packed(folder))) == [".dockerignore", "link", "sub/data"]


def test_private_files_are_left_out_and_named(folder, caplog):
    for name in (".aws", ".env", "server.pem", "public.pem"):
        (folder / name).touch()
    (folder / ".dockerignore").write_text("!public.pem\n")
    names = members(packed(folder)).keys()
    assert {"public.pem"} == names & {".aws", ".env", "server.pem", "public.pem"}
    assert "3 entries of workspace" in caplog.text
    assert 'add the line "!.aws" to its .dockerignore' in caplog.text


def test_excluded_folder_is_not_read(folder, monkeypatch):
    (folder / ".dockerignore").write_text("sub\n")
    looked = []
    before = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: looked.append(path) or before(path))
    packed(folder)
    assert looked == [folder]


def test_invalid_pattern_is_reported_with_file(folder):
    (folder / ".dockerignore").write_text("a\n[\n")
    with pytest.raises(SettingsError, match=r"\.dockerignore, line 2: .* is not a valid pattern"):
        packed(folder)


def test_links_are_kept(folder, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    (folder / "out").symlink_to(secret)
    (folder / "sub" / "up").symlink_to("../../secret/key")
    (folder / "circle").symlink_to("circle")
    (folder / "sub" / "inside").symlink_to("../run.sh")
    data = packed(folder)
    found = members(data)
    assert (found["out"].linkname, found["sub/up"].linkname) == (
        str(secret),
        "../../secret/key",
    )
    assert b"secret\n" not in data
    assert [name for name in found if "key" in name] == []


def test_special_files_are_omitted_and_reported(folder, caplog):
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(folder / "socket"))
        assert {"pipe", "socket"}.isdisjoint(members(packed(folder)))
    assert "2 entries of workspace" in caplog.text


def test_several_projects_are_merged_in_order(folder, tmp_path):
    more = tmp_path / "more"
    (more / "sub").mkdir(parents=True)
    (more / "sub" / "data").write_text("on top")
    one = tmp_path / "one.txt"
    one.write_text("one")
    data = packed(folder, more, Source(one), Source(one, "a/b"), Source(more, "lib/./x"))
    assert content(data, "sub/data") == b"on top"
    assert content(data, "lib/x/sub/data") == b"on top"
    assert (content(data, "one.txt"), content(data, "a/b")) == (b"one", b"one")
    assert "run.sh" in members(data)


@pytest.mark.parametrize("target", ["/etc", "..", "../x", "a/../../b"])
def test_outside_target_is_rejected(folder, target):
    with pytest.raises(SettingsError, match="a relative path below"):
        packed(Source(folder, target))


def test_files_below_link_are_rejected(folder, tmp_path):
    """They would be written through the link, wherever it leads in the container."""
    (folder / "etc").symlink_to("/etc")
    more = tmp_path / "more"
    more.mkdir()
    (more / "passwd").touch()
    with pytest.raises(SettingsError, match=r"be placed in 'etc', which is .*, not a folder"):
        packed(folder, Source(more, "etc"))


def test_missing_or_special_workspace_is_rejected(tmp_path):
    with pytest.raises(SettingsError, match=r"workspace '.*nowhere' cannot be read"):
        packed(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="neither a folder nor a file"):
        packed(tmp_path / "pipe")


@pytest.fixture
def as_other_user():
    """Return a function that prepares and packs a folder as a user other than root."""
    # import the codec now: an interpreter readable only by root could not import it later
    "".encode("utf-8-sig")
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            yield lambda make: _as(user, make, Path(made))
        finally:
            os.seteuid(user)


def _as(user, make, folder):
    now = os.geteuid()
    os.seteuid(user)
    try:
        make(folder)
    finally:
        os.seteuid(now)
    return folder


def test_unreadable_file_or_folder_is_named(as_other_user):
    def file(folder):
        (folder / "sub").mkdir()
        (folder / "sub" / "data").touch(0)

    with pytest.raises(SettingsError, match=r"sub/data in the workspace cannot be read \(Perm"):
        packed(as_other_user(file))
    with pytest.raises(SettingsError, match=r"/sub in the workspace cannot be read \(Perm"):
        packed(as_other_user(lambda folder: (folder / "sub").chmod(0)))
    as_other_user(lambda folder: (folder / ".dockerignore").write_text("sub\n"))
    assert list(members(packed(as_other_user(lambda _: None)))) == [".dockerignore"]
    with pytest.raises(SettingsError, match=r"\.dockerignore in the workspace cannot be read"):
        packed(as_other_user(lambda folder: (folder / ".dockerignore").chmod(0)))


def test_vanishing_or_shrinking_file_is_named(folder, monkeypatch):
    before = module._check_size

    def then(change):
        monkeypatch.setattr(module, "_check_size", lambda found: (change(), before(found))[1])

    then(lambda: (folder / "sub" / "data").write_text("short"))
    with pytest.raises(SettingsError, match="sub/data in the workspace cannot be read"):
        packed(folder)
    then(lambda: (folder / "sub" / "data").unlink())
    with pytest.raises(SettingsError, match=r"sub/data in the workspace .*\(No such file"):
        packed(folder)


def test_file_replaced_by_pipe_is_rejected(folder, monkeypatch):
    """A file that becomes a symbolic link is not read, either."""
    before, data = module._check_size, folder / "sub" / "data"
    for make in (os.mkfifo, lambda path: path.symlink_to("/etc/passwd")):

        def swap(found, make=make):
            data.unlink()
            make(data)
            return before(found)

        monkeypatch.setattr(module, "_check_size", swap)
        with pytest.raises(SettingsError, match="sub/data in the workspace cannot be read"):
            packed(folder)
        monkeypatch.setattr(module, "_check_size", before)
        data.unlink()
        data.write_bytes(bytes(256))


def sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)


def test_large_workspace_warns_or_is_rejected(folder, caplog, monkeypatch):
    sparse(folder / "large.bin", 101_000_000)
    packed(folder)
    assert "101 MB in 3 files, the largest one 'large.bin' with 101 MB" in caplog.text
    assert ".dockerignore" in caplog.text
    sparse(folder / "large.bin", 5_000_000_001)
    monkeypatch.setattr(module, "open_file", None)  # the archive is not even opened
    with pytest.raises(SettingsError, match=r"5,000 MB in 3 files.* the limit is 5 GB"):
        packed(folder)


def test_packing_needs_little_memory(folder):
    (folder / "large.bin").write_bytes(os.urandom(30_000_000))
    logging.getLogger("farcall").setLevel(logging.ERROR)
    tracemalloc.start()
    try:
        archive = pack([Source(folder)], DEFAULT_CACHE_DIR)
        digest = hashlib.sha256()
        for piece in archive.pieces():
            digest.update(piece)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        logging.getLogger("farcall").setLevel(logging.NOTSET)
    assert digest.hexdigest() == archive.sha256
    archive.close()
    assert most < 6_000_000


def test_full_cache_is_reported(folder, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(NoRoomError, match="cannot store the workspace's archive"):
        pack([Source(folder)], str(tmp_path / "cache"))
    if Path("/dev/full").exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                module, "open_file", lambda _: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb")
            )
            with pytest.raises(NoRoomError, match="No space left"):
                pack([Source(folder)], DEFAULT_CACHE_DIR)


def test_tar_unpacks_the_archive(folder, tmp_path):
    (folder / ("n" * 200)).write_text("long")
    there = tmp_path / "there"
    there.mkdir()
    subprocess.run(["tar", "-xzpf-", "-C", there], input=packed(folder), check=True)
    assert packed(there) == packed(folder)
