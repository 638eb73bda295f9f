"""A task's packages: installer, folder, and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farcall_runtime import packages
from farcall_runtime.contract import module_arguments

FAILED = packages.InstallError


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Record commands instead of running them; `answers` are their exit codes and outputs."""
    commands = []

    def run(command, **options):
        commands.append(command)
        if "-r" in command:
            commands.append(Path(command[command.index("-r") + 1]).read_text())
        code, text = ran.answers.pop(0) if ran.answers else (0, "")
        return subprocess.CompletedProcess(command, code, "", text)

    def ran():
        return commands

    ran.answers = []
    monkeypatch.setattr(packages.subprocess, "run", run)
    monkeypatch.setattr(packages, "_overlay", lambda with_pip=False: tmp_path / "overlay")
    return ran


@pytest.fixture
def uv(monkeypatch):
    monkeypatch.setattr(packages.shutil, "which", lambda name: f"/bin/{name}")


@pytest.fixture
def no_uv(monkeypatch):
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    find = packages.importlib.util.find_spec
    monkeypatch.setattr(
        packages.importlib.util, "find_spec", lambda name: find("os" if name == "pip" else "no_uv")
    )


def test_empty_list_installs_nothing(ran):
    packages.install([])
    packages.install([], "")
    assert [] == ran()


def test_uv_installs_missing_packages(ran, uv, tmp_path):
    ran.answers = [(0, "Would install 1 package"), (0, "")]
    packages.install(["numpy<3", "tiny"])
    install = ["/bin/uv", "pip", "install"]
    assert [
        [*install, "--dry-run", "--python", sys.executable, "numpy<3", "tiny"],
        [*install, "--python", f"{tmp_path}/overlay/bin/python", "numpy<3", "tiny"],
    ] == ran()


def test_present_packages_are_not_installed(ran, uv):
    ran.answers = [(0, "Resolved 1 package\nWould make no changes\n")]
    packages.install(["numpy"])
    assert 1 == len(ran())


def test_pip_is_used_without_uv(ran, no_uv, tmp_path):
    packages.install(["tiny"])
    ((python, *options),) = ran()
    assert f"{tmp_path}/overlay/bin/python" == python
    assert [*module_arguments("pip"), "install"] == options[:4]
    assert {"--no-input", "tiny"} < {*options}


def test_requirements_file_replaces_packages(ran, no_uv):
    packages.install(["not-me"], "tiny==1.0\nä\n")
    command, content = ran()
    assert "not-me" not in command
    assert "tiny==1.0\nä\n" == content


@pytest.mark.parametrize("installer", ["uv", "no_uv"])
def test_failure_names_packages_and_remedies(ran, request, installer):
    request.getfixturevalue(installer)
    ran.answers = [(1, "no such package")] * 2
    with pytest.raises(FAILED, match=r"tiny==9 could not be installed.*exited with code 1.*index"):
        packages.install(["tiny==9"])


def test_failed_requirements_file_is_quoted(ran, no_uv):
    ran.answers = [(1, "")]
    with pytest.raises(FAILED) as caught:
        packages.install([], "tiny==9\n")
    assert "tiny==9" in str(caught.value)  # the file itself is already deleted


def test_unwritable_temporary_folder_is_named(monkeypatch, tmp_path):
    packages._overlay.cache_clear()
    folder = tmp_path / "file"
    folder.write_text("")

    def refuse(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packages.venv.EnvBuilder, "create", refuse)
    with pytest.raises(FAILED, match="No space left on device.*writ"):
        packages._overlay()


OVERLAY = """
import os, subprocess, sys
from farcall_runtime import packages
folder = packages._overlay()
assert folder is packages._overlay()
site = next(folder.glob("lib/python3*/site-packages"))
(site / "json.py").write_text("WHERE = 'overlay'")
(site / "brought.py").write_text("WHERE = 'overlay'")
import brought
code = "import brought, cloudpickle; print(brought.WHERE, end=' ')"
subprocess.run([sys.executable, "-c", code], check=True)
subprocess.run([str(folder / "bin/python"), "-c", code], check=True)
subprocess.run(["python", "-c", code], check=True)
print(folder, flush=True)
"""


def test_task_folder_precedes_image_packages(tmp_path):
    root = str(Path(packages.__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", OVERLAY],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    *where, folder = done.stdout.split()
    assert ["overlay"] * 3 == where
    assert folder.startswith(str(tmp_path))
    assert [] == list(tmp_path.iterdir())  # deleted with the task
