"""Project files that are sent to jobs."""

import json
import os
import py_compile
import sys
import threading
import zipfile
import zlib
from pathlib import Path
from types import ModuleType

import pytest

from farcall.model.errors import SettingsError
from farcall.payload import folders, sources, walk
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
    assert places(sources.find("auto")) == ["0/src/mod.py"]


def test_large_data_is_omitted_by_name(project):
    write(project, main_DOT_py="")
    with (project / "model.bin").open("wb") as file:
        file.truncate(3 * 1000**3)
    found = sources.find("auto")
    assert places(found) == ["0/main.py"]
    assert [(each.path, each.why) for each in found.left_out] == [
        (str(project / "model.bin"), "3,000.0 MB; data files up to 1 MB are sent")
    ]


def kinds(found):
    return {each.place: (each.kind, each.target) for each in found.files}


def test_links_out_of_project_are_omitted(project, tmp_path):
    write(project, main_DOT_py="x = 1")
    (tmp_path / "outside").mkdir()
    write(tmp_path / "outside", mod_DOT_py="")
    (project / "linked.py").symlink_to(tmp_path / "outside/mod.py")
    (project / "folder").symlink_to(tmp_path / "outside")
    (project / "broken").symlink_to("nowhere")
    found = sources.find("auto")
    assert places(found) == ["0/main.py"]
    assert {Path(each.path).name for each in found.left_out} == {"linked.py", "folder", "broken"}


def test_links_to_sent_places_are_kept(project):
    write(project, pack__mod_DOT_py="x = 1", sub__main_DOT_py="")
    (project / "sub/same.py").symlink_to(project / "pack/mod.py")
    (project / "also").symlink_to("pack")
    (project / "loop").symlink_to(project)
    found = sources.find("auto")
    assert kinds(found)["0/sub/same.py"] == ("l", "../pack/mod.py")
    assert (kinds(found)["0/also"], kinds(found)["0/loop"]) == (("l", "pack"), ("l", "."))
    assert found.place_of(str(project / "also/mod.py")) == "0/also/mod.py"
    assert found.place_of(str(project / "also/no.py")) is None


def loaded(monkeypatch, name, path):
    module = type(sys)(name)
    module.__file__ = str(path)
    monkeypatch.setattr(sources, "project_modules", lambda: [module])
    return module


def test_links_to_project_are_followed(project, tmp_path, monkeypatch):
    """The links' targets: the home of a module that was loaded by a link, and the repository."""
    libs = write(tmp_path / "libs", common__mod_DOT_py="", tables__a_DOT_csv="1")
    (libs / "tables/back").symlink_to(libs / "common")
    (libs / "common/again").symlink_to(libs / "tables")
    for name in ("common", "tables"):
        (project / name).symlink_to(f"../libs/{name}")
    loaded(monkeypatch, "common.mod", project / "common/mod.py")
    found = sources.find("auto")
    assert kinds(found) == {
        "0/common/mod.py": ("f", ""),
        "0/common/again": ("l", "../tables"),
        "0/tables/a.csv": ("f", ""),
        "0/tables/back": ("l", "../common"),
    }


def test_link_to_file_of_project_is_followed(project, monkeypatch):
    write(project, data__a_DOT_csv="1")
    (project / ".git").mkdir()
    (project / "src").mkdir()
    (project / "src/a.csv").symlink_to("../data/a.csv")
    monkeypatch.setattr(sys, "path", [str(project / "src")])
    (sent,) = sources.find("auto").files
    assert (sent.kind, sent.target) == ("f", str(project / "data/a.csv"))


def test_link_to_large_folder_is_omitted(project, monkeypatch):
    write(project, src__mod_DOT_py="", pyproject_DOT_toml="")
    monkeypatch.setattr(walk, "MOST_FILES", 2)
    for name in "abc":
        (project / f"{name}.txt").touch()
    (project / "src/all").symlink_to("..")
    monkeypatch.setattr(sys, "path", [str(project / "src")])
    found = sources.find("auto")
    assert [Path(each).name for each in places(found)] == ["mod.py"]
    assert found.left_out[0].why == "a link to a folder of more than 2 files or 20 MB"


