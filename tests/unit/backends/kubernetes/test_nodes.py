"""Several Jobs as one."""

import pytest

from farcall.backends.kubernetes import nodes

EXITED = "Container task for pod default/one-n1 failed with exit code 5 matching FailJob rule"


def job(name, condition="", node=None, message="", **status):
    labels = {"farcall/job": "one", **({} if node is None else {"farcall/node": str(node)})}
    conditions = [{"type": condition, "status": "True", "reason": name, "message": message}]
    conditions = conditions if condition else []
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {**status, **({"conditions": conditions} if conditions else {})},
    }


@pytest.mark.parametrize(
    ("main", "other", "message", "end", "left"),
    [
        ("", "", "", None, []),
        ("", "Complete", "", None, []),
        ("Complete", "", "", "Complete", ["one-n1"]),
        ("SuccessCriteriaMet", "", "", "SuccessCriteriaMet", ["one-n1"]),
        ("Complete", "Failed", "", "Complete", []),
        ("", "Failed", EXITED, None, []),
        ("", "Failed", "Pod default/one-n1 has condition DisruptionTarget", "Failed", ["one"]),
        ("", "FailureTarget", "", "FailureTarget", ["one"]),
        ("Failed", "", "", "Failed", ["one-n1"]),
    ],
)
def test_main_or_failed_node_ends_others(main, other, message, end, left):
    gang = nodes.MultiNodeJob([job("one-n1", other, 1, message), job("one", main, active=1)])
    whole = gang.job
    assert whole["metadata"]["name"] == "one"
    conditions = whole["status"].get("conditions", [])
    assert (conditions[-1]["type"] if conditions else None) == end
    assert [each["metadata"]["name"] for each in gang.left] == left


def test_missing_main_job_gives_no_job():
    gang = nodes.MultiNodeJob([job("one-n1", node=1)])
    assert (gang.job, gang.left) == (None, [])
