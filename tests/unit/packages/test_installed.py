import csv
import json
import os
import subprocess
import sys

import pytest

from farcall.model.errors import SettingsError
from farcall.packages import installed, uv
from farcall.packages.installed import SITE
from tests.support.wheels import make_wheel

SCRIPTS = "[console_scripts]\ntool = tooled:main\n[gui_scripts]\nshown=tooled:main\n"
FILES = {
    "tooled/__init__.py": "def main():\n    print('tooled')\n",
    "tooled/data.json": "{}",
    "tooled-hook.pth": "import tooled\n",
    "tooled-1.0.data/scripts/other": "#!python\nprint('other')\n",
    "tooled-1.0.data/scripts/shell.sh": "#!/bin/sh\necho shell\n",
    "tooled-1.0.data/data/share/tooled/page.1": "page",
    "tooled-1.0.data/data/etc/tooled.ini": "[a]",
    "tooled-1.0.data/headers/tooled.h": "#define TOOLED",
}

BACKEND = """
import zipfile

FILES = {{
    "mine.pth": {project!r},
    "mine-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: mine\\nVersion: 1\\n",
    "mine-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
}}

def build_editable(folder, *_):
    record = "".join(f"{{name}},,\\n" for name in FILES) + "mine-1.dist-info/RECORD,,\\n"
    with zipfile.ZipFile(f"{{folder}}/mine-1-py3-none-any.whl", "w") as archive:
        for name, text in {{**FILES, "mine-1.dist-info/RECORD": record}}.items():
            archive.writestr(name, text)
    return "mine-1-py3-none-any.whl"
"""


def install(prefix, *wheels, editable=()):
    """Install with uv into a folder shaped like an environment; return its site folder."""
    wanted = [*map(str, wheels), *(part for each in editable for part in ("-e", str(each)))]
    subprocess.run(
        [
            uv.find(),
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--python",
            sys.executable,
            "--prefix",
            str(prefix),
            *wanted,
        ],
        check=True,
    )
    return prefix / SITE


def only(site):
    (found,) = installed.scan([str(site)])
    return found


def content(site):
    found = only(site)
    return installed.content(found, installed.describe(found))


def change_record(site, name, change):
    (record,) = site.glob(f"{name}-*.dist-info/RECORD")
    rows = change(list(csv.reader(record.read_text().splitlines())))
    record.write_text("".join(",".join(row) + "\n" for row in rows))


@pytest.fixture
def tooled(tmp_path):
    wheel = make_wheel(tmp_path, "tooled", files=FILES, entry_points=SCRIPTS)
    return install(tmp_path / "env", wheel)


def test_distribution_has_files_of_its_record(tooled):
    found = only(tooled)
    about = installed.describe(found)
    assert (about.name, about.version, about.is_pure, about.problem) == ("tooled", "1.0", True, "")
    files = {file.name: file for file in installed.content(found, about)}
    assert set(files) == {
        "bin/other",
        "bin/shell.sh",
        "etc/tooled.ini",
        "share/tooled/page.1",
        f"{SITE}/tooled/__init__.py",
        f"{SITE}/tooled/data.json",
        f"{SITE}/tooled-hook.pth",
        f"{SITE}/tooled-1.0.dist-info/METADATA",
        f"{SITE}/tooled-1.0.dist-info/RECORD",
        f"{SITE}/tooled-1.0.dist-info/WHEEL",
        f"{SITE}/tooled-1.0.dist-info/entry_points.txt",
    }
    assert files["bin/other"].source == b"#!/usr/bin/env python3\nprint('other')\n"
    assert files["bin/shell.sh"].source == b"#!/bin/sh\necho shell\n"
    assert files["bin/shell.sh"].is_executable


def test_three_line_shebang_is_replaced(tooled):
    script = tooled.parents[2] / "bin/other"
    script.write_bytes(b"#!/bin/sh\n'''exec' /a/long/path/python \"$0\" \"$@\"\n' '''\nprint(1)\n")
    files = {file.name: file.source for file in content(tooled)}
    assert files["bin/other"] == b"#!/usr/bin/env python3\nprint(1)\n"