def test_link_to_excluded_file_is_omitted(project):
    write(project, main_DOT_py="", secret_DOT_txt="")
    (project / "open.txt").symlink_to("secret.txt")
    assert places(sources.find("auto", ["secret.txt"])) == ["0/main.py"]


def test_executable_bit_is_sent_when_changed(project):
    path = write(project, run_DOT_sh="") / "run.sh"
    assert [each.kind for each in sources.find("auto").files] == ["f"]
    path.chmod(0o755)
    assert [each.kind for each in sources.find("auto").files] == ["x"]


def test_empty_folders_are_sent(project):
    write(project, main_DOT_py="", logs___DOT_gitkeep="")
    before = sources.find("auto").archive
    (project / "out/deep").mkdir(parents=True)
    after = sources.find("auto").archive
    assert unpacked(before) == [["0/logs", 0, "d"], ["0/main.py", 0, "f"]]
    assert unpacked(after)[-1] == ["0/out/deep", 0, "d"]


def unpacked(archive):
    """Return the archive's list of entries."""
    data = zlib.decompress(archive)
    return json.loads(data[4 : 4 + int.from_bytes(data[:4], "big")])


@pytest.mark.parametrize("name", [b"\xff.txt", b"folder\xff", b"new\nline"])
def test_unprintable_name_is_omitted_by_name(project, name):
    write(project, main_DOT_py="")
    path = Path(os.fsdecode(os.fsencode(project) + b"/" + name))
    path.mkdir()
    (path / "file.py").touch()
    found = sources.find("auto")
    assert places(found) == ["0/main.py"]
    assert [(each.path, each.why) for each in found.left_out] == [
        (str(path), "its name is not printable")
    ]


def test_unreadable_ignore_file_is_reported(project, monkeypatch):
    write(project, main_DOT_py="", _DOT_dockerignore="")

    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(SettingsError, match=r"/\.dockerignore cannot be read \(Permission denied"):
        sources.find("auto")


def test_ignore_file_above_project_is_ignored(project):
    write(project, main_DOT_py="", pyproject_DOT_toml="")
    (project.parent / ".dockerignore").write_text("[\n")
    assert len(sources.find("auto").files) == 2


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


def test_named_folders_keep_their_places(project):
    write(project, src__pack__mod_DOT_py="", conf__settings_DOT_toml="")
    found = sources.find([str(project / "src"), str(project / "conf")])
    assert places(found) == ["0/conf/settings.toml", "0/src/pack/mod.py"]
    assert set(found.path) == {"0/src", "0/conf"}
    assert found.folder_of(str(project)) == "0"


def test_folders_of_project_keep_their_places(project, tmp_path, monkeypatch):
    """Missing files outside these folders have local paths, too."""
    write(project, src__mod_DOT_py="", notebooks__nb_DOT_py="", pyproject_DOT_toml="")
    other = write(tmp_path / "other", lib_DOT_py="")
    monkeypatch.setattr(
        sys, "path", [*(str(project / n) for n in ("src", "notebooks")), str(other)]
    )
    found = sources.find("auto")
    assert places(found) == ["0/lib.py", "1/notebooks/nb.py", "1/src/mod.py"]
    assert found.local_path("1/conf/settings.toml") == str(project / "conf/settings.toml")


def test_renamed_package_is_sent_with_name(project, monkeypatch):
    write(project, code__steps_DOT_py="", code__late_DOT_py="")
    (project / "code/__init__.py").touch()
    monkeypatch.setattr(sys, "path", [])
    package, steps = type(sys)("pkg"), type(sys)("pkg.steps")
    package.__path__, package.__file__ = [str(project / "code")], str(project / "code/__init__.py")
    steps.__file__ = str(project / "code/steps.py")
    monkeypatch.setitem(sys.modules, "pkg", package)
    monkeypatch.setattr(sources, "project_modules", lambda: [package, steps])
    found = sources.find("auto")
    assert places(found) == ["0/__init__.py", "0/late.py", "0/steps.py", "names/pkg"]
    assert (kinds(found)["names/pkg"], found.path) == (("l", "../0"), ("names",))
    assert found.local_path("names/pkg/steps.py") == steps.__file__


