from __future__ import annotations

import pytest

from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail, JobStatus, NodeGroup
from farcall.model.submission import Submission
from farcall_runtime.contract import Location

ROOT = "farcall/v1/run-1"


def test_secrets_are_in_no_repr():
    key = bytes(range(32))
    submission = Submission("j", "n", Location("b", ROOT, "x"), key, 1)
    assert key.hex() not in repr(submission)
    assert repr(key) not in repr(submission)


def test_the_id_of_a_child_has_its_number():
    where = Location("b", ROOT, "x")
    assert Submission("j", "n", where, b"", 1).id_of(0) == "j"
    assert Submission("j", "n", where, b"", 5).id_of(3) == "j:3"


def detail(job_id="8f1", **changes):
    environment = {
        "FARCALL_BUNDLE": f"s3://b/{ROOT}/bundles/x",
        "FARCALL_DIGEST": "cd" * 32,
        "FARCALL_OUTCOME_KEY": "ab" * 32,
    }
    fields = {"environment": environment, "status": JobStatus.RUNNING, **changes}
    return JobDetail(job_id, "n", **fields)


def test_a_job_of_ours_is_recognised_by_its_environment():
    submission, index = Submission.of(detail())
    assert (submission.where, submission.key) == (Location("b", ROOT, "x"), b"\xab" * 32)
    assert (submission.id_of(index), index) == ("8f1", 0)


def test_the_digest_of_its_bundle_is_batchs():
    submission, _ = Submission.of(detail())
    assert submission.digest == "cd" * 32


def test_an_array_is_known_as_a_whole():
    submission = Submission.whole(detail(array_size=10))
    assert (submission.size, submission.id_of(9)) == (10, "8f1:9")
    assert Submission.whole(detail()).size == 1


def test_a_child_of_an_array_is_recognised():
    submission, index = Submission.of(detail("8f1:12"))
    assert (submission.job_id, index, submission.id_of(index)) == ("8f1", 12, "8f1:12")


def test_an_array_as_a_whole_has_no_result():
    with pytest.raises(FarcallError, match="8f1:0 to 8f1:9"):
        Submission.of(detail(array_size=10))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"FARCALL_BUNDLE": f"s3://b/{ROOT}/bundles/x"},
        {"FARCALL_BUNDLE": "s3://b/v9/r/bundles/x", "FARCALL_OUTCOME_KEY": "ab"},
        {"FARCALL_BUNDLE": f"s3://b/{ROOT}/bundles/x", "FARCALL_OUTCOME_KEY": "no hex"},
    ],
)
def test_a_job_of_others_is_refused(environment):
    with pytest.raises(FarcallError, match=r"8f1 \(n\) was not submitted by farcall"):
        Submission.of(detail(environment=environment))


def test_a_job_on_several_nodes_is_one_task_whose_nodes_have_ids_and_keys_of_their_own():
    submission, index = Submission.of(detail(groups=(NodeGroup(0, 3),)))
    assert (submission.size, submission.nodes, index) == (1, 4, 0)
    assert [submission.id_of(node) for node in (0, 2)] == ["8f1", "8f1#2"]
    assert submission.attempt_key(0, 1) == f"{ROOT}/attempts/x/0/1"
    assert submission.attempt_key(2, 1) == f"{ROOT}/outcomes/x/nodes/1/2"
    assert submission.name_of(2) == "n, node 2 of 4"


@pytest.mark.parametrize("node", [1, 12])
def test_one_node_is_told_apart_from_its_job(node):
    submission, index = Submission.of(detail(f"8f1#{node}"))
    assert (submission.job_id, index, submission.id_of(index)) == ("8f1", node, f"8f1#{node}")
    assert submission.is_other_node(index)


def test_the_main_node_s_id_names_no_other_node():
    submission, index = Submission.of(detail("8f1#0"))
    assert (submission.id_of(index), submission.is_other_node(index)) == ("8f1", False)


def test_a_multi_node_job_of_one_node_is_a_plain_task():
    submission, index = Submission.of(detail(groups=(NodeGroup(0, 0),)))
    assert (submission.nodes, submission.name_of(index)) == (1, "n")
