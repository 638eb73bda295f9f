"""Pickling of the user's project: what a job takes from the caller's modules."""

import pickle
import sys
from types import ModuleType

import pytest

from farcall.payload import project, script, sources
from farcall_runtime import pickles


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that writes a project's files and runs `main.py` as a script."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *filter(sources.is_installed, sys.path)])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
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

    return start


def in_job(function, variables):
    """Return a function as a job gets it, where the script has the given variables."""
    using = project.Pickling(sources.find("auto"))
    with using.in_force():
        pickled = pickles.dump_whole(function)
    job = ModuleType("__main__")
    vars(job).update(variables)
    sys.modules["__main__"] = job
    return pickle.loads(pickled)


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    pass\n'])
def test_local_function_has_file_of_job(run, guard):
    main = run(main=f"def make():\n    return lambda: __file__\n{guard}")
    assert in_job(main.make(), {"__file__": "/job/main.py"})() == "/job/main.py"