@pytest.mark.parametrize("editable", [True, False])
def test_metadata_of_editable_is_sent(project, tmp_path, monkeypatch, editable):
    write(project, mod_DOT_py="")
    site = tmp_path / "site-packages"
    info = site / "my_pkg-1.2.dist-info"
    info.mkdir(parents=True)
    for name in ("METADATA", "entry_points.txt", "RECORD"):
        (info / name).touch()
    origin = {"url": project.as_uri(), "dir_info": {"editable": editable}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(sys, "path", [str(project), str(site)])
    found = sources.find("auto")
    names = ("METADATA", "entry_points.txt") if editable else ()
    assert places(found) == ["0/mod.py", *(f"metadata/{info.name}/{name}" for name in names)]
    assert found.path == (("0", "metadata") if editable else ("0",))


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


def test_loaded_module_is_compiled(project, monkeypatch):
    path = write(project, mod_DOT_py="a = 1", broken_DOT_py="a =") / "mod.py"
    loaded(monkeypatch, "mod", path)
    names = [name for name, *_ in unpacked(sources.find("auto").archive)]
    tag = sys.implementation.cache_tag
    assert names == ["0/__pycache__/mod." + tag + ".pyc", "0/broken.py", "0/mod.py"]


def test_compiled_module_naming_path_is_omitted(project):
    path = project / "mod.py"
    path.write_text(f"here = '{path}'")
    only_source = sources.find("auto").archive
    os.utime(path, (1, 1))
    py_compile.compile(str(path))
    assert sources.find("auto").archive == only_source


def be_gone(path):
    path.unlink()


def be_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def be_a_link(path):
    path.unlink()
    path.symlink_to("a.py")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (be_gone, "No such file or directory"),
        (be_a_pipe, "not a regular file any more"),
        (be_a_link, "Too many levels of symbolic links"),
    ],
)
def test_file_changed_after_walk_is_omitted(project, monkeypatch, change, why):
    write(project, a_DOT_py="", other_DOT_py="")
    follow = sources.Walk.follow_links

    def then_change(walk):
        follow(walk)
        change(project / "other.py")

    monkeypatch.setattr(sources.Walk, "follow_links", then_change)
    found = sources.find("auto")
    assert places(found) == ["0/a.py"]
    assert [each.why for each in found.left_out] == [why]


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


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (".env", "names that start with a dot are not sent. Rename it, or pass"),
        ("data/a.csv", 'excluded by "data" in {0}/.dockerignore, line 2. Add the line "!data" at'),
        ("b.csv", 'excluded by "*.csv" in exclude_sources. Remove the pattern from'),
        ("big.bin", "2.0 MB; data files up to 1 MB are sent. Pass its content as"),
        ("conf/x.toml", None),
        ("../conf/x.toml", "is outside the folders that were sent ({0}). Name its folder in"),
        ("no/such.csv", None),
        ("../job/0/a.csv", None),
    ],
)
def test_missing_file_hint_names_rule(project, name, why):
    files = {"conf/x.toml": "", "../conf/x.toml": "", ".env": "", "data/a.csv": "", "b.csv": ""}
    for each, text in {**files, "big.bin": "x" * 2_000_000, ".dockerignore": "#\ndata\n"}.items():
        path = project / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sources.find("auto", ["*.csv"])
    error = FileNotFoundError(2, "No such file or directory", os.path.normpath(project / name))
    text = hint("FileNotFoundError", str(error))
    assert why.format(project) in text if why else text == ""


def test_missing_relative_path_hint_names_rule(project, monkeypatch):
    write(project, main_DOT_py="", data_DOT_csv="")
    monkeypatch.chdir(project)
    sources.find("auto", ["*.csv"])
    error = FileNotFoundError(2, "No such file or directory", Path("data.csv"))
    assert 'excluded by "*.csv"' in hint("FileNotFoundError", str(error))


