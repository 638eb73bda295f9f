"""A failed electron in farcall's web UI, in a real browser.

Starts the shared Covalent server, the web UI and a browser, because only a dispatch creates jobs
with a node. Slow, because a Covalent server takes seconds to start.
"""

import os
import re

import covalent as ct
import pytest
from playwright.sync_api import expect, sync_playwright

from tests.support.browser import BROWSER
from tests.support.patience import PATIENCE_S
from tests.ui import serving

expect.set_options(timeout=1000 * PATIENCE_S)


@pytest.fixture
def page(embedded, tmp_path):
    """The web UI in a browser."""
    # Chromium has no sandbox for root, so root must disable it.
    more = ["--no-sandbox"] if os.geteuid() == 0 else []
    home = {"HOME": str(tmp_path)}
    with (
        serving.page({**embedded.environment, **home}, "--all-users") as served,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=BROWSER, args=more)
        opened = browser.new_page()
        opened.set_default_timeout(1000 * PATIENCE_S)
        opened.goto(f"{served.url}/#token={served.token}")
        yield opened
        browser.close()


def test_failed_electron_is_shown(run, batch, page):
    @ct.electron(executor=batch(linger_s=0.5))
    def invert(number):
        return 1 / number

    @ct.lattice
    def halves():
        return [invert(2), invert(0)]

    run(halves)

    workflows = page.get_by_role("navigation", name="Workflows")
    workflows.get_by_role("link", name=re.compile("^halves")).click()
    more = page.get_by_role("button", name="Show tasks")
    rows = page.locator('[data-testid="task"]:visible')
    expect(rows.first).to_be_visible()
    if more.count():
        more.click()
    row = rows.filter(has_text="ZeroDivisionError: division by zero").last
    expect(row).to_have_attribute("data-state", "FAILED")
    row.get_by_role("link").click()
    panel = page.get_by_role("complementary", name="Task")
    expect(panel.get_by_test_id("traceback")).to_contain_text("return 1 / number")
    expect(panel).to_contain_text(re.compile(r"Electron\s*node \d+"))
    expect(page.get_by_test_id("task-title")).to_contain_text("invert")
