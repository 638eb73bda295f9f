"""``page.png``, ``page-dark.png`` and ``page-narrow.png``: the page, in a real browser."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

from pictures.stage import HOME, Stage, refuse_private

_FINDER = Path(__file__).parents[2] / ".ci" / "browser"
_PATIENCE_MS = 60_000


async def draw(stage: Stage, images: Path) -> list[Path]:
    """Make the pictures.

    Args:
        stage: Where the workflows run.
        images: The folder of the pictures.

    Returns:
        Their paths.
    """
    wide, dark, narrow = (images / f"page{name}.png" for name in ("", "-dark", "-narrow"))
    async with _served(stage) as link, _browser() as browser:
        page = await _open(browser, link, width=1280, height=800, scheme="light")
        await _open_workflow(page, "ocean-currents")
        await page.get_by_role("button", name="Show children").click()
        await page.get_by_test_id("task").filter(has_text="[6]").first.get_by_role("link").click()
        await page.get_by_test_id("traceback").wait_for()
        await page.get_by_role("main").evaluate("main => { main.scrollTop = 0 }")
        await page.mouse.move(0, 0)
        await _shoot(page, wide)

        page = await _open(browser, link, width=1280, height=800, scheme="dark")
        await _open_workflow(page, "train-model")
        await (
            page.get_by_test_id("task").filter(has_text="train").first.get_by_role("link").click()
        )
        await page.get_by_role("tab", name="Output").click()
        await page.get_by_role("button", name="Side by side").click()
        await page.locator("[data-testid=line][data-stream=stderr]").first.wait_for()
        await _shoot(page, dark)

        page = await _open(browser, link, width=400, height=800, scheme="light")
        await _open_workflow(page, "ocean-currents")
        await page.get_by_role("button", name="Show children").click()
        await page.get_by_test_id("task").filter(has_text="[0]").wait_for()
        await _shoot(page, narrow)
    return [wide, dark, narrow]


@asynccontextmanager
async def _served(stage: Stage) -> AsyncIterator[str]:
    """Serve the page; give its address with the token."""
    serving = await asyncio.create_subprocess_exec(
        *("farcall", "ui", "--port", "0"),
        env=stage.environment,
        cwd=HOME,
        stdout=asyncio.subprocess.PIPE,
    )
    assert serving.stdout is not None
    try:
        async for line in serving.stdout:
            if b"#token=" in line:
                yield line.decode().strip()
                break
    finally:
        serving.send_signal(signal.SIGINT)
        await serving.communicate()


def _executable() -> str:
    found = subprocess.run([_FINDER], check=True, stdout=subprocess.PIPE, text=True)
    return found.stdout.strip()


@asynccontextmanager
async def _browser() -> AsyncIterator[Browser]:
    # Chromium has no sandbox for root, who has to say so.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=_executable(), args=options)
        yield browser
        await browser.close()


async def _open(browser: Browser, link: str, *, width: int, height: int, scheme: str) -> Page:
    page = await browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page.set_default_timeout(_PATIENCE_MS)
    await page.goto(link)
    await page.get_by_role("status", name="Connection").get_by_text("Live").wait_for()
    return page


async def _open_workflow(page: Page, name: str) -> None:
    workflows = page.get_by_role("navigation", name="Workflows")
    await workflows.get_by_role("link", name=re.compile(f"^{name}")).click()


async def _shoot(page: Page, path: Path) -> None:
    refuse_private(await page.locator("body").inner_text())
    await page.screenshot(path=path, animations="disabled")
