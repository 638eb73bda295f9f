"""The names that users import."""

import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import farcall


def test_dir_lists_all_public_names():
    """Names are listed before their first use, although they are imported lazily."""
    script = "import farcall; print(sorted(set(farcall.__all__) ^ set(dir(farcall))))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.stdout == "[]\n", said.stderr


@pytest.mark.parametrize("name", farcall.__all__)
def test_public_names_have_module_farcall(name):
    assert getattr(farcall, name).__module__ == "farcall"


def test_help_shows_all_classes():
    page = pydoc.plain(pydoc.render_doc(farcall))
    assert [name for name in farcall.__all__ if f"class {name}" not in page] == []


def test_first_help_screen_has_all_names():
    page = pydoc.plain(pydoc.render_doc(farcall)).splitlines()
    screen = "\n".join(page[:48])
    assert [name for name in farcall.__all__ if not re.search(rf"\b{name}\b", screen)] == []


DOCS = Path(__file__).parents[2] / "docs"
PAGES = "".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md")))


@pytest.mark.parametrize(
    "name", ["BatchExecutor", "BatchFuture", "BatchPoolExecutor", "Task", "Sweep", "Job"]
)
def test_pages_explain_every_public_method(name):
    """Methods for other modules have an underscore, so that help() shows only the users'."""
    cls = getattr(farcall, name)
    own = [each for each in vars(cls) if not each.startswith("_")]
    methods = [each for each in own if not hasattr(cls.__mro__[1], each)]
    assert [each for each in methods if not re.search(rf"\b{each}\b", PAGES)] == []
