"""Top-level modules that the project's code imports."""

import linecache
import sys
from types import ModuleType

import pytest

from farcall.config.settings import Settings
from farcall.packages import imported
from farcall.payload import sources


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Make a folder the only one on the import path, with a script and a loaded module `lib`."""
    root = tmp_path / "project"
    root.mkdir()
    lib = ModuleType("lib")
    lib.__file__ = str(root / "lib.py")
    monkeypatch.setattr(sys, "path", [str(root)])
    monkeypatch.setattr(sources, "project_modules", lambda: [lib])
    monkeypatch.setattr(sources, "main_file", lambda: str(root / "main.py"))
    for name in ("main.py", "lib.py"):
        (root / name).touch()
    return root


def named(**options):
    return imported.modules(Settings(**options))[0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import numpy", {"numpy"}),
        ("import numpy.linalg as la, pandas", {"numpy", "pandas"}),
        ("from scipy.stats import norm", {"scipy"}),
        ("def f():\n    import numpy", {"numpy"}),
        ("def f(): import numpy", {"numpy"}),
        ("from . import near\nfrom .deep import x", set()),
        ("important = 1\nfrom_here = 2", set()),
    ],
)
def test_imports_of_script_are_found(project, text, found):
    (project / "main.py").write_text(text)
    assert named() == found


def test_imports_of_reached_modules_are_found(project):
    (project / "main.py").write_text("import pack")
    (project / "lib.py").write_text("import numpy")
    (project / "pack").mkdir()
    (project / "pack/__init__.py").touch()
    (project / "pack/deep.py").write_text("import pandas")
    (project / "unused.py").write_text("import scipy")
    assert named() == {"numpy", "pandas"}


def test_imports_of_a_notebook_are_found(project, monkeypatch):
    monkeypatch.setattr(sources, "main_file", lambda: "")
    lines = ["import numpy\n"]
    monkeypatch.setitem(linecache.cache, "<cell 1>", (13, None, lines, "<cell 1>"))
    assert "numpy" in named()


def test_imports_are_found_without_sources(project):
    (project / "main.py").write_text("import numpy")
    assert named(sources=None) == {"numpy"}


def test_loaded_modules_are_returned_separately(project):
    (project / "main.py").write_text("import numpy")
    names, loaded = imported.modules(Settings())
    assert "pytest" in loaded
    assert not names & loaded
