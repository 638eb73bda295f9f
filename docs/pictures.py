"""Make the pictures of the web UI in docs/images: ``python docs/pictures.py``.

The workflows of ``farcall demo --page`` run as a user called Ada in /tmp/ada, and Chromium takes
the pictures. A picture that would show a path of this machine is not made.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from farcall.cli import demo_page

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
HOME = Path(tempfile.gettempdir()) / "ada"
PRIVATE = [str(ROOT), str(Path.home()).strip("/"), sys.prefix, socket.gethostname()]
PATIENCE_MS = 60_000
SERVE = "import asyncio, workflows; asyncio.run(workflows.serve_page(0))"


def main() -> None:
    """Run the workflows and make the pictures."""
    HOME.mkdir(mode=0o700)
    try:
        # Tracebacks in the pictures show this file.
        shutil.copyfile(demo_page.__file__, HOME / "workflows.py")
        ada = {"HOME": str(HOME), "LOGNAME": "ada", "USER": "ada", "PATH": os.environ["PATH"]}
        command = [sys.executable, "-c", SERVE]
        serving = subprocess.Popen(command, env=ada, cwd=HOME, stdout=subprocess.PIPE, text=True)
        assert serving.stdout is not None
        try:
            link = next(line.strip() for line in serving.stdout if "#token=" in line)
            draw(link)
        finally:
            serving.send_signal(signal.SIGINT)
            serving.communicate()
    finally:
        shutil.rmtree(HOME)


def draw(link: str) -> None:
    """Make the pictures of the web UI at an address."""
    finder = [ROOT / ".ci" / "browser"]
    found = subprocess.run(finder, check=True, stdout=subprocess.PIPE, text=True)
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found.stdout.strip(), args=options)
        page = open_page(browser, link, "ocean-currents")
        page.get_by_role("button", name="Show tasks").click()
        page.get_by_test_id("task").filter(has_text="[6]").first.get_by_role("link").click()
        page.get_by_test_id("traceback").wait_for()
        # The traceback is read before the array's counts are polled again.
        page.get_by_role("button", name="Failed 1").wait_for()
        page.get_by_test_id("reason").first.wait_for()
        page.get_by_role("region", name="Workflow").evaluate("main => { main.scrollTop = 0 }")
        shoot(page, "page.png")

        page = open_page(browser, link, "train-model", dark=True)
        page.get_by_test_id("task").filter(has_text="train").first.get_by_role("link").click()
        page.get_by_role("tab", name="Output").click()
        page.get_by_role("button", name="Side by side").click()
        page.locator("[data-testid=line][data-stream=stderr]").first.wait_for()
        shoot(page, "page-dark.png")

        page = open_page(browser, link, "ocean-currents", width=400)
        page.get_by_role("button", name="Show tasks").click()
        page.get_by_test_id("task").filter(has_text="[0]").wait_for()
        shoot(page, "page-narrow.png")
        browser.close()


def open_page(
    browser: Browser, link: str, workflow: str, *, width: int = 1280, dark: bool = False
) -> Page:
    """Open a workflow in a new window."""
    page = browser.new_page(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
    )
    page.set_default_timeout(PATIENCE_MS)
    page.goto(link)
    page.get_by_role("status", name="Connection").get_by_text("Live").wait_for()
    workflows = page.get_by_role("navigation", name="Workflows")
    workflows.get_by_role("link", name=re.compile(f"^{workflow}")).click()
    return page


def shoot(page: Page, name: str) -> None:
    """Write a picture.

    Raises:
        RuntimeError: It would show a path of this machine, or its name.
    """
    page.mouse.move(0, 0)
    shown = page.locator("body").inner_text()
    if private := [each for each in PRIVATE if each and each in shown]:
        raise RuntimeError(f"{name} would show {private[0]!r}")
    page.screenshot(path=IMAGES / name, animations="disabled")
    print(f"docs/images/{name}: {(IMAGES / name).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
