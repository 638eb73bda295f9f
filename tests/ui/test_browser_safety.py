"""The web UI against other sites, and against hostile names and output of tasks.

Starts the web UI, the local AWS emulator, another site and a browser, because the browser
enforces half of the rules. Slow, because a browser keeps a core busy.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

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


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


async def test_hostile_names_and_output_are_inert(executor, open_page, shoot):
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
    await shoot(page, "hostile-failure")

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
    await shoot(page, "hostile-output")


class _Evil(BaseHTTPRequestHandler):
    """An empty page of another site."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title>")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def evil():
    """The URL of another site, which is also served on the loopback interface."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://evil.example:{server.server_port}"
        server.shutdown()


#: Requests from another site that a browser allows; their responses are printed.
_ATTACKS = """async ([page, token, job]) => {
  const told = {};
  const attempt = async (name, work) => {
    try { told[name] = await work(); } catch (error) { told[name] = error.name; }
  };
  const bearer = {Authorization: `Bearer ${token}`};
  const body = JSON.stringify({jobs: [job], reason: "evil"});
  const read = async (path, options) => (await fetch(page + path, options)).text();
  await attempt("read", () => read("/api/about"));
  await attempt("read with token", () => read("/api/about", {headers: bearer}));
  await attempt("blind", async () =>
    (await fetch(page + "/api/about", {mode: "no-cors"})).type);
  await attempt("cancel", () => read("/api/cancel", {method: "POST", body}));
  await attempt("cancel with token", () => read("/api/cancel", {method: "POST", body,
    headers: {...bearer, "Content-Type": "application/json"}}));
  await attempt("cancel blindly", async () => (await fetch(page + "/api/cancel",
    {method: "POST", mode: "no-cors", body, headers: {"Content-Type": "text/plain"}})).type);
  await attempt("events", () => new Promise(resolve => {
    const source = new EventSource(page + "/api/events");
    source.onopen = () => resolve("open");
    source.onerror = () => { source.close(); resolve("refused"); };
  }));
  await attempt("script", () => new Promise(resolve => {
    const script = document.createElement("script");
    script.onload = () => resolve("loaded"); script.onerror = () => resolve("refused");
    script.src = page + "/api/about"; document.head.append(script);
  }));
  return told;
}"""


async def test_other_site_cannot_read_or_cancel(executor, browser, served, evil, gate):
    job = await executor(workflow="attacked").submit(tasks.hold, str(gate))
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(evil)
    asked, statuses = {}, {}
    # The developer tools can read responses that the page cannot read.
    tools = await context.new_cdp_session(page)
    tools.on(
        "Network.requestWillBeSent",
        lambda said: asked.update({said["requestId"]: said["request"]["url"]}),
    )
    tools.on(
        "Network.responseReceivedExtraInfo",
        lambda said: statuses.update({said["requestId"]: said["statusCode"]}),
    )
    await tools.send("Network.enable")

    told = await page.evaluate(_ATTACKS, [served.url, served.token, job.id])

    assert {
        "read": "TypeError",
        "read with token": "TypeError",
        "blind": "TypeError",
        "cancel": "TypeError",
        "cancel with token": "TypeError",
        "cancel blindly": "TypeError",
        "events": "refused",
        "script": "refused",
    } == told
    # The web UI's server, not the browser, has rejected the requests.
    of_the_page = {
        code for key, code in statuses.items() if asked.get(key, "").startswith(served.url)
    }
    assert {401, 403} >= of_the_page != set()

    await page.set_content(
        f"<form method=post action='{served.url}/api/cancel' enctype='text/plain'>"
        f'<input name=\'{{"jobs":["{job.id}"],"x":"\' value=\'"}}\'><button>go</button></form>'
    )
    async with page.expect_response(f"{served.url}/api/cancel") as answer:
        await page.get_by_role("button").click()
    assert 400 <= (await answer.value).status < 500
    await context.close()

    assert not (await job.status()).is_final
    gate.touch()
    assert 0 == await job.result()


async def test_other_site_cannot_frame_web_ui(browser, served, evil):
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(evil)
    async with page.expect_console_message(lambda message: "frame" in message.text.lower()):
        await page.evaluate(
            """url => {
              const frame = document.createElement("iframe");
              frame.src = url;
              document.body.append(frame);
            }""",
            f"{served.url}/#token={served.token}",
        )
    assert not [frame for frame in page.frames if frame.url.startswith(served.url)]
    await context.close()


async def test_dns_rebinding_is_rejected(browser, served):
    """The browser treats the web UI's server as part of the other site."""
    rebound = f"http://rebound.example:{urlsplit(served.url).port}"
    context = await browser.new_context()
    page = await context.new_page()
    answer = await page.goto(rebound)
    assert answer is not None
    assert 403 == answer.status

    status = await page.evaluate(
        """async token => (await fetch("/api/about",
            {headers: {Authorization: `Bearer ${token}`}})).status""",
        served.token,
    )
    assert 403 == status
    await context.close()
