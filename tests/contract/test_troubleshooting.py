"""docs/troubleshooting.md quotes messages that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def texts():
    """Yield the string literals in farcall's sources."""
    for folder in ("executor/farcall", "runtime_image"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_quoted_messages_exist():
    quoted = set(re.findall(r"^\| `([^`]*[ _][^`]*)`", PAGE, re.MULTILINE))
    assert len(quoted) >= 12
    sources = "\n".join(texts())
    assert [each for each in sorted(quoted) if each not in sources] == []
