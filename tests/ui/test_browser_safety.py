"""The web UI against hostile names and output of tasks.

Starts the web UI, the local AWS emulator and a browser, because only a browser interprets markup.
Slow, because a browser keeps a core busy.
"""

import pytest
from playwright.async_api import expect

from tests.ui import tasks
from tests.ui.looking import SCROLLS_SIDEWAYS

pytestmark = pytest.mark.asyncio(loop_scope="module")

_MARKUP = (
    "<img src=x onerror=\"alert('img')\"><script>alert('script')</script>"
    "<svg onload=\"alert('svg')\"><a href=\"javascript:alert('a')\">click</a>"
)
_ESCAPES = (
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;https://evil.example/\x1b\\a link\x1b]8;;\x1b\\",
    "\x1b]0;a title\x07",
    "\x1b[2J\x1b[H",
    "abc\u202edcba\u2066\u2069 \u200bzero",
    "\x00\x08\x7f\x9b31m",
)
_LONG = "long" * 25_000
#: Number of elements that the web UI itself never creates.
_ELEMENTS = """document.querySelectorAll(
  "img[src=x], iframe, object, body script, "
  + "[onerror], [onload], a[href^=javascript], a[href*=evil]"
).length"""


async def test_hostile_names_and_output_are_inert(executor, open_page):
    on = executor(workflow=_MARKUP[:128])
    job = await on.submit(tasks.write, _MARKUP, *_ESCAPES, _LONG)
    failed = await on.submit(tasks.fail_with, _MARKUP, _MARKUP + "".join(_ESCAPES))
    await job.result()
    with pytest.raises(ValueError, match="onerror"):
        await failed.result()

    page = await open_page()
    for fragment in ("#/", "#/all", f"#/job/{job.id}", f"#/job/{failed.id}"):
        await page.evaluate("where => { location.hash = where }", fragment)
        await page.get_by_test_id("task").first.wait_for()
        assert 0 == await page.evaluate(_ELEMENTS)
    await expect(page.get_by_test_id("sentence")).to_contain_text(_MARKUP[:40])
    await expect(page.get_by_test_id("traceback")).to_contain_text(_MARKUP[:40])

    await page.evaluate("where => { location.hash = where }", f"#/job/{job.id}")
    await page.get_by_role("tab", name="Output").click()
    lines = page.get_by_test_id("line")
    await expect(lines.filter(has_text=_MARKUP[:40]).first).to_be_visible()
    await expect(lines.filter(has_text="a link").first).to_be_visible()
    assert 0 == await page.evaluate(_ELEMENTS)
    assert 0 == await lines.locator("a, [style]").count()
    # Direction overrides only affect their own line.
    turned = lines.filter(has_text="dcba").first
    assert "isolate" == await turned.evaluate("line => getComputedStyle(line).unicodeBidi")
    assert "a title" not in await page.title()
    assert [] == await page.evaluate(SCROLLS_SIDEWAYS)
