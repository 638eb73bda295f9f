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
            "def choose(x): return x in {'a', 'b', 'c', 'd'} or Model().run(x)\n"
            "from farcall.payload import sources\n"
            "from farcall.payload.code_digests import CodeDigests\n"
            "from farcall.payload.project import Pickling\n"
            "codes = CodeDigests(Pickling(sources.find('auto')))\n"
            "print(codes.of_each([simulate, choose, Model]).hex())\n",
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