def test_excluded_module_is_named_when_missing(project):
    write(project, main_DOT_py="", secret_DOT_py="", pack__secret_DOT_py="")
    sources.find("auto", ["secret.py"])
    assert hint("ModuleNotFoundError", "No module named 'secret'") == (
        f"The job has no module secret: {project / 'secret.py'} was not sent: "
        'excluded by "secret.py" in exclude_sources. '
        "Remove the pattern from exclude_sources"
    )


@pytest.mark.parametrize("main", ["main.py", ""])
def test_excluded_code_is_reported_once(project, monkeypatch, caplog, main):
    write(project, main_DOT_py="", data_DOT_csv="")
    (project / ".dockerignore").write_text("**/*.py\n")
    monkeypatch.setattr(sources, "main_file", lambda: str(project / main) if main else "")
    sources.find("auto")
    (project / "data.csv").write_text("1")
    sources.find("auto")
    (record,) = caplog.records
    what = "the running script" if main else "all code of the project"
    assert record.message.startswith(f"{what} is not sent to jobs")
    assert f"{project}/.dockerignore, line 1" in record.message


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


# --- private files and folders of others ---------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["id_rsa", "id_work", "tls/server.pem", "credentials-dev.json", "terraform.tfstate"]
)
def test_private_file_is_left_out_and_named(project, caplog, name):
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).touch()
    write(project, id_map_DOT_csv="", pem_DOT_py="")
    assert places(sources.find("auto")) == ["0/id_map.csv", "0/pem.py"]
    (record,) = caplog.records
    assert f"{project / name} looks like a key or credentials" in record.message
    assert f'add "!{name}" to exclude_sources' in record.message
    assert f"0/{name}" in places(sources.find("auto", [f"!{name}"]))


def test_file_that_begins_with_private_key_is_left_out(project, caplog):
    key = "-----BEGIN OPENSSH PRIVATE KEY-----"
    write(project, deploy_DOT_txt=key, notes_DOT_txt=f"{' ' * 200}{key}")
    assert places(sources.find("auto")) == ["0/notes.txt"]
    assert "deploy.txt looks like a key" in caplog.text
    assert places(sources.find("auto", ["!deploy.txt"])) == ["0/deploy.txt", "0/notes.txt"]


@pytest.mark.parametrize("target", [".env", ".git/config", "keys/server.pem"])
def test_link_is_judged_by_its_target(project, target):
    (project / target).parent.mkdir(exist_ok=True)
    (project / target).touch()
    (project / "link.txt").symlink_to(target)
    assert "0/link.txt" not in places(sources.find("auto"))


def test_folder_that_others_can_write_sends_loaded_modules(project, monkeypatch, caplog):
    write(project, mine_DOT_py="", other_DOT_txt="")
    module = type(sys)("mine")
    module.__file__ = str(project / "mine.py")
    monkeypatch.setattr(sources, "project_modules", lambda: [module])
    project.chmod(0o777)
    assert places(sources.find("auto")) == ["0/mine.py"]
    assert f"{project} can be written by other users" in caplog.text
    assert "0/other.txt" in places(sources.find([str(project)]))


@pytest.mark.parametrize("folder", ["/etc", "/usr", "/home"])
def test_system_folder_is_no_project(folder):
    assert folders.why_partial(folder) == "is a system folder"


def test_hidden_folder_is_no_project_without_marker(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = tmp_path / ".ssh" / "old"
    keys.mkdir(parents=True, mode=0o700)
    assert folders.why_partial(str(keys)) == "is a hidden folder"
    (keys / "pyproject.toml").touch()
    assert folders.why_partial(str(keys)) == ""


def test_empty_entry_of_pythonpath_adds_no_folder(project, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_START_FOLDER", str(project))
    write(project, tax_DOT_txt="")
    assert places(sources.find("auto")) == ["0/tax.txt"]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:")
    assert places(sources.find("auto")) == []
