"""Pickling of the user's project: what a job takes from the caller's modules."""

import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest

from farcall.config.settings import Settings
from farcall.payload import project, sources
from farcall.payload.pickling import pack_function
from farcall_runtime import pickles


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


def values(function=len):
    """Return the variables that a job sets, by module."""
    using = project.Pickling(sources.find("auto"))
    with using.in_force():
        _, (_, found, _) = using.prepared(function).__reduce__()
    return found


def guarded(program, top=""):
    """Return a script that runs a program below the guard."""
    lines = "".join(f"    {line}\n" for line in program.splitlines())
    return f'{top}\nif __name__ == "__main__":\n{lines}'


PROCESS = "import os\nPID = os.getpid()\n"


@pytest.mark.parametrize(
    ("lib", "program", "expected"),
    [
        ("RATE = 60 * 2", "import lib\nlib.RATE = 1", {"RATE": 1}),
        ("RATE: float = None", "import lib as a\na.RATE = 1", {"RATE": 1}),
        ("A, B = 1, [2]", "from lib import B\nB[:] = ()", {"B": []}),
        ("TABLE = dict()", "import lib\nlib.TABLE['a'] = 1", {"TABLE": {"a": 1}}),
        (PROCESS, "import lib\nlib.PID = 1", {"PID": 1}),
        (PROCESS, "import lib\nsetattr(lib, 'PID', 1)", {"PID": 1}),
        (PROCESS, "def f(module): module.PID = 1\nimport lib\nf(lib)", {"PID": 1}),
        (
            PROCESS + "ALL = [*map(int, '1')]",
            "from lib import ALL\nALL.append(2)",
            {"ALL": [1, 2]},
        ),
        (
            PROCESS + "def use(x):\n    global PID\n    PID = x",
            "from lib import use\nuse(1)",
            {"PID": 1},
        ),
        ("", "import lib\nsetattr(lib, 'NE' + 'W', 3)", {"NEW": 3}),
        ("X = 1", "import lib\nfrom pathlib import Path\nlib.X = Path('a')", {"X": Path("a")}),
        ("X = 1", "import lib\nlib.X = b'x' * 100_000", {"X": b"x" * 100_000}),
        ("def f(): pass", "import lib\nlib.f = len", {"f": len}),
        (
            PROCESS + "class A:\n    x = 1\n    y = PID",
            "from lib import A\nA.x = 2\nA.y = 3",
            {"A.x": 2, "A.y": 3},
        ),
        (
            PROCESS + "class A:\n    made = int('0')\n    def __init__(self): A.made += 1",
            "from lib import A\nA()",
            {"A.made": 1},
        ),
    ],
)
def test_variable_set_by_program_is_sent(run, lib, program, expected):
    run(lib=lib, main=guarded(program))
    assert values() == {"lib": expected}


@pytest.mark.parametrize(
    "lib",
    [
        PROCESS + "class A:\n    pid = PID",
        PROCESS + "def use(x):\n    global PID\n    PID = x",
        PROCESS + "TABLE = {}\nTABLE['pid'] = PID",
        PROCESS + "_pid = None\ndef _start():\n    global _pid\n    _pid = PID\n_start()",
        "ALL = {}\ndef add(f): ALL[f.__name__] = f\n@add\ndef f(): pass",
        "class A:\n    ALL = []\n    def __init_subclass__(cls): A.ALL.append(cls)\nclass B(A): 0",
        PROCESS + "class A:\n    def __init__(self): self.PID = 3\nA()",
        "from abc import ABC\nclass A(ABC): pass",
        "from os import *",
        PROCESS + "globals()['OTHER'] = PID",
        "A = 1\nB: int = -2\nC, D = (3,), {'e': [4]}\n__version__ = str(5)",
    ],
)
def test_variable_set_by_import_is_not_sent(run, lib):
    run(lib=lib, main=guarded("pass", "import lib"))
    assert values() == {}


def test_dynamic_assignment_spares_values_of_machine(run):
    lib = PROCESS + "ROOT = str('a')\nRATE = 1"
    names = "import lib\nfor n in ('ROOT', 'RATE'):\n    setattr(lib, n, 'b')"
    run(lib=lib, main=guarded(names))
    assert values() == {"lib": {"ROOT": "b", "RATE": "b"}}


def test_unpicklable_variable_is_logged_once(run, caplog, monkeypatch):
    monkeypatch.setattr(project, "_warned", set())
    main = run(
        lib="LOCK = None", main=guarded("import lib, _thread\nlib.LOCK = _thread.RLock()\nf = len")
    )
    for _ in range(2):
        pack_function(main.f, using=project.Pickling(sources.find("auto")))
    assert len(caplog.records) == 1
    assert "lib.LOCK cannot be pickled (TypeError: cannot pickle" in caplog.text


def test_name_is_followed_through_modules(run):
    run(
        base=PROCESS,
        lib="from base import PID as own\nimport base\n",
        main=guarded("lib.base.PID = 1", "import lib"),
    )
    assert values()["base"] == {"PID": 1}


def test_value_computed_of_set_variable_is_sent(run):
    program = "import base\nbase.HOST = 'b'\nimport lib"
    run(base="HOST = 'a'", lib="import base\nURL = base.HOST + '/x'", main=guarded(program))
    assert values() == {"base": {"HOST": "b"}, "lib": {"URL": "b/x"}}


def test_script_variable_of_import_is_not_sent(run):
    main = run(main=guarded("ALL.append(1)", PROCESS + "ALL = []\ndef f(): return PID, ALL"))
    assert values(main.f) == {"__main__": {"ALL": [1]}}


def test_env_file_is_logged_once(run, tmp_path, caplog):
    caplog.set_level("INFO", "farcall")
    (tmp_path / ".env").write_text("MODE=fast")
    run(main="")
    for _ in range(2):
        project.Pickling.of(Settings())
    assert len(caplog.records) == 1
    assert f"{tmp_path}/.env is not sent to jobs" in caplog.text


def test_generic_of_pydantic_is_the_same_class(run):
    source = """
from typing import Generic, TypeVar
from pydantic import BaseModel
T = TypeVar("T")
class Page(BaseModel, Generic[T]): item: T
"""
    page = run(lib=source, main="from lib import Page").Page
    with project.Pickling(sources.find("auto")).in_force():
        pickled = pickles.dump_whole(page[int])
    assert pickle.loads(pickled) is page[int]
