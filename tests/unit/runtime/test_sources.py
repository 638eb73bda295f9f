"""The caller's project in a job: unpacking, imports, and variables."""

from __future__ import annotations

import os
import pickle
import resource
import sys
import zipfile
import zlib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from farcall_runtime import failures, pickles, sources


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return a function that enters a project, given its files and parts of the plan."""
    for name in ("home", "digest", "making", "_main"):
        monkeypatch.setattr(sources, name, "")
    monkeypatch.setattr(sources, "_main_constants", set())
    monkeypatch.setattr(sources, "folder", str(tmp_path / "job"))
    monkeypatch.setattr(pickles, "job_rules", None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["runtime"])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.chdir(tmp_path)

    def enter(files, **plan):
        usual = {"digest": "0" * 16, "path": ["0"], "names": [], "cwd": None, "main": None}
        entries = [
            each
            if isinstance(each, sources.Entry)
            else sources.Entry(name, each.encode() if isinstance(each, str) else each)
            for name, each in files.items()
        ]
        sources.enter(sources.pack(entries), {**usual, "imports": [], **plan})

    return enter


def script(source, *, is_whole=True):
    """Return the parts of a plan that run all statements of a script."""
    # statements of the syntax tree
    numbers = list(range(len(compile(source, "", "exec", 1024).body)))
    return {
        "argv": ["--fast"],
        "file": "0/main.py",
        "is_folder": False,
        "name": "",
        "parts": [["0/main.py", "", numbers]],
        "is_whole": is_whole,
    }


def test_files_are_private_and_importable(job, tmp_path):
    job({"0/pack/table.json": "{}", "0/empty.py": ""}, cwd="0/pack")
    assert (tmp_path / "job").stat().st_mode & 0o777 == 0o700
    assert sys.path[0] == str(tmp_path / "job/0")
    assert Path.cwd() == tmp_path / "job/0/pack"
    assert [each.name for each in Path.cwd().iterdir()] == ["table.json"]


@pytest.mark.parametrize("name", ["../out", "/out", "0/../../out", "0//a", "0/./a", "0/a\0b"])
def test_archive_leaving_its_folder_is_rejected(job, tmp_path, name):
    with pytest.raises(ValueError, match="has a file with the invalid name"):
        job({name: "x"})
    assert not (tmp_path / "out").exists()


def test_modes_links_and_empty_folders_are_kept(job, tmp_path):
    job(
        {
            "0/run.sh": sources.Entry("0/run.sh", b"", sources.PROGRAM),
            "0/a/b/up": sources.Entry("0/a/b/up", b"../../run.sh", sources.LINK),
            "0/here": sources.Entry("0/here", b".", sources.LINK),
            "0/empty": sources.Entry("0/empty", kind=sources.FOLDER),
            "0/plain": "",
        }
    )
    root = tmp_path / "job/0"
    assert [os.access(root / each, os.X_OK) for each in ("run.sh", "plain")] == [True, False]
    assert (root / "a/b/up").readlink() == Path("../../run.sh")
    assert (root / "here").samefile(root)
    assert [*(root / "empty").iterdir()] == []


@pytest.mark.parametrize("target", ["/out", "../..", "../../out", "a/../../..", "a//b", "", "a\0"])
def test_link_leaving_archive_is_rejected(job, target):
    with pytest.raises(ValueError, match="has a link with the invalid target"):
        job({"0/link": sources.Entry("0/link", target.encode(), sources.LINK)})


def test_nothing_is_written_through_link(job):
    with pytest.raises(FileExistsError):
        job({"0/a": sources.Entry("0/a", b".", sources.LINK), "0/a/b": "x"})


def test_full_disk_is_named(job):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(sources.NoRoomError, match="has no space for the project's files"):
            job({"0/data.txt": "more than ten bytes"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_damaged_archive_is_rejected(job):
    with pytest.raises(zlib.error):
        sources.enter(b"no archive", {})


def test_own_module_replaces_standard_library(job):
    import statistics

    job({"0/statistics.py": "mine = True"}, names=["statistics"], imports=[["statistics", ""]])
    assert sys.modules["statistics"] is not statistics
    assert sys.modules["statistics"].mine


def test_module_is_loaded_from_its_file(job):
    job({"f0/odd-name.py": "x = 3"}, path=[], imports=[["odd", "f0/odd-name.py"]])
    assert sys.modules["odd"].x == 3


def test_failed_import_does_not_fail_job(job):
    job({"0/broken.py": "1 / 0"}, imports=[["broken", ""]])
    with pytest.raises(ZeroDivisionError):
        __import__("broken")


def test_failed_module_of_file_is_not_kept(job):
    job({"f0/broken.py": "1 / 0"}, path=[], imports=[["broken", "f0/broken.py"]])
    assert "broken" not in sys.modules


def test_script_is_the_main_module(job):
    source = "from __future__ import annotations\nimport sys\ndef f(x: int): return sys.argv[1]\n"
    job({"0/main.py": source}, main=script(source))
    main = sys.modules["__main__"]
    assert (main.__name__, main.f(1)) == ("__main__", "--fast")
    assert main.f.__annotations__ == {"x": "int"}
    assert main.__file__ == sources.in_project("0/main.py")


def test_name_of_failed_statement_raises_reason(job):
    source = "import nowhere\nfrom nowhere import deep\ndef f(): return nowhere.x\nx = 1\n"
    job({"0/main.py": source}, main=script(source))
    main = sys.modules["__main__"]
    assert main.x == 1
    for use in (main.f, lambda: main.deep(), lambda: main.deep + 1, lambda: str(main.deep)):
        with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'"):
            use()


def test_partly_run_script_is_not_rerun(job):
    job({"0/main.py": "x = __file__\n"}, main=script("x = __file__\n", is_whole=False))
    main = sys.modules["__main__"]
    assert main.x == sources.in_project("0/main.py")
    assert not hasattr(main, "__file__")  # multiprocessing uses it to find the script


def test_script_of_zip_archive_is_run(job, tmp_path):
    source = "x = __file__\nUNSET = object()\n"
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", source)
    zipped = (tmp_path / "app.pyz").read_bytes()
    main = {**script(source), "is_folder": True, "file": "0/app.pyz/__main__.py"}
    main["parts"] = [[main["file"], "", [0, 1]]]
    job({"0/app.pyz": zipped}, main=main)
    assert sys.modules["__main__"].x == f"{tmp_path}/job/0/app.pyz/__main__.py"
    assert sys.argv == [f"{tmp_path}/job/0/app.pyz", "--fast"]


def test_variables_are_set_in_place():
    module = ModuleType("lib")
    module.items, module.table, module.kept = [1], {"a": 1}, 1
    module.args = SimpleNamespace(a=1)
    items, table, args = module.items, module.table, module.args
    sys.modules["lib"] = module
    try:
        values = {"items": [2], "table": {"b": 2}, "kept": True, "new": 3, "other": len}
        values["args"] = SimpleNamespace(b=2)
        function = sources.prepared(None, {"lib": values, "gone": {"x": 1}}, abs)
    finally:
        del sys.modules["lib"]
    assert function is abs
    assert (items, table, module.new, module.other) == ([2], {"b": 2}, 3, len)
    assert module.items is items
    assert module.table is table
    assert module.args is args
    assert args == SimpleNamespace(b=2)
    assert module.kept is True


def test_job_pickles_definitions_by_name(job):
    source = "class Own: pass\nUNSET = object()\nmake = lambda: 1\n"
    job({"0/main.py": source}, main=script(source))
    main = sys.modules["__main__"]
    for value in (main.Own, main.UNSET, main.make):
        assert pickles.load([b"".join(map(bytes, pickles.dump(value)[0]))]) is value


@pytest.mark.parametrize(
    ("error", "body"),
    [
        (FileNotFoundError, "open(__file__ + '.txt')"),
        (ValueError, "raise ValueError(1, f'wrong: {__file__}')"),
        (ImportError, "from lib import missing"),
    ],
)
def test_error_names_no_job_path(job, error, body):
    source = f"def f(): {body}\n"
    job({"0/main.py": source, "0/lib.py": ""}, main=script(source))
    with pytest.raises(error) as caught:
        sys.modules["__main__"].f()
    record, parts = failures.capture(caught.value, caught.tb)
    assert sources.home not in str(record)
    assert f'File "farcall-sources:{"0" * 16}/0/main.py", line 1, in f' in record["traceback"]
    assert sources.home.encode() not in b"".join(map(bytes, parts[0]))


@pytest.mark.parametrize("kind", [str, Path])
def test_file_of_error_is_local_path(job, monkeypatch, kind):
    job({"0/a.py": ""})
    error = FileNotFoundError(2, "No such file or directory", kind(sources.in_project("0/no.txt")))
    data = failures._pickle(error)
    monkeypatch.setattr(sources, "home", "/home/me/project")  # where the caller unpickles it
    copy = pickle.loads(data)
    assert copy.filename == kind("/home/me/project/0/no.txt")
