"""Admission of Volcano jobs: what is filled in, and what is refused with which words."""

from __future__ import annotations

import pytest

from farcall.local.kubernetes.errors import BadRequestError
from farcall.local.kubernetes.kinds import VOLCANO_QUEUE
from farcall.local.kubernetes.store import Store
from farcall.local.kubernetes.volcano_admission import check, default


def job(name="one", *, tasks=None, **spec):
    tasks = [{"replicas": 2, "template": {}}] if tasks is None else tasks
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"tasks": tasks, **spec}}


@pytest.fixture
def store():
    made = Store()
    for name, state in (("default", "Open"), ("shut", "Closed")):
        made.create(VOLCANO_QUEUE, {"metadata": {"name": name}, "status": {"state": state}})
    return made


def test_what_nobody_says_is_filled_in_and_0_retries_are_3():
    spec = default(job(maxRetry=0))["spec"]
    assert (spec["queue"], spec["schedulerName"], spec["maxRetry"]) == ("default", "volcano", 3)
    (task,) = spec["tasks"]
    assert (task["name"], task["minAvailable"], task["maxRetry"]) == ("default0", 2, 3)
    assert spec["minAvailable"] == 2


def test_what_is_said_stays():
    said = {"queue": "gpu", "schedulerName": "mine", "maxRetry": 1, "minAvailable": 1}
    tasks = [{"name": "a", "replicas": 3, "minAvailable": 1, "maxRetry": 2, "template": {}}]
    assert default(job(tasks=tasks, **said))["spec"] == {**said, "tasks": tasks}


def policy(**fields):
    return [{"action": "RestartJob", **fields}]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (job(tasks=[]), "No task specified in job spec"),
        (job(minAvailable=3), "should not be greater than total replicas"),
        (job(queue="shut"), "queue `shut` status is `Closed`"),
        (job(queue="none"), 'queue.scheduling.volcano.sh "none" not found'),
        (job(plugins={"magic": []}), "unable to find job plugin: magic"),
        (job("x" * 60), "no more than 63 characters"),
        (job(tasks=[{"name": "a", "template": {}}] * 2), "duplicated task name a"),
        (
            job(tasks=[{"replicas": 1, "minAvailable": 2, "template": {}}], minAvailable=1),
            "'minAvailable' is greater than 'replicas' in task: default0",
        ),
        (job(policies=policy(event="PodRunning")), '"PodRunning": invalid policy event'),
        (job(policies=[{"event": "*", "action": "SyncJob"}]), '"SyncJob": invalid policy action'),
        (job(policies=policy(event="*") + policy(exitCode=3)), "no other policy should be here"),
        (job(policies=policy(exitCode=0)), "0 is not a valid error code"),
        (job(policies=policy()), "either event and exitCode should be specified"),
        (job(policies=policy(event="*", exitCode=3)), "must not specify event and exitCode"),
        (job(policies=policy(exitCode=3) * 2), "duplicate exitCode 3"),
    ],
)
def test_what_is_refused_is_so_in_volcano_s_words(store, document, said):
    with pytest.raises(BadRequestError, match="validatejob.volcano.sh") as caught:
        check(store, default(document))
    assert said in str(caught.value)


def test_a_good_job_is_taken(store):
    check(store, default(job(policies=policy(event="PodFailed"), plugins={"svc": [], "env": []})))
