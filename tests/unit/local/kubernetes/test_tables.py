"""What ``kubectl get`` shows of objects."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from farcall_local.kubernetes import kinds
from farcall_local.kubernetes.tables import duration, table

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def before(seconds):
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def shown(kind, *documents, wide=False, **options):
    """Return headings and cells of what is shown without, or with, ``-o wide``."""
    made = table(kind, documents, version="7", now=NOW, **options)
    columns = made["columnDefinitions"]
    kept = [place for place, column in enumerate(columns) if wide or not column["priority"]]
    assert all(len(row["cells"]) == len(columns) for row in made["rows"])
    rows = [[row["cells"][place] for place in kept] for row in made["rows"]]
    return [columns[place]["name"] for place in kept], rows


def job(*conditions, status=None, deleted=False, **spec):
    template = {"spec": {"containers": [{"name": "task", "image": "busybox"}]}}
    metadata = {"name": "a", "creationTimestamp": before(300)}
    return {
        "metadata": {**metadata, "deletionTimestamp": before(1)} if deleted else metadata,
        "spec": {"template": template, **spec},
        "status": {
            "conditions": [{"type": kind, "status": "True"} for kind in conditions],
            **(status or {}),
        },
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-0.5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (303, "5m3s"),
        (600, "10m"),
        (3600, "60m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (9 * 3600 + 60, "9h"),
        (49 * 3600, "2d1h"),
        (9 * 86_400 + 3600, "9d"),
        (400 * 86_400, "400d"),
        (3 * 365 * 86_400 + 86_400, "3y1d"),
        (9 * 365 * 86_400, "9y"),
    ],
)
def test_spans_of_time(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("document", "state"),
    [
        (job(), "Running"),
        (job("Suspended"), "Suspended"),
        (job("Complete", "SuccessCriteriaMet"), "Complete"),
        (job("FailureTarget", "Failed"), "Failed"),
        (job("FailureTarget"), "FailureTarget"),
        (job("SuccessCriteriaMet"), "SuccessCriteriaMet"),
        (job("Suspended", deleted=True), "Terminating"),
        (job("Complete", deleted=True), "Complete"),
    ],
)
def test_states_of_jobs(document, state):
    assert shown(kinds.JOB, document)[1][0][1] == state


def test_a_job():
    status = {"succeeded": 1, "startTime": before(290), "completionTime": before(280)}
    document = job(status=status, completions=3, selector={"matchLabels": {"b": "1", "a": "2"}})
    headings, [row] = shown(kinds.JOB, document)
    assert headings == ["Name", "Status", "Completions", "Duration", "Age"]
    assert row == ["a", "Running", "1/3", "10s", "5m"]
    _, [row] = shown(kinds.JOB, document, wide=True)
    assert row[5:] == ["task", "busybox", "a=2,b=1"]


def pod(status, deleted=False):
    metadata = {"name": "p", "creationTimestamp": before(5)}
    if deleted:
        metadata["deletionTimestamp"] = before(0)
    return {"metadata": metadata, "spec": {"containers": [{}], "nodeName": "n"}, "status": status}


def container(**state):
    return {"containerStatuses": [{"state": state, "ready": "running" in state}]}


@pytest.mark.parametrize(
    ("document", "ready", "state"),
    [
        (pod({}), "0/1", "<unknown>"),
        (pod({"phase": "Pending"}), "0/1", "Pending"),
        (
            pod({"phase": "Pending", **container(waiting={"reason": "ImagePullBackOff"})}),
            "0/1",
            "ImagePullBackOff",
        ),
        (pod({"phase": "Running", **container(running={})}), "1/1", "Running"),
        (pod({"phase": "Running", **container(running={})}, deleted=True), "1/1", "Terminating"),
        (
            pod({"phase": "Succeeded", **container(terminated={"reason": "Completed"})}),
            "0/1",
            "Completed",
        ),
        (pod({"phase": "Failed", **container(terminated={"exitCode": 3})}), "0/1", "ExitCode:3"),
        (pod({"phase": "Failed", **container(terminated={"signal": 9})}), "0/1", "Signal:9"),
        (pod({"phase": "Failed", "reason": "Evicted"}), "0/1", "Evicted"),
        (pod({"phase": "Running", "reason": "NodeLost"}, deleted=True), "0/1", "Unknown"),
        (
            pod(
                {
                    "phase": "Pending",
                    "conditions": [
                        {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
                    ],
                }
            ),
            "0/1",
            "SchedulingGated",
        ),
    ],
)
def test_states_of_pods(document, ready, state):
    _, [row] = shown(kinds.POD, document)
    assert row == ["p", ready, state, "0", "5s"]
