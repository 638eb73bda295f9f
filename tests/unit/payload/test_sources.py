"""Project files that are sent to jobs."""

import os
import py_compile
import sys
import threading
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from farcall.model.errors import SettingsError
from farcall.payload import sources
from farcall.payload.results import hint


def write(root, **files):
    """Write files; `__` in a name stands for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Make a folder the only one on the import path, except installed packages."""
    root = tmp_path / "project"
    root.mkdir()
    installed = [each for each in sys.path if sources.is_installed(each)]
    monkeypatch.setattr(sys, "path", [str(root), *installed])
    monkeypatch.setattr(sources, "project_modules", list)
    monkeypatch.setattr(sources, "main_file", str)
    return root


def places(found):
    return [each.place for each in found.files]


def test_code_and_small_data_are_sent(project):
    write(project, main_DOT_py="", pack__mod_DOT_py="", pack__table_DOT_json="{}")
    found = sources.find("auto")
    assert places(found) == ["0/main.py", "0/pack/mod.py", "0/pack/table.json"]
    assert found.path == ("0",)


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        ".git/config",
        "venv/lib/mod.py",
        "node_modules/x.js",
        "__pycache__/mod.cpython-311.pyc",
        "lib/site-packages/mod.py",
    ],
)
def test_secrets_and_environments_are_not_sent(project, name):
    write(project, main_DOT_py="", venv__pyvenv_DOT_cfg="")
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    assert places(sources.find("auto")) == ["0/main.py"]


def test_excluded_files_are_not_sent(project):
    write(project, main_DOT_py="", data__a_DOT_csv="", data__b_DOT_txt="", secret_DOT_py="")
    (project / ".dockerignore").write_text("secret.py\n")
    found = sources.find("auto", ["**/*.csv"])
    assert places(found) == ["0/data/b.txt", "0/main.py"]
    assert {Path(each.path).name for each in found.left_out} == {"a.csv", "secret.py"}


def test_ignore_file_of_project_root_counts(project, monkeypatch):
    write(project, src__mod_DOT_py="", src__secret_DOT_py="")
    (project / "pyproject.toml").touch()
    (project / ".dockerignore").write_text("src/secret.py\n")
    monkeypatch.setattr(sys, "path", [str(project / "src")])
    assert places(sources.find("auto")) == ["0/mod.py"]


def test_large_data_is_omitted_by_name(project):
    write(project, main_DOT_py="")
    with (project / "model.bin").open("wb") as file:
        file.truncate(3 * 1000**3)
    found = sources.find("auto")
    assert places(found) == ["0/main.py"]
    assert [(each.path, each.why) for each in found.left_out] == [
        (str(project / "model.bin"), "3,000.0 MB; data files up to 1 MB are sent")
    ]


def test_links_out_of_project_are_omitted(project, tmp_path):
    write(project, main_DOT_py="x = 1")
    (tmp_path / "outside").mkdir()
    write(tmp_path / "outside", mod_DOT_py="")
    (project / "linked.py").symlink_to(tmp_path / "outside/mod.py")
    (project / "folder").symlink_to(tmp_path / "outside")
    (project / "loop").symlink_to(project)
    (project / "broken").symlink_to("nowhere")
    (project / "same.py").symlink_to(project / "main.py")
    found = sources.find("auto")
    assert places(found) == ["0/main.py", "0/same.py"]
    assert {Path(each.path).name for each in found.left_out} == {
        *("linked.py", "folder", "loop", "broken")
    }


def test_special_files_are_omitted(project):
    write(project, main_DOT_py="")
    os.mkfifo(project / "pipe")
    assert [each.why for each in sources.find("auto").left_out] == ["not a regular file"]


def test_too_many_files_leave_loaded_ones(project, monkeypatch, caplog):
    write(project, pack__mod_DOT_py="", pack__table_DOT_txt="", other_DOT_py="")
    for number in range(sources.MOST_FILES):
        (project / f"{number}.txt").touch()
    module = type(sys)("pack.mod")
    module.__file__ = str(project / "pack/mod.py")
    monkeypatch.setattr(sources, "project_modules", lambda: [module])
    found = sources.find("auto")
    assert places(found) == ["0/pack/mod.py", "0/pack/table.txt"]
    assert f"{project} holds more than 2000 files" in caplog.text
    assert "exclude_sources" in caplog.text


def test_home_folder_is_no_project(project, monkeypatch):
    write(project, main_DOT_py="", letters__private_DOT_txt="")
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.setattr(sources, "main_file", lambda: str(project / "main.py"))
    assert places(sources.find("auto")) == ["0/main.py"]


def test_nested_folder_is_sent_once(project, monkeypatch):
    write(project, main_DOT_py="", src__mod_DOT_py="")
    monkeypatch.setattr(sys, "path", [str(project / "src"), str(project)])
    found = sources.find("auto")
    assert places(found) == ["0/main.py", "0/src/mod.py"]
    assert found.path == ("0/src", "0")
    assert found.folder_of(str(project / "src/deep")) == "0/src/deep"


