"""Requests for the nodes of a large job."""

from types import SimpleNamespace

from farcall.ui.parts import Nodes
from tests.unit.nodes import Platform, job, node


class Account(SimpleNamespace):
    """Account whose session has a platform."""

    trouble = ""

    async def session(self):
        return SimpleNamespace(backend=self.backend)


async def test_poll_describes_at_most_300_nodes_least_recent_first():
    whole = job(700)
    platform = Platform(whole, *(node(index) for index in range(700)))
    nodes = Nodes(Account(backend=platform), whole)
    for _ in range(4):
        await nodes.poll()
    described = [[int(each.partition("#")[2]) for each in ids[1:]] for ids in platform.describes]
    assert described[:2] == [list(range(300)), list(range(300, 600))]
    assert set(range(600, 700)) < set(described[2])
    assert [len(numbers) for numbers in described] == [300] * 4
    assert nodes.is_complete
    assert set(described[3]).isdisjoint(described[2])
