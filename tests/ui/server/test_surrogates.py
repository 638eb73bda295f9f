"""Text with lone surrogates in the web UI's API.

Starts the web UI and a job on the local AWS emulator, because the text comes from a real outcome.
"""

from __future__ import annotations

from tests.ui.server.screen import get


def half():
    print("half \ud800")
    raise ValueError("half \ud800")


async def test_lone_surrogates_are_served(page, executor, submit, client, aws):
    failed = await executor().submit(half)
    await failed.wait()
    other = submit("exit 3", workflow="half \ud800")

    said = await get(page, f"/api/jobs/{failed.id}")
    assert "ValueError: half \\ud800" in said["explanation"]["traceback"]
    said = await get(page, f"/api/jobs/{other}")
    assert said["job"]["workflow"] == "half \ud800"
    async with page.post("/api/cancel", json={"jobs": [other], "reason": "half \ud800"}) as answer:
        assert answer.status == 200