def test_folders_can_be_named(project, tmp_path):
    write(project, main_DOT_py="")
    other = write(tmp_path / "other", mod_DOT_py="")
    found = sources.find([str(other)])
    assert (places(found), found.path) == (["0/mod.py"], ("0",))
    with pytest.raises(SettingsError, match=r"sources: '/no/such'.*not a folder"):
        sources.find(["/no/such"])


def test_unchanged_files_are_packed_once(project):
    write(project, main_DOT_py="a = 1")
    first = sources.find("auto")
    assert sources.find("auto") is first
    (project / "main.py").write_text("a = 22")
    assert sources.find("auto").archive != first.archive


def test_same_files_give_same_archive(project, tmp_path, monkeypatch):
    write(project, a_DOT_py="1", b_DOT_py="2")
    first = sources.find("auto").archive
    copy = write(tmp_path / "copy", b_DOT_py="2", a_DOT_py="1")
    monkeypatch.setattr(sys, "path", [str(copy)])
    assert sources.find("auto").archive == first


def test_valid_compiled_module_is_sent(project):
    path = write(project, mod_DOT_py="a = 1") / "mod.py"
    only_source = sources.find("auto").archive
    os.utime(path, (1, 1))
    compiled = Path(py_compile.compile(str(path)))
    assert len(sources.find("auto").archive) > len(only_source)
    os.utime(path, (2, 2))
    compiled.write_bytes(compiled.read_bytes()[:9])
    assert sources.find("auto").archive == only_source


def test_compiled_module_naming_path_is_omitted(project):
    path = project / "mod.py"
    path.write_text(f"here = '{path}'")
    only_source = sources.find("auto").archive
    os.utime(path, (1, 1))
    py_compile.compile(str(path))
    assert sources.find("auto").archive == only_source


def test_vanished_file_is_omitted(project, monkeypatch):
    write(project, a_DOT_py="", gone_DOT_py="")
    read = sources.Path.read_bytes

    def vanish(path):
        if path.name == "gone.py":
            path.unlink()
        return read(path)

    monkeypatch.setattr(sources.Path, "read_bytes", vanish)
    found = sources.find("auto")
    assert places(found) == ["0/a.py"]
    assert [each.why for each in found.left_out] == ["No such file or directory"]


def test_job_paths_become_local_paths(project):
    write(project, pack__mod_DOT_py="")
    found = sources.find("auto")
    text = f'File "farcall-sources:{found.digest}/0/pack/mod.py", line 3, in f'
    assert sources.localized({"results": [{"traceback": text}]}) == {
        "results": [{"traceback": f'File "{project}/pack/mod.py", line 3, in f'}]
    }
    unknown = f"farcall-sources:{'0' * 16}/0/pack/mod.py"
    assert sources.localized(unknown) == "pack/mod.py"


def test_two_threads_find_same_sources(project):
    write(project, main_DOT_py="")
    found = []
    threads = [threading.Thread(target=lambda: found.append(sources.find("auto"))) for _ in "ab"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found[0] is found[1]


def test_large_folder_is_scanned_once(project, monkeypatch):
    for number in range(sources.MOST_FILES + 1):
        (project / f"{number}.txt").touch()
    sources.find("auto")
    scanned = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scanned.append(path) or scandir(path))
    sources.find("auto")
    assert len(scanned) <= 1


def test_edited_module_is_reported_once(project, monkeypatch, caplog):
    write(project, mod_DOT_py="a = 1")
    module = type(sys)("mod")
    module.__file__, module.__spec__ = str(project / "mod.py"), object()
    monkeypatch.setattr(sources, "project_modules", lambda: [module])
    sources.find("auto")
    (project / "mod.py").write_text("a = 22")
    sources.find("auto")
    sources.find("auto")
    assert [each.message.partition(":")[0] for each in caplog.records] == [
        f"{project / 'mod.py'} has changed since it was imported"
    ]
    module.__spec__ = object()  # importlib.reload sets a new one
    (project / "mod.py").write_text("a = 333")
    sources.find("auto")
    assert len(caplog.records) == 1


def test_excluded_module_is_named_when_missing(project):
    write(project, main_DOT_py="", secret_DOT_py="")
    sources.find("auto", ["secret.py"])
    assert hint("ModuleNotFoundError", "No module named 'secret'") == (
        f"The job has no module secret: {project / 'secret.py'} was not sent (excluded). "
        "See docs/sources.md"
    )


@pytest.mark.parametrize("name", ["tool", "app.pyz/__main__.py"])
def test_script_may_have_any_name(project, monkeypatch, name):
    monkeypatch.undo()
    with zipfile.ZipFile(project / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "")
    write(project, tool="")
    main = ModuleType("__main__")
    main.__file__ = str(project / name)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert sources.main_file() == main.__file__
    found = sources.find("auto")
    place = found.place_of(main.__file__)
    assert sources.local_path(found.digest, place) == main.__file__
    assert ("app.pyz" in name) == (found.path[:1] == (place.removesuffix("/__main__.py"),))
