"""Lookup of pods that neither wait nor run."""

from datetime import UTC, datetime

import pytest

from farcall.backends.kubernetes.lookup import Found, Lookup
from tests.unit.backends.kubernetes.api_server import give
from tests.unit.backends.kubernetes.objects import NAME, job

UNREACHABLE = {
    "metadata": {"name": "a-1-x", "uid": "1"},
    "spec": {"nodeName": "node-2"},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]},
}
READY = {**UNREACHABLE, "status": {"phase": "Running"}}


@pytest.mark.parametrize("is_new", [False, True])
async def test_lost_pods_of_older_arrays_are_found(kube, server, is_new):
    """A cluster notices a lost node after 40 seconds, so newer arrays cost no request."""
    document = job(8, active=4, ready=3)
    if is_new:
        document["metadata"]["creationTimestamp"] = datetime.now(UTC).isoformat()
    server.answers = [give({"items": []}), give({"items": [READY, UNREACHABLE]})]
    lookup = Lookup(kube, has_volcano=False)
    found = [await lookup.waiting(Found(NAME, document, (document,))) for _ in range(2)]
    assert [[pod.name for pod in pods] for pods in found] == [[] if is_new else ["a-1-x"]] * 2
    assert len(server.requests) == (1 if is_new else 2)


async def test_map_in_progress_needs_few_requests(kube, server):
    """Each finished task changes the Job, but no list is requested again for it."""
    server.answers = [give({"items": []})]
    lookup = Lookup(kube, has_volcano=False)
    for number in range(5):
        document = job(400, active=0, completedIndexes=f"0-{number}")
        document["metadata"]["creationTimestamp"] = datetime.now(UTC).isoformat()
        document["metadata"]["resourceVersion"] = str(number)
        found = Found(NAME, document, (document,))
        assert await lookup.events(found, await lookup.waiting(found)) == []
        document["status"]["active"] = 3
        await lookup.waiting(found)
    assert len(server.requests) == 2
