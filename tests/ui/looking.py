"""Helpers for tests of the web UI in a browser."""

from __future__ import annotations

from playwright.async_api import Locator, Page, expect

from tests.support.patience import PATIENCE_S

#: Patience with a busy machine, in milliseconds.
PATIENCE_MS = int(1000 * PATIENCE_S)

#: The elements that scroll sideways, except texts and rows of buttons, which may.
SCROLLS_SIDEWAYS = """[...document.querySelectorAll("*")]
  .filter(one => one.scrollWidth > one.clientWidth && one.checkVisibility())
  .filter(one => one === document.documentElement
    || ["auto", "scroll"].includes(getComputedStyle(one).overflowX))
  .filter(one => !one.matches("pre, [role=log], [role=group]"))
  .map(one => one.cloneNode().outerHTML)"""


def row(page: Page, job_id: str) -> Locator:
    """Return a task's visible row; the web UI keeps hidden rows for reuse."""
    return page.locator(f'[data-testid="task"][data-id="{job_id}"]:visible')


def task(page: Page, function: str) -> Locator:
    """Return the rows of a function's tasks."""
    return page.locator('[data-testid="task"]:visible').filter(has_text=function)


async def wait_for_states(page: Page, states: dict[str, str]) -> None:
    """Wait until each task has its state."""
    for job_id, state in states.items():
        await expect(row(page, job_id)).to_have_attribute("data-state", state)


async def cancel(page: Page, button: str) -> dict[str, str]:
    """Confirm the open dialog; return job ID to result from the page's footer."""
    dialog = page.get_by_role("dialog", name="Cancel")
    await dialog.get_by_role("button", name=button).click()
    await expect(dialog).to_be_hidden()
    foot = page.get_by_test_id("cancellations")
    await foot.wait_for()
    return {
        str(await result.get_attribute("data-id")): str(await result.get_attribute("data-outcome"))
        for result in await foot.get_by_test_id("cancel-result").all()
    }
