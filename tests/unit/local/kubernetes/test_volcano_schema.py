"""Volcano's kinds: what is in their schema passes, and what is not is named."""

from __future__ import annotations

import copy

import pytest

from farcall.local.kubernetes import volcano_schema
from farcall.local.kubernetes.kinds import (
    JOB,
    POD_GROUP,
    VOLCANO_COMMAND,
    VOLCANO_JOB,
    VOLCANO_QUEUE,
)
from farcall.local.kubernetes.volcano_schema import Fault

TASK = {
    "name": "worker",
    "replicas": 2,
    "minAvailable": 2,
    "maxRetry": 3,
    "policies": [{"event": "PodFailed", "action": "RestartTask"}],
    "template": {
        "metadata": {"labels": {"any": "name"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "busybox:1",
                    "env": [{"name": "A", "value": "1"}],
                    "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
                }
            ],
        },
    },
}
JOB_DOCUMENT = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "one", "whatever": "is not looked at here"},
    "spec": {
        "schedulerName": "volcano",
        "queue": "default",
        "minAvailable": 2,
        "maxRetry": 3,
        "plugins": {"svc": ["--publish-not-ready-addresses"], "env": []},
        "policies": [{"events": ["PodEvicted", "PodFailed"], "action": "RestartJob"}],
        "tasks": [TASK],
    },
}


def changed(path, value):
    """Return the job with another value at a path; a value of None takes the field away."""
    document = copy.deepcopy(JOB_DOCUMENT)
    place = document
    *way, last = path
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document


def test_only_volcano_s_kinds_are_known():
    known = [VOLCANO_JOB, VOLCANO_COMMAND, VOLCANO_QUEUE, POD_GROUP]
    assert all(map(volcano_schema.has, known))
    assert not volcano_schema.has(JOB)


def test_a_job_of_many_fields_has_no_fault():
    assert volcano_schema.faults(VOLCANO_JOB, JOB_DOCUMENT) == []


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("spec", "minAvailabel"), 2, Fault("spec.minAvailabel")),
        (("spec", "tasks", 0, "image"), "x", Fault("spec.tasks[0].image")),
        (
            ("spec", "tasks", 0, "template", "spec", "containers", 0, "cmd"),
            ["x"],
            Fault("spec.tasks[0].template.spec.containers[0].cmd"),
        ),
        (
            ("spec", "minAvailable"),
            "2",
            Fault(
                "spec.minAvailable",
                'Invalid value: "string": spec.minAvailable in body must be of type integer: '
                '"string"',
            ),
        ),
        (
            ("spec", "tasks"),
            {},
            Fault(
                "spec.tasks",
                'Invalid value: "object": spec.tasks in body must be of type array: "object"',
            ),
        ),
        (
            ("spec", "tasks", 0, "template", "spec", "containers", 0, "name"),
            None,
            Fault("spec.tasks[0].template.spec.containers[0].name", "Required value"),
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_path(path, value, fault):
    assert volcano_schema.faults(VOLCANO_JOB, changed(path, value)) == [fault]


def test_a_truth_value_is_no_number():
    (fault,) = volcano_schema.faults(VOLCANO_JOB, changed(("spec", "maxRetry"), value=True))
    assert fault.path == "spec.maxRetry"


def test_an_event_that_does_not_exist_is_refused_with_those_that_do():
    document = changed(("spec", "policies", 0, "events", 1), "PodExploded")
    (fault,) = volcano_schema.faults(VOLCANO_JOB, document)
    assert fault.path == "spec.policies[0].events[1]"
    assert fault.message.startswith('Unsupported value: "PodExploded": supported values: ')
    assert '"PodFailed"' in fault.message


def test_unknown_fields_are_left_out_where_nobody_is_strict():
    document = changed(("spec", "tasks", 0, "image"), "x")
    assert volcano_schema.pruned(VOLCANO_JOB, document) == JOB_DOCUMENT
