from __future__ import annotations

from farcall.backends.kubernetes.lookup import Lookup
from tests.unit.backends.kubernetes.api_server import give
from tests.unit.backends.kubernetes.objects import NAME, job

POD = {
    "metadata": {"name": "one", "uid": "u1", "labels": {"farcall/job": NAME}},
    "status": {"phase": "Failed", "reason": "DeadlineExceeded"},
}


def at_version(version: str):
    """Return an answer with the Job at a version."""
    document = job(1)
    return give({**document, "metadata": {**document["metadata"], "resourceVersion": version}})


def pods(*items):
    """Return an answer with a list of pods."""
    return give({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": list(items)})


async def test_pod_deleted_between_lists_keeps_reason(kube, server):
    """`kubectl drain` deletes a failed pod like this, for a client that follows no run."""
    server.answers = [at_version("1"), pods(POD), at_version("2"), pods()]
    lookup = Lookup(kube, has_volcano=False)
    for gone in (False, True):
        found = await lookup.jobs([NAME])
        (pod,) = (await lookup.pods(found.values()))[NAME]
        assert (pod.reason, pod.gone) == ("DeadlineExceeded", gone)
