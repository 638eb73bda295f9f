"""Fixtures of projects: files, and a script that runs."""

import sys
from types import ModuleType

import pytest

from farcall.payload import project, script, sources


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that writes a project's files and runs `main.py` as a script."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *filter(sources.is_installed, sys.path)])
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(script, "_running", dict)

    def start(**files):
        for name, source in files.items():
            (tmp_path / f"{name}.py").write_text(source)
        path = tmp_path / "main.py"
        main = ModuleType("__main__")
        main.__file__ = str(path)
        sys.modules["__main__"] = main
        exec(compile(path.read_text(), str(path), "exec"), vars(main))
        own = [each for name, each in sys.modules.items() if name in files]
        monkeypatch.setattr(project, "project_modules", lambda: own)
        monkeypatch.setattr(sources, "project_modules", lambda: own)
        return main

    yield start
    for name, each in [*sys.modules.items()]:
        if str(getattr(each, "__file__", None)).startswith(f"{tmp_path}/"):
            del sys.modules[name]
