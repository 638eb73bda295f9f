"""The documentation's site has all pages, and the API reference all public names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
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


def test_each_page_is_in_the_navigation_once():
    assert sorted(leaves(SITE["nav"])) == sorted(
        str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")
    )


def test_the_api_reference_has_each_public_name_once():
    pages = "".join(path.read_text() for path in sorted((DOCS / "api").glob("*.md")))
    named = re.findall(r"^::: farcall\.(\w+)$", pages, re.MULTILINE)
    assert sorted(named) == sorted([*farcall.__all__, "testing"])


def test_dead_links_and_anchors_fail_the_build():
    """mkdocs only tells of them otherwise, and says nothing at all with --quiet."""
    links = SITE["validation"]["links"]
    assert {links[name] for name in ("not_found", "anchors", "absolute_links")} == {"warn"}
    [command] = re.findall(r"^\t.*(mkdocs build.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert command == "mkdocs build --strict"


def check_links(site):
    script = DOCS / "site" / "links.py"
    return subprocess.run(
        [sys.executable, script, site], capture_output=True, text=True, check=False
    )


def test_a_built_site_whose_links_lead_somewhere_passes(tmp_path):
    (tmp_path / "api").mkdir()
    (tmp_path / "index.html").write_text('<a href="api/a.html#b"></a><a href="https://x.y"></a>')
    (tmp_path / "api" / "a.html").write_text('<h1 id="b"></h1><a href="../index.html"></a>')
    assert check_links(tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ('<a href="b.html">', "b.html leads nowhere"),
        ('<img src="b.png">', "b.png leads nowhere"),
        ('<a href="#b">', "#b names a place that the page does not have"),
        ('<a href="/index.html#b">', "/index.html#b names a place that the page does not have"),
        ('<script src="https://x.y/z.js">', "https://x.y/z.js is fetched from elsewhere"),
        ('<link href="//x.y/z.css">', "//x.y/z.css is fetched from elsewhere"),
    ],
)
def test_a_link_of_a_built_site_that_leads_nowhere_is_told(link, wrong, tmp_path):
    (tmp_path / "index.html").write_text(link)
    done = check_links(tmp_path)
    assert (done.returncode, done.stderr) == (1, f"index.html: {wrong}\n")
