"""docs/architecture.md refers to existing files and lists every package."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "executor" / "farcall"
RUNTIME = ROOT / "runtime_image"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([a-z_/]+/|[a-z_/]+\.(?:py|toml))`", PAGE)))


def test_named_files_exist():
    places = CLIENT, CLIENT.parent, RUNTIME, RUNTIME / "farcall_runtime", ROOT
    missing = [name for name in NAMED if not any((place / name).exists() for place in places)]
    assert missing == []


def test_every_package_is_listed():
    packages = {path.parent.name for path in CLIENT.glob("*/__init__.py")}
    listed = set(re.findall(r"^\| \d \| `([a-z]+)/` \|", PAGE, re.MULTILINE))
    assert listed == packages
