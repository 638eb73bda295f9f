"""The page as a person meets it: `farcall ui` on the local AWS emulator, in a real browser.

Every test of a page ends with what a browser tells its developer: no error, no violation of the
content security policy, no dialog, and no request to anywhere but the page's own server.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

import farcall_local
from farcall import BatchExecutor
from tests.support.absent import Absent
from tests.support.browser import BROWSER, LACKING
from tests.support.timing import STREAM_S
from tests.ui import serving
from tests.ui.looking import PATIENCE_MS

_ROOT = Path(__file__).parents[2]
#: Where screenshots go, for a person to look at.
SCREENSHOTS = Path(os.environ.get("TEST_SCREENSHOTS", _ROOT / "build" / "screenshots"))

expect.set_options(timeout=PATIENCE_MS)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if BROWSER or not module_path.name.startswith("test_browser"):
        return None
    return Absent.because(LACKING, module_path, parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for a browser as slow: that one computes all the while."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def embedded() -> Iterator[farcall_local.LocalAWS]:
    with farcall_local.start(cpus=8) as aws:
        aws.configure(stream_s=STREAM_S)
        yield aws


@pytest.fixture(scope="module")
def served(
    embedded: farcall_local.LocalAWS, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[serving.Page]:
    """The installed command, serving the page."""
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    with serving.page({**embedded.environment, **home}) as served:
        yield served


class NewExecutor(Protocol):
    """Return an executor of small jobs that are tried once: ``executor(workflow="name")``."""

    def __call__(self, **options: Any) -> BatchExecutor: ...


@pytest.fixture
def executor(aws: farcall_local.LocalAWS) -> NewExecutor:
    small = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02}
    return lambda **options: BatchExecutor(**{**small, **options})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(
            executable_path=BROWSER,
            args=[
                # Chromium has no sandbox for root, who has to say so.
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
                "--host-resolver-rules=MAP *.example 127.0.0.1",
            ],
        )
        yield launched
        await launched.close()


class Seen:
    """A browser's reports on a page that its user does not see."""

    def __init__(self, expected: str) -> None:
        self._expected = expected
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def watch(self, context: BrowserContext) -> None:
        """Note all of it, of every page."""
        context.on("console", self._note_console)
        context.on("weberror", lambda error: self.complaints.append(f"error: {error.error}"))
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("page", lambda page: page.on("popup", lambda _: self._note("popup")))

    async def note_dialog(self, dialog: Any) -> None:
        """Note a dialog that a script has opened, and close it."""
        self._note(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def elsewhere(self, *origins: str) -> list[str]:
        """Return the requests that went to none of these."""
        here = tuple(f"{origin}/" for origin in origins)
        return [url for url in self.requests if not url.startswith((*here, "data:", "blob:"))]

    def _note(self, text: str) -> None:
        self.complaints.append(text)

    def _note_console(self, message: Any) -> None:
        if self._expected and self._expected in message.text:
            return
        if message.type in ("error", "warning"):
            self._note(f"{message.type}: {message.text}")


class Open(Protocol):
    """Open the page in a browser of its own: ``open_page("#/run/x", width=400)``.

    What the browser tells its developer may hold `expected`, and nothing else.
    """

    async def __call__(
        self,
        fragment: str = "",
        *,
        served: serving.Page | None = None,
        with_token: bool = True,
        expected: str = "",
        **context: Any,
    ) -> Page: ...


@pytest_asyncio.fixture(loop_scope="module")
async def open_page(browser: Browser, served: serving.Page) -> AsyncIterator[Open]:
    """Open pages that know the token; at the end they have nothing to complain of."""
    contexts: list[tuple[BrowserContext, Seen, str]] = []

    async def opened(
        fragment: str = "",
        *,
        served: serving.Page = served,
        with_token: bool = True,
        expected: str = "",
        **options: Any,
    ) -> Page:
        viewport = {"width": options.pop("width", 1280), "height": options.pop("height", 800)}
        context = await browser.new_context(viewport=viewport, **options)
        context.set_default_timeout(PATIENCE_MS)
        # A browser reports every response with such a status, refused tokens included.
        seen = Seen(expected if with_token else "the server responded with a status of 401")
        seen.watch(context)
        contexts.append((context, seen, served.url))
        page = await context.new_page()
        page.on("dialog", seen.note_dialog)
        if not with_token:
            await page.goto(served.url)
            return page
        await page.goto(f"{served.url}/#token={served.token}")
        await page.get_by_role("status", name="Connection").get_by_text("Live").wait_for()
        if fragment:
            await page.evaluate("where => { location.hash = where }", fragment)
        return page

    yield opened
    for context, seen, url in contexts:
        await context.close()
        assert [] == seen.complaints
        assert [] == seen.elsewhere(url)


@pytest.fixture
def shoot() -> Callable[[Page, str], Any]:
    """Write a screenshot: ``await shoot(page, "dark")``."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)

    async def shot(page: Page, name: str) -> None:
        await page.screenshot(path=SCREENSHOTS / f"{name}.png", animations="disabled")

    return shot