def test_machine_specific_files_are_omitted(tooled):
    """The digest does not depend on them."""
    before = content(tooled)
    info = tooled / "tooled-1.0.dist-info"
    (info / "direct_url.json").write_text(json.dumps({"url": "file:///home/me", "dir_info": {}}))
    (info / "INSTALLER").write_text("pip\n")
    cached = tooled / "tooled/__pycache__"
    cached.mkdir()
    (cached / "__init__.cpython-311.pyc").write_bytes(b"")

    def as_written_by_pip(rows):
        rows = [row for row in rows if "uv_cache" not in row[0]]
        more = ["tooled/__pycache__/__init__.cpython-311.pyc", "", ""]
        return [*reversed(rows), more, ["tooled-1.0.dist-info/direct_url.json", "sha256=x", "9"]]

    change_record(tooled, "tooled", as_written_by_pip)
    assert sorted(content(tooled)) == sorted(before)


def test_sent_record_lists_sent_files(tooled):
    files = {file.name: file.source for file in content(tooled)}
    record = files[f"{SITE}/tooled-1.0.dist-info/RECORD"].decode()
    listed = {os.path.normpath(f"{SITE}/{row[0]}") for row in csv.reader(record.splitlines())}
    assert listed == set(files)
    assert "../../../bin/other,,\n" in record


@pytest.mark.parametrize(
    "path", ["../../../../elsewhere", "/etc/passwd", "../../other/x.py", "../x.py", "../../../x"]
)
def test_file_outside_environment_is_rejected(tooled, path):
    change_record(tooled, "tooled", lambda rows: [*rows, [path, "", ""]])
    with pytest.raises(SettingsError, match="outside its environment's folders") as caught:
        content(tooled)
    assert path in str(caught.value)
    assert "tooled 1.0" in str(caught.value)


def test_missing_file_is_named(tooled):
    (tooled / "tooled/data.json").unlink()
    with pytest.raises(SettingsError, match=r"missing: .*tooled/data\.json.*reinstall it"):
        content(tooled)


def test_sources_with_metadata_are_editable(tmp_path):
    (tmp_path / "mine.egg-info").mkdir()
    (tmp_path / "mine.egg-info/PKG-INFO").write_text("Name: mine\nVersion: 3\n")
    assert installed.describe(only(tmp_path)).is_editable


def test_editable_install_is_recognized(tmp_path):
    project = tmp_path / "project"
    (project / "mine").mkdir(parents=True)
    (project / "mine/__init__.py").touch()
    (project / "pyproject.toml").write_text(
        "[project]\nname='mine'\nversion='1'\n"
        "[build-system]\nrequires=[]\nbuild-backend='backend'\nbackend-path=['.']\n"
    )
    # A minimal build backend, because there is no index to fetch one from.
    (project / "backend.py").write_text(BACKEND.format(project=str(project)))
    about = installed.describe(only(install(tmp_path / "env", editable=[project])))
    assert (about.name, about.is_editable) == ("mine", True)


def test_folder_and_commit_installs_use_record(tooled):
    info = tooled / "tooled-1.0.dist-info"
    for origin, source in (
        ({"url": "file:///src", "dir_info": {}}, "a folder"),
        ({"url": "https://u:p@x", "vcs_info": {"vcs": "git", "commit_id": "ab" * 20}}, "a commit"),
    ):
        (info / "direct_url.json").write_text(json.dumps(origin))
        about = installed.describe(only(tooled))
        assert about.source.startswith(source)
        assert not (about.is_editable)
        assert not (about.problem)
        assert "u:p" not in about.source


def test_first_on_path_shadows_others(tmp_path):
    first = install(tmp_path / "first", make_wheel(tmp_path, "Same-Name", "2.0"))
    second = install(tmp_path / "second", make_wheel(tmp_path, "same_name", "1.0"))
    (found,) = installed.scan([str(tmp_path / "gone"), str(first), str(second)])
    assert (found.key, installed.describe(found).version) == ("same-name", "2.0")
    (found,) = installed.scan([str(second), str(first)])
    assert installed.describe(found).version == "1.0"


def test_unlisted_files_are_not_sent(tooled):
    (tooled / "tooled/by_hand.py").touch()
    (tooled / "loose").mkdir()
    (tooled / "loose/loose.py").touch()
    names = {file.name for file in content(tooled)}
    assert not [name for name in names if "by_hand" in name or "loose" in name]


def test_scan_matches_importlib_metadata():
    from importlib.metadata import distributions

    from packaging.utils import canonicalize_name

    expected = {canonicalize_name(each.metadata["Name"]) for each in distributions()}
    assert {found.key for found in installed.scan()} == expected
