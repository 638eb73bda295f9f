"""Fixtures for the web UI in a real browser: `farcall ui` on the local AWS emulator.

The teardown of every page checks the browser's reports: no error, no violation of the content
security policy, no dialog, and no request except to the web UI's own server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, async_playwright, expect

import farcall_local
from farcall import BatchExecutor
from tests.support.absent import Absent
from tests.support.browser import BROWSER, LACKING
from tests.support.timing import STREAM_S
from tests.ui import serving
from tests.ui.looking import PATIENCE_MS

expect.set_options(timeout=PATIENCE_MS)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if BROWSER or not module_path.name.startswith("test_browser"):
        return None
    return Absent.because(LACKING, module_path, parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with a browser as slow, because a browser keeps a core busy."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def embedded():
    with farcall_local.start(cpus=8) as aws:
        aws.configure(stream_s=STREAM_S)
        yield aws


@pytest.fixture(scope="module")
def served(embedded, tmp_path_factory):
    """The web UI, served by the installed command."""
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    with serving.page({**embedded.environment, **home}) as served:
        yield served


@pytest.fixture
def executor(aws):
    small = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02}
    return lambda **options: BatchExecutor(**{**small, **options})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(
            executable_path=BROWSER,
            # Chromium has no sandbox for root, so root must disable it.
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        yield launched
        await launched.close()


class Seen:
    """A browser's reports about a page: console, errors, requests, popups and dialogs."""

    def __init__(self, expected: str) -> None:
        self._expected = expected
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def watch(self, context: BrowserContext) -> None:
        """Record the reports about every page."""
        context.on("console", self._record_console)
        context.on("weberror", lambda error: self.complaints.append(f"error: {error.error}"))
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("page", lambda page: page.on("popup", lambda _: self._record("popup")))

    async def record_dialog(self, dialog: Any) -> None:
        """Record a dialog that a script has opened, and close it."""
        self._record(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def elsewhere(self, *origins: str) -> list[str]:
        """Return the requests to other origins."""
        here = tuple(f"{origin}/" for origin in origins)
        return [url for url in self.requests if not url.startswith((*here, "data:", "blob:"))]

    def _record(self, text: str) -> None:
        self.complaints.append(text)

    def _record_console(self, message: Any) -> None:
        if self._expected and self._expected in message.text:
            return
        if message.type in ("error", "warning"):
            self._record(f"{message.type}: {message.text}")


@pytest_asyncio.fixture(loop_scope="module")
async def open_page(browser, served):
    """Function that opens the web UI in a new browser context: ``open_page("#/x", width=400)``.

    The teardown checks that the browser reported no problems, except those that contain
    ``expected``.
    """
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
        # A browser reports every response with an error status, including rejected tokens.
        seen = Seen(expected if with_token else "the server responded with a status of 401")
        seen.watch(context)
        contexts.append((context, seen, served.url))
        page = await context.new_page()
        page.on("dialog", seen.record_dialog)
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
