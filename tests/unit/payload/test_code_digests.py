"""Digests of code: what counts, and what does not."""

import os
import subprocess
import sys

import pytest

from farcall.payload import sources
from farcall.payload.code_digests import CodeDigests
from farcall.payload.project import Pickling

HELPERS = """
import other
RATE = 3
def helper(x):
    return x * RATE
def unused(x):
    return x
"""
MAIN = """
import helpers
from helpers import helper
LIMIT = 10
class Base:
    def scale(self): return 2
class Model(Base):
    factor = 1
    def run(self, x): return helper(x) * self.factor
def also(x): return x
def simulate(x, y=1, *, z=2):
    # a comment
    return Model().run(min(x, LIMIT)) + also(y)
def by_module(x):
    return helpers.helper(x)
def late(x):
    from helpers import helper as h
    return h(x)
def make():
    level = [5]
    return lambda x: x + level[0]
closure = make()
GUARD
"""
OTHER = "def more(): pass\n"


@pytest.fixture
def digest(run):
    """Return a function that returns the digest of a function of a new script."""

    def compute(name="simulate", main=MAIN, helpers=HELPERS, other=OTHER, guard="", version=""):
        for module in ("helpers", "other"):
            sys.modules.pop(module, None)
        script = run(helpers=helpers, other=other, main=main.replace("GUARD", guard))
        using = Pickling(sources.find("auto"))
        return CodeDigests(using, version).of_call(vars(script)[name], {})

    return compute


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# a comment", "# other\n\n\n    # lines"),
        ("\nimport ", "\n\n\nimport "),
        ("GUARD", "def unrelated(): return 1\nGUARD"),
        ("def by_module(x):", "def by_module(x, y=3):"),
        ("x * RATE", "(x  *  RATE)"),
    ],
)
def test_unrelated_changes_do_not_count(digest, old, new):
    assert digest() == digest(main=MAIN.replace(old, new), helpers=HELPERS.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 10", "LIMIT = 11"),
        ("factor = 1", "factor = 2"),
        ("def scale(self): return 2", "def scale(self): return 3"),
        ("def also(x): return x", "def also(x): return -x"),
        ("y=1", "y=2"),
        ("z=2", "z=3"),
        ("+ also(y)", "- also(y)"),
    ],
)
def test_changes_in_the_script_count(digest, old, new):
    assert digest() != digest(main=MAIN.replace(old, new))


@pytest.mark.parametrize("name", ["simulate", "by_module", "late"])
@pytest.mark.parametrize("other", [OTHER, "def more(): return 1\n"])
def test_changes_in_modules_count(digest, name, other):
    helpers = HELPERS if other != OTHER else HELPERS.replace("RATE = 3", "RATE = 4")
    assert digest(name) != digest(name, helpers=helpers, other=other)


@pytest.mark.parametrize(
    ("main", "old", "new"),
    [
        ("def simulate(x): return simulate.k\nsimulate.k = 1", "k = 1", "k = 2"),
        (
            (
                "import functools\nclass A:\n    @functools.cached_property\n"
                "    def p(self): return 1\ndef simulate(x): return A().p"
            ),
            "return 1",
            "return 2",
        ),
        (
            (
                "class M(type):\n    def __call__(cls): return 1\n"
                "class A(metaclass=M): pass\ndef simulate(x): return A()"
            ),
            "return 1",
            "return 2",
        ),
        (
            (
                "class A:\n    def go(self): return 1\n"
                "stateless = A()\ndef simulate(x): return stateless.go()"
            ),
            "return 1",
            "return 2",
        ),
        (
            (
                "import threading\nlocked = [threading.Lock(), 1]\nlocked.append(locked)\n"
                "def simulate(x): return locked[1]"
            ),
            ", 1]",
            ", 2]",
        ),
        (
            (
                "import threading\nclass A:\n    def __init__(self, k):\n"
                "        self.lock, self.k = threading.Lock(), k\n"
                "locked = A(1)\ndef simulate(x): return locked.k"
            ),
            "A(1)",
            "A(2)",
        ),
    ],
    ids=["attribute", "cached property", "metaclass", "stateless", "lock in list", "with lock"],
)
def test_changes_of_rare_values_count(digest, main, old, new):
    assert digest(main=main) != digest(main=main.replace(old, new))


@pytest.mark.parametrize(
    "main",
    [
        "import helpers\nmodules = [helpers]\ndef simulate(x): return modules[0].helper(x)",
        "import helpers\nthing = helpers.Thing()\ndef simulate(x): return thing.go()",
        "import importlib as i, helpers\ndef simulate(x): i.import_module('helpers').helper(x)",
    ],
    ids=["module in list", "instance", "import_module"],
)
def test_modules_in_rare_places_count(digest, main):
    helpers = "def helper(x): return 1\nclass Thing:\n    def go(self): return 1\n"
    changed = helpers.replace("return 1", "return 2")
    assert digest(main=main, helpers=helpers) != digest(main=main, helpers=changed)


def test_closure_counts(digest):
    assert digest("closure") != digest("closure", main=MAIN.replace("[5]", "[6]"))


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    helpers.RATE = 9'])
def test_values_that_the_program_sets_count(digest, guard):
    assert digest() != digest(guard=f"{guard}\nhelpers.RATE = 8")


def test_version_replaces_code(digest):
    changed = MAIN.replace("+ also(y)", "- also(y)")
    assert digest(version="v2") == digest(main=changed, version="v2")
    assert digest(version="v2") != digest(version="v3")
    assert digest(version="v2") != digest("late", version="v2")


def test_digest_is_equal_in_each_process(tmp_path):
    for name, source in (("helpers", HELPERS), ("other", OTHER)):
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "main.py").write_text(
        MAIN.replace(
            "GUARD",
            "CHOICES = frozenset('abcdef')\n"
            "import typing, pydantic\n"
            "T = typing.TypeVar('T')\n"
            "class Box(typing.Generic[T]): pass\n"
            "class Record(pydantic.BaseModel):\n"
            "    value: int = 1\n"
            "def choose(x): return x in {'a', 'b', 'c', 'd'} or Model().run(x) or x in CHOICES\n"
            "from farcall.payload import sources\n"
            "from farcall.payload.code_digests import CodeDigests\n"
            "from farcall.payload.project import Pickling\n"
            "codes = CodeDigests(Pickling(sources.find('auto')))\n"
            "print(codes.of_each([simulate, choose, Model, Box, Record]).hex())\n",
        )
    )
    digests = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "main.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_code_of_metaclass_does_not_run(digest):
    main = """
class Meta(type):
    @property
    def __module__(cls): raise AssertionError("the user's own code")
class Model(metaclass=Meta): pass
def simulate(x): return Model
"""
    assert digest(main=main) == digest(main=main)
