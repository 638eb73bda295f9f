"""docs/architecture.md names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "executor" / "farcall"
RUNTIME = ROOT / "runtime_image"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([a-z_/]+/|[a-z_/]+\.(?:py|toml))`", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_is_there(name):
    in_runtime = RUNTIME / "farcall_runtime"
    assert any(
        (place / name).exists() for place in (CLIENT, CLIENT.parent, RUNTIME, in_runtime, ROOT)
    )


def test_the_page_names_every_room():
    rooms = {path.parent.name for path in CLIENT.glob("*/__init__.py")}
    listed = set(re.findall(r"^\| \d \| `([a-z]+)/` \|", PAGE, re.MULTILINE))
    assert listed == rooms
