import hashlib
import importlib.util
import os
import stat
import subprocess
import sys
import zipfile

import pytest

from farcall.packages import archives
from farcall.packages.archives import BuildError, File, build

SOURCE = b"def told():\n    return {'a', 'b'} == {'b', 'a'}, __file__\n"


def files(folder):
    module = folder / "module.py"
    module.write_bytes(SOURCE)
    return [
        File("lib/site-packages/pack/module.py", module),
        File("lib/site-packages/pack/tests/test_it.py", b"import nothing\n"),
        File("lib/site-packages/pack/template.py", b"class {{ name }}:\n"),
        File("bin/tool", b"#!python\n", is_executable=True),
        File("lib/site-packages/pack/zeros.bin", bytes(3_000_000)),
    ]


def test_same_files_give_same_archive(tmp_path):
    first = build(files(tmp_path), tmp_path)
    os.utime(tmp_path / "module.py", (1, 1))
    (tmp_path / "other").mkdir()
    second = build(reversed(files(tmp_path)), tmp_path / "other")
    assert first.sha256 == second.sha256 == hashlib.sha256(second.path.read_bytes()).hexdigest()
    assert first.size == first.path.stat().st_size < 3_000_000 < first.unpacked_bytes
    assert first.path.name == first.sha256
    assert b"".join(first.pieces()) == first.path.read_bytes()
    assert {each.name for each in tmp_path.iterdir()} == {"module.py", "other", first.sha256}


def test_archive_has_sources_and_compiled_modules(tmp_path):
    """It has no trace of the machine that built it."""
    made = build(files(tmp_path), tmp_path)
    tag = sys.implementation.cache_tag
    with zipfile.ZipFile(made.path) as archive:
        infos = {info.filename: info for info in archive.infolist()}
        assert archive.testzip() is None
    assert set(infos) == {
        "bin/tool",
        f"lib/site-packages/pack/__pycache__/module.{tag}.pyc",
        "lib/site-packages/pack/module.py",
        "lib/site-packages/pack/template.py",
        "lib/site-packages/pack/tests/test_it.py",
        "lib/site-packages/pack/zeros.bin",
    }
    assert {info.date_time for info in infos.values()} == {(1980, 1, 1, 0, 0, 0)}
    assert {info.create_system for info in infos.values()} == {3}
    modes = {name: stat.S_IMODE(info.external_attr >> 16) for name, info in infos.items()}
    assert modes.pop("bin/tool") == 0o755
    assert set(modes.values()) == {0o644}
    assert str(tmp_path).encode() not in made.path.read_bytes()


def test_compiled_module_is_used_despite_timestamp(tmp_path):
    made = build(files(tmp_path), tmp_path)
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(made.path) as archive:
        archive.extractall(unpacked)
    folder = unpacked / "lib/site-packages/pack"
    compiled = importlib.util.cache_from_source(str(folder / "module.py"))
    (folder / "module.py").write_bytes(SOURCE + b"raise RuntimeError('compiled again')\n")
    done = subprocess.run(
        [sys.executable, "-v", "-c", "import module; print(module.told())"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"(True, '{folder / 'module.py'}')" == done.stdout.strip()
    assert f"code object from '{compiled}'" in done.stderr


def test_higher_level_saves_bytes(tmp_path):
    text = [File("a.txt", b"".join(b"%d %d\n" % (n, n * n % 97) for n in range(30_000)))]
    assert build(text, tmp_path, level=9).size < build(text, tmp_path).size
    large = tmp_path / "large"
    large.write_bytes(text[0].source)
    # Files are copied in pieces, which zipfile compresses with its own level by default.
    copied = [File("a.txt", large)]
    assert build(copied, tmp_path, level=9).size < build(copied, tmp_path).size


@pytest.mark.parametrize(
    "name", ["", "/a", "../a", "a/../../b", "a//b", "a/", ".", "..", "a\\b", "a\nb", "a\ud800"]
)
def test_name_outside_archive_is_rejected(tmp_path, name):
    with pytest.raises(ValueError, match="not a valid name"):
        build([File(name, b"")], tmp_path)


def test_duplicate_name_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="is a duplicate"):
        build([File("a", b"1"), File("a", b"2")], tmp_path)


def test_unreadable_file_is_named(tmp_path):
    with pytest.raises(BuildError, match=r"No such file or directory \(.*gone"):
        build([File("a", tmp_path / "gone")], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_failed_process_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "__file__", str(tmp_path / "gone.py"))
    with pytest.raises(BuildError, match=r"gone\.py"):
        build([File("a", b"")], tmp_path)
