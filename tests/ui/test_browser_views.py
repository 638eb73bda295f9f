"""Every view of the web UI: narrow and wide, dark and light, with many tasks, and the token form.

Starts the web UI, the local AWS emulator and a browser, because only a browser computes layout
and colors. Slow, because a browser keeps a core busy.
"""

import json

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from farcall import BatchExecutor
from tests.ui import tasks
from tests.ui.looking import SCROLLS_SIDEWAYS, row

pytestmark = pytest.mark.asyncio(loop_scope="module")

_MANY = 10_000
#: Maximum number of elements, independent of the number of tasks: a few hundred rows.
_MOST_ELEMENTS = 4_000
_ELEMENTS = "document.querySelectorAll('*').length"

#: Test IDs of the elements that must be visible in each view.
_SHOWN = {
    "runs": ["run"],
    "all": ["task"],
    "run": ["run-title", "task"],
    "task": ["task-title", "task-state", "sentence"],
    "failed": ["task-title", "task-state", "sentence", "remedy", "traceback"],
}

#: Contrast of an element's text with its background, according to
#: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio; a canvas resolves any notation of a color.
_CONTRAST = """element => {
  const pixel = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const over = (color, below) => {
    pixel.fillStyle = below; pixel.fillRect(0, 0, 1, 1);
    pixel.fillStyle = color; pixel.fillRect(0, 0, 1, 1);
    const [r, g, b] = pixel.getImageData(0, 0, 1, 1).data;
    return `rgb(${r} ${g} ${b})`;
  };
  const chain = [];
  for (let at = element; at; at = at.parentElement)
    chain.unshift(getComputedStyle(at).backgroundColor);
  const behind = chain.reduce((below, color) => over(color, below), "Canvas");
  const luminance = color => {
    const [r, g, b] = color.match(/\\d+/g).map(value => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [dark, light] = [over(getComputedStyle(element).color, behind), behind]
    .map(luminance).sort((a, b) => a - b);
  return {contrast: (light + 0.05) / (dark + 0.05), background: luminance(behind)};
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def views(embedded, tmp_path_factory):
    """Return view to URL fragment; each view has content."""
    gate = tmp_path_factory.mktemp("views") / "gate"  # stays closed
    with pytest.MonkeyPatch.context() as patch:
        for name, value in embedded.environment.items():
            patch.setenv(name, value)
        on = BatchExecutor(workflow="views", vcpu=1, memory=1, retry_attempts=1, linger_s=0)
        running = await on.submit(tasks.hold, str(gate))
        failed = await on.submit(tasks.diverge, 17)
        with pytest.raises(ArithmeticError):
            await failed.result()
        yield {
            "runs": "#/",
            "all": "#/all",
            "run": f"#/run/{await on.run_name()}/views",
            "task": f"#/job/{running.id}",
            "failed": f"#/job/{failed.id}",
        }


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("narrow-dark", {"width": 400, "color_scheme": "dark"}),
        ("light", {"color_scheme": "light"}),
    ],
)
async def test_views_fit_and_are_readable(open_page, views, name, options):
    page = await open_page(**options)
    for view, fragment in views.items():
        await page.evaluate("where => { location.hash = where }", fragment)
        for shown in _SHOWN[view]:
            await _read_well(page.get_by_test_id(shown).first, options)
        await expect(page.get_by_role("main")).to_be_visible()
        assert [] == await page.evaluate(SCROLLS_SIDEWAYS), view
        assert [] == await _violations(page), view


async def _violations(page):
    """Return the page's violations of axe-core's rules."""
    found = await Axe().run(page, options={"resultTypes": ["violations"]})
    return [
        (rule["id"], rule["help"], node["html"], node["failureSummary"])
        for rule in found.response["violations"]
        for node in rule["nodes"]
    ]


async def _read_well(element, options):
    await element.wait_for()
    seen = await element.evaluate(_CONTRAST)
    assert seen["contrast"] >= 4.5, await element.inner_text()
    assert (seen["background"] < 0.2) == (options.get("color_scheme") == "dark")


async def test_many_jobs_need_few_elements(open_page, views, served):
    page = await open_page()
    job_id = views["task"].removeprefix("#/job/")
    answer = await page.request.get(f"{served.url}/api/jobs/{job_id}", headers=served.headers)
    job = (await answer.json())["job"]
    # One real job with 10,000 IDs, because submitting 10,000 jobs would take minutes.
    job |= {"started_at": "2026-11-12T10:00:00Z", "stopped_at": "2026-11-12T10:59:59Z"}
    jobs = [{**job, "id": f"job-{number}"} for number in range(_MANY)]
    told = "".join(
        f"event: jobs\ndata: {json.dumps({'jobs': jobs[at : at + 500]})}\n\n"
        for at in range(0, _MANY, 500)
    )
    await page.route(
        "**/api/events*", lambda route: route.fulfill(content_type="text/event-stream", body=told)
    )
    header = page.get_by_role("banner")
    height = (await header.bounding_box())["height"]
    await page.reload()

    await page.get_by_role("link", name="All tasks 10,000").click()
    assert height == (await header.bounding_box())["height"]
    first, last = row(page, "job-0"), row(page, f"job-{_MANY - 1}")
    await first.or_(last).wait_for()
    duration = first.or_(last).locator(".cell.ran")
    await expect(duration).to_have_text("59 min 59 s")
    assert await duration.evaluate("cell => cell.scrollWidth <= cell.clientWidth")
    if await last.count():
        first, last = last, first
    await page.get_by_role("treegrid", name="Tasks").focus()
    await page.keyboard.press("Home")
    await page.keyboard.press("End")
    await last.wait_for()
    await expect(first).to_have_count(0)
    assert await page.evaluate(_ELEMENTS) < _MOST_ELEMENTS


async def test_small_cpu_share_is_hidden(open_page):
    page = await open_page()
    read = """async usage => (await import("/static/facts.js"))
      .usageSection({record: {vcpu: 1, memory_mib: 1024}, usage})
      .map(part => part.textContent).join()"""
    assert "Avg. CPU" not in await page.evaluate(read, {"wall_s": 100, "cpu_s": 0.9})
    assert "Avg. CPU0.50 of 1 vCPU" in await page.evaluate(read, {"wall_s": 100, "cpu_s": 50})


async def test_hours_have_cost_with_prices(open_page):
    page = await open_page()
    read = """async vcpu_hour => {
      const {inHours, setPrices} = await import("/static/resource_hours.js");
      setPrices({vcpu_hour, gb_hour: 0});
      return inHours({vcpu: 3, gb: 6});
    }"""
    assert "3 vCPU-hours, 6 GB-hours" == await page.evaluate(read, 0)
    assert "3 vCPU-hours, 6 GB-hours, $1.50" == await page.evaluate(read, 0.5)


async def test_missing_token_opens_token_form(open_page, served):
    page = await open_page(with_token=False)
    form = page.get_by_role("form", name="Token")
    await form.get_by_role("textbox", name="Token").fill("guessed")
    await form.get_by_role("button", name="Open").click()
    await expect(form.get_by_role("alert")).not_to_be_empty()
    await expect(page.get_by_role("treegrid", name="Tasks")).to_be_hidden()
    await form.get_by_role("textbox", name="Token").fill(served.token)
    await form.get_by_role("button", name="Open").click()
    connection = page.get_by_role("status", name="Connection")
    await expect(connection).to_have_text("Live")
    await page.reload()
    await expect(connection).to_have_text("Live")


async def test_token_is_removed_from_url(open_page, served):
    page = await open_page()
    assert served.token not in page.url
    assert served.token not in await page.evaluate("JSON.stringify(history.state)")
