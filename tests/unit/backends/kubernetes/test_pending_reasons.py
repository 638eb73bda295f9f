"""Explanations of waiting jobs that are not blocked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farcall.backends.kubernetes import describe
from farcall.model.jobs import JobStatus
from tests.unit.backends.kubernetes.objects import job, pod, unscheduled
from tests.unit.backends.kubernetes.test_blocked import held


@pytest.mark.parametrize(
    ("document", "pods", "words"),
    [
        (job(), (), "has not created its pod"),
        (job(active=1), (unscheduled("gated", "SchedulingGated"),), "queue holds it back"),
        (job(suspend=True), (), "suspended"),
        (
            job(active=1),
            (pod("Pending", waiting={"reason": "ContainerCreating"}),),
            "has been placed",
        ),
        (job(active=1), (pod("Running", running=True),), "the job runs"),
        (held("waiting for its turn")[0], (), "suspended"),
    ],
)
def test_waiting_job_is_not_blocked(document, pods, words):
    detail = describe.Description(document).whole(pods)
    assert not detail.is_blocked
    assert words in detail.waiting()[0]


def test_stopping_job_is_reported():
    detail = replace(describe.Description(job(active=1)).whole(()), is_terminated=True)
    assert "is stopping" in detail.waiting()[0]


@pytest.mark.parametrize(
    ("words", "waits"),
    [
        (
            "insufficient unused quota for cpu in flavor any-node, 1 more needed",
            held(
                "couldn't assign flavors to pod set main: insufficient unused quota for cpu in "
                "flavor any-node, 1 more needed"
            ),
        ),
        (
            "Preempted to accommodate a workload",
            held("Preempted to accommodate a workload (UID: 1)", "Pending"),
        ),
    ],
)
def test_kueue_message_is_quoted(words, waits):
    document, pods, events = waits
    detail = describe.Description(document, events).whole(pods)
    assert detail.status is JobStatus.RUNNABLE
    assert not detail.is_blocked
    assert words in detail.waiting()[0]
