"""Record of deleted pods."""

import pytest

from farcall.backends.kubernetes import deleted_pods
from farcall.backends.kubernetes.deleted_pods import DeletedPods, recorded
from tests.unit.backends.kubernetes.api_server import give, refuse
from tests.unit.backends.kubernetes.objects import NAME, job, pod

KILLED = pod(exit_code=137, container_reason="OOMKilled", deleting=True).deleted()
EVICTED = pod(index=1, reason="Evicted", message="x" * 10_000).deleted()
ANNOTATION = "farcall/deleted-pods"


async def test_recorded_pods_are_read_by_other_processes(kube, server):
    server.answers = [give({})]
    record = DeletedPods(kube)
    record.record(job(2), [KILLED])
    record.record(job(2), [KILLED, EVICTED])
    await record.close()
    ((method, path, _, body),) = server.requests
    assert method == "PATCH"
    assert path.endswith(f"/jobs/{NAME}")
    killed, evicted = recorded(job(2, annotations=body["metadata"]["annotations"]))
    assert killed == KILLED
    assert len(evicted.reason) == 500


@pytest.mark.parametrize(
    "annotations",
    [{"farcall/reason": "cancelled"}, {"farcall/ended": '{"0": "cancelled", "1": "cancelled"}'}],
)
async def test_terminated_tasks_are_not_recorded(kube, server, annotations):
    """Their reason is in another annotation, and their pods are always deleted."""
    record = DeletedPods(kube)
    record.record(job(2, annotations=annotations), [KILLED, EVICTED])
    await record.close()
    assert server.requests == []


async def test_large_arrays_record_their_last_pods(kube, server):
    server.answers = [give({})]
    record = DeletedPods(kube)
    first = {ANNOTATION: deleted_pods._text(job(1000), [KILLED])}
    record.record(
        job(1000, annotations=first), [pod(index=n, exit_code=1).deleted() for n in range(1, 100)]
    )
    await record.close()
    text = server.requests[0][3]["metadata"]["annotations"][ANNOTATION]
    assert [each.index for each in recorded(job(annotations={ANNOTATION: text}))] == [
        *range(50, 100)
    ]


async def test_refused_record_changes_nothing(kube, server, caplog):
    server.answers = [refuse(403, "Forbidden")]
    record = DeletedPods(kube)
    record.record(job(), [KILLED])
    await record.close()
    assert not caplog.records


@pytest.mark.parametrize("text", ["{", "[3]", '[{"uid": 3}]', '[{"uid": "a", "exit_code": []}]'])
def test_invalid_records_are_ignored(text):
    assert recorded(job(annotations={ANNOTATION: text})) == []
