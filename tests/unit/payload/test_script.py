"""Statements of a script or notebook that a job runs again."""

import linecache
import sys
from types import ModuleType, SimpleNamespace

import pytest

from farcall.payload import script


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a source as `__main__`; the calls are in the line `CALL`."""

    def start(source, *, is_cell=False, has_ended=False):
        lines = source.splitlines()
        line = next((n for n, text in enumerate(lines, 1) if "CALL" in text), len(lines))
        source = source.replace("CALL", "pass")
        module = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        path = tmp_path / "main.py"
        name = "<cell 1>" if is_cell else str(path)
        if is_cell:
            entry = len(source), None, source.splitlines(keepends=True), name
            monkeypatch.setitem(linecache.cache, name, entry)
        else:
            path.write_text(source)
            module.__file__ = name
        exec(compile(source, name, "exec"), vars(module))
        running = {} if has_ended else {name: line}
        monkeypatch.setattr(script, "_running", lambda: running)
        monkeypatch.setattr(script, "main_file", lambda: "" if is_cell else name)
        return script.find(SimpleNamespace(place_of=lambda path: f"0/{path.rpartition('/')[2]}"))

    return start


def ran(found, source):
    """Return the lines that a job runs."""
    lines = source.splitlines()
    return [lines[number] for _, _, numbers in found.plan(())["parts"] for number in numbers]


GUARDED = """
print
import os
x = os.getpid()
def f(): return x
if __name__ == "__main__":
    y = 2
    CALL
z = 3
"""


def test_guarded_script_runs_lines_before_guard(run):
    found = run(GUARDED)
    assert found.is_guarded
    assert found.plan(())["parts"] == [["0/main.py", "", [0, 1, 2, 3]]]
    assert [name for name in "xyzf" if found.is_made(name)] == ["x", "f"]


def test_finished_script_runs_except_guard(run):
    found = run(GUARDED, has_ended=True)
    assert found.is_guarded
    assert found.plan(())["parts"] == [["0/main.py", "", [0, 1, 2, 3, 5]]]


def test_globals_of_functions_are_not_made(run):
    source = "model = None\ndef load():\n    global model\n    model = 3\n"
    found = run(source + 'if __name__ == "__main__":\n    CALL\n')
    assert not found.is_made("model")
    assert found.is_made("load")


@pytest.mark.parametrize("is_cell", [False, True])
def test_unguarded_script_runs_only_definitions(run, is_cell):
    source = """\
import os
LIMIT = 3
data = os.listdir()
os.getpid()
def f(): return data
class Own: pass
def g(y=LIMIT): return y
UNSET = object()
Own.limit = 4
CALL
late = 5"""
    found = run(source, is_cell=is_cell)
    assert not found.is_guarded
    assert ran(found, source) == [
        "import os",
        "LIMIT = 3",
        "def f(): return data",
        "class Own: pass",
        "UNSET = object()",
        "Own.limit = 4",
    ]
    names = ("os", "LIMIT", "data", "f", "g", "UNSET", "late")
    assert [name for name in names if found.is_made(name)] == ["os", "f", "UNSET"]


def test_calls_above_guard_run_definitions(run):
    found = run('def f(): pass\nx = [].copy()\nCALL\nif __name__ == "__main__":\n    f()\n')
    assert not found.is_guarded
    assert found.plan(())["parts"] == [["0/main.py", "", [0]]]


def test_rebound_definition_is_not_made(run):
    found = run("import functools\ndef f(): pass\nf = functools.partial(f)\nCALL\n")
    assert not found.is_made("f")


def test_variable_can_be_made_again(run):
    source = "import threading\nlock = threading.Lock()\nCALL"
    found = run(source)
    assert found.remake("lock")
    assert ran(found, source) == source.splitlines()[:2]
    assert not found.remake("threading")


def test_skipped_settings_are_logged_once(run, caplog, monkeypatch):
    monkeypatch.setattr(script, "_warned", set())
    source = "import random\nclass A: pass\na = A()\nrandom.seed(1)\na.b = 2\nA.b = a\nCALL\n"
    run(source)
    run(source)
    assert len(caplog.records) == 1
    assert "line 4: random.seed(1); line 6: A.b = a" in caplog.text
    assert 'below `if __name__ == "__main__":`' in caplog.text


def test_edited_script_does_not_run(run, tmp_path):
    source = 'def f(): pass\nif __name__ == "__main__":\n    CALL\n'
    assert run(source) is not None
    (tmp_path / "main.py").write_text("\n" + source.replace("CALL", "pass"))
    assert script.find(SimpleNamespace(place_of=lambda _: "0/main.py")) is None


def test_installed_program_has_no_script(monkeypatch):
    module = ModuleType("__main__")
    module.__file__ = pytest.__file__
    monkeypatch.setitem(sys.modules, "__main__", module)
    assert script.find(SimpleNamespace()) is None
