import importlib.metadata
import subprocess
import sys
import zipfile

import pytest

from farcall.model.errors import FarcallError
from farcall.packages import cache, runtime_archive, uv
from farcall.packages.target import Target

HERE = Target("x86_64" if Target("x86_64").is_here else "arm64")
OTHER = Target("arm64" if HERE.architecture == "x86_64" else "x86_64")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def modules(archive):
    names = zipfile.ZipFile(archive.path).namelist()
    return {name.split("/")[0] for name in names if ".dist-info" not in name}


def test_runtime_archive_runs_without_packages(tmp_path):
    _, make = runtime_archive.seal(HERE, tmp_path)
    archive = make()
    expected = {"farcall_runtime", "cloudpickle", "obstore"}
    if sys.version_info < (3, 13):
        expected |= {"typing_extensions.py", "__pycache__"}
    assert modules(archive) == expected
    zipfile.ZipFile(archive.path).extractall(tmp_path / "unpacked")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'unpacked')!r}); "
    code += "import farcall_runtime.runner, obstore.store, cloudpickle; print('well')"
    command = [sys.executable, "-I", "-S", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "well\n"


def test_runtime_archive_is_deterministic_and_cached(tmp_path, monkeypatch):
    first, _ = runtime_archive.seal(HERE, tmp_path)
    monkeypatch.setattr(runtime_archive, "build", None)
    assert first == runtime_archive.seal(HERE, tmp_path)[0]
    monkeypatch.undo()
    monkeypatch.setattr(cache, "read", lambda _: None)
    assert first == runtime_archive.seal(HERE, tmp_path)[0]


def test_other_processor_fetches_same_obstore_version(tmp_path, monkeypatch):
    asked = []

    def fetch(pins, target, source, to):
        asked.append((*pins, target))
        raise uv.UvError("no wheels with a matching platform tag")

    monkeypatch.setattr(uv, "fetch", fetch)
    with pytest.raises(FarcallError, match="obstore .* cannot be fetched for Linux on .*arch"):
        runtime_archive.seal(OTHER, tmp_path)
    ((pin, target),) = asked
    assert pin.line == f"obstore=={importlib.metadata.version('obstore')}"
    assert target == OTHER


@pytest.mark.slow  # uses the package index
def test_archive_has_obstore_of_other_processor(tmp_path):
    _, make = runtime_archive.seal(OTHER, tmp_path)
    archive = zipfile.ZipFile(make().path)
    (name,) = (each for each in archive.namelist() if each.endswith(".so"))
    # Machine field of an ELF file,
    # https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html
    machine = int.from_bytes(archive.read(name)[18:20], "little")
    assert machine == {"x86_64": 62, "arm64": 183}[OTHER.architecture]


def test_distribution_without_metadata_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime_archive.installed, "scan", lambda path=None: [])
    with pytest.raises(FarcallError, match="obstore|cloudpickle"):
        runtime_archive.seal(HERE, tmp_path)
