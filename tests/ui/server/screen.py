"""Requests of a browser to the web UI's API, and the state that it derives from events."""

from collections import Counter

from tests.ui import serving


async def get(page, path):
    async with page.get(path) as answer:
        assert 200 == answer.status, await answer.text()
        return await answer.json()


async def cancel(page, **wanted):
    async with page.post("/api/cancel", json=wanted) as answer:
        assert 200 == answer.status, await answer.text()
        told = await answer.json()
    return {each["id"]: each["outcome"] for each in told["results"]}


class Screen:
    """The state that a browser derives from one event stream."""

    def __init__(self, events):
        self.events = events
        self.jobs = {}
        self.children = {}
        self.state = {"loading": True}
        self.counts = Counter()

    async def until(self, condition):
        while not condition():
            name, said = await anext(self.events)
            self.counts[name] += 1
            if name == "state":
                self.state = said
            for job in said.get("jobs", ()):
                self.jobs[job["id"]] = job
                self.counts[job["id"]] += 1
            for child in said.get("children", ()):
                self.children[child["i"]] = child
                self.counts[child["i"]] += 1

    async def loaded(self):
        await self.until(lambda: not self.state["loading"])

    async def wait_for_polls(self, count):
        """Wait until the server has polled a number of times."""
        before = self.counts["state"]
        await self.until(lambda: self.counts["state"] >= before + count)

    def has(self, job_id, state):
        return self.jobs.get(job_id, {}).get("state") == state

    def states(self):
        return Counter(child["s"] for child in self.children.values())


def listening(page, path="/api/events"):
    return serving.events(page, path)
