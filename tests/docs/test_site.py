"""The documentation site has all pages, and the API reference all public names."""

import re
from pathlib import Path

import yaml

import farcall
import farcall.testing

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def leaves(entry):
    """Return the pages below an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    below = entry if isinstance(entry, list) else entry.values()
    return [page for each in below for page in leaves(each)]


def test_every_page_is_in_navigation_once():
    assert sorted(leaves(SITE["nav"])) == sorted(
        str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")
    )


def test_api_reference_has_every_public_name():
    pages = "".join(path.read_text() for path in sorted((DOCS / "api").glob("*.md")))
    named = re.findall(r"^::: farcall\.(\w+)$", pages, re.MULTILINE)
    assert sorted(named) == sorted([*farcall.__all__, "testing"])


def test_dead_links_fail_the_build():
    """By default, mkdocs only reports dead links, and with --quiet not even that."""
    links = SITE["validation"]["links"]
    assert {links[name] for name in ("not_found", "anchors", "absolute_links")} == {"warn"}
    [command] = re.findall(r"^\t.*(mkdocs build.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert command == "mkdocs build --strict"
