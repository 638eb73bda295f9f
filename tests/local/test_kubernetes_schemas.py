"""Objects of the local Kubernetes emulator against the published OpenAPI schemas.

Starts pods as processes, so that there are objects of all kinds in all states. The schemas are
those of kubernetes-validate, and refuse unknown fields.
Slow, because it validates every object with schemas of several megabytes.
"""

from __future__ import annotations

import kubernetes_validate
import pytest

from tests.local.cluster import condition

pytestmark = pytest.mark.slow

#: The first release in which backoffLimitPerIndex is stable; it refuses fields of later ones.
VERSION = "1.33"


@pytest.fixture(scope="module")
def stored(any_cluster, tmp_path_factory):
    """Objects of all kinds in all states: done, failed, running, waiting, suspended."""
    cluster = any_cluster
    marker = tmp_path_factory.mktemp("gate") / "open"
    rules = [
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
        {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [59, 137]}},
    ]
    documents = [
        cluster.indexed("true", 2),
        cluster.indexed("exit 59", 2, backoffLimitPerIndex=1, podFailurePolicy={"rules": rules}),
        cluster.indexed("exit 1", 1, backoffLimitPerIndex=0),
        cluster.job("sleep 60", activeDeadlineSeconds=1),
        cluster.job("sleep 60", backoffLimit=0, pod={"activeDeadlineSeconds": 1}),
        cluster.job("", backoffLimit=0, container={"command": ["/no/such"]}),
    ]
    for name in [cluster.create(document) for document in documents]:
        cluster.ended(name)
    suspended = cluster.create(cluster.job("true", suspend=True))
    cluster.until(lambda: condition(cluster.get("jobs", suspended), "Suspended"))
    missing = [{"secretRef": {"name": "farcall-test-none"}}]
    waiting = cluster.create(cluster.job("true", container={"envFrom": missing}))
    cluster.until(lambda: [p for p in cluster.pods(waiting) if p["status"].get("phase")])
    running = cluster.create(cluster.job(f"until [ -e {marker} ]; do sleep 0.03; done"))
    cluster.running(running)
    found = [
        {**item, "kind": answer["kind"].removesuffix("List"), "apiVersion": answer["apiVersion"]}
        for plural in ("jobs", "pods", "events", "secrets", "serviceaccounts", "services")
        for answer in [cluster.ask("GET", cluster.path(plural)).body]
        for item in answer["items"]
    ]
    if cluster.local:
        for kind in ("nodes", "namespaces"):
            answer = cluster.ask("GET", f"/api/v1/{kind}").body
            found += [
                {**item, "kind": answer["kind"].removesuffix("List"), "apiVersion": "v1"}
                for item in answer["items"]
            ]
    marker.touch()
    return found


def test_each_object_fits(stored):
    for document in stored:
        try:
            kubernetes_validate.validate(document, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{document['kind']}: {list(error.path)}: {error.message}")


def test_there_was_something_to_judge(stored):
    kinds = {document["kind"] for document in stored}
    assert {"Job", "Pod", "Event"} <= kinds
    phases = {one["status"].get("phase") for one in stored if one["kind"] == "Pod"}
    assert {"Pending", "Running", "Succeeded", "Failed"} <= phases
    reasons = {
        found["reason"]
        for one in stored
        if one["kind"] == "Job"
        for found in one["status"].get("conditions", [])
    }
    assert {"CompletionsReached", "DeadlineExceeded", "FailedIndexes", "JobSuspended"} <= reasons


def test_the_judge_is_strict(cluster):
    document = cluster.job("true")
    document["spec"]["retries"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="retries"):
        kubernetes_validate.validate(document, VERSION, strict=True)
