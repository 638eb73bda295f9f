"""Links of the built site: each leads somewhere, and no page fetches anything from elsewhere.

``python docs/site/links.py build/site`` prints what is wrong, and then exits 1. ``mkdocs build
--strict`` looks at the links that stand in Markdown; this looks at what a browser gets, the API
reference, raw HTML and the theme among it. Pages elsewhere that a reader may click on are not
asked for.

linkchecker would do, but for one thing: as root it becomes nobody, who cannot read a checkout in
root's home.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What one page has to lead to, and where it leads.

    Attributes:
        anchors: What can stand behind ``#`` of a link to it.
        links: Where it leads, as written.
        fetched: What a browser loads with it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        found = {name: value for name, value in attrs if value is not None}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if "src" in found or tag == "link":
            self.fetched.add(found.get("src") or found["href"])
        elif "href" in found:
            self.links.add(found["href"])


def problems(site: Path) -> list[str]:
    """Return a line for each link that leads nowhere."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in sorted(page.links | page.fetched):
            parts = urlsplit(link)
            target = _target(parts.path, path, site)
            if parts.scheme or parts.netloc:
                wrong = "is fetched from elsewhere" if link in page.fetched else ""
            elif not target.is_file():
                wrong = "leads nowhere"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                wrong = "names a place that the page does not have"
            else:
                wrong = ""
            if wrong:
                found.append(f"{path.relative_to(site.resolve())}: {link} {wrong}")
    return found


def _target(link: str, page: Path, site: Path) -> Path:
    """Return the file that a link of a page means."""
    if not link:
        return page
    folder = site if link.startswith("/") else page.parent
    return (folder / unquote(link).lstrip("/")).resolve()


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]))
    sys.exit("\n".join(wrong) or None)
