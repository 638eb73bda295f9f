import pytest

from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail, JobStatus, NodeGroup
from farcall.model.submission import Submission
from farcall_runtime.contract import Location

ROOT = "farcall/v1/run-1"


def test_repr_hides_key():
    key = bytes(range(32))
    submission = Submission("j", "n", Location("b", ROOT, "x"), key, 1)
    assert key.hex() not in repr(submission)
    assert repr(key) not in repr(submission)


def test_array_task_id_has_index():
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


def test_own_job_is_recognized_by_environment():
    submission, index = Submission.of(detail())
    assert (submission.where, submission.key) == (Location("b", ROOT, "x"), b"\xab" * 32)
    assert (submission.id_of(index), index) == ("8f1", 0)


def test_bundle_digest_comes_from_batch():
    submission, _ = Submission.of(detail())
    assert submission.digest == "cd" * 32


def test_whole_array_job_is_recognized():
    submission = Submission.whole(detail(array_size=10))
    assert (submission.size, submission.id_of(9)) == (10, "8f1:9")
    assert Submission.whole(detail()).size == 1


def test_array_task_is_recognized():
    submission, index = Submission.of(detail("8f1:12"))
    assert (submission.job_id, index, submission.id_of(index)) == ("8f1", 12, "8f1:12")


def test_whole_array_has_no_result():
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
def test_foreign_job_is_rejected(environment):
    with pytest.raises(FarcallError, match=r"8f1 \(n\) was not submitted by farcall"):
        Submission.of(detail(environment=environment))


def test_nodes_have_their_own_ids():
    submission, index = Submission.of(detail(groups=(NodeGroup(0, 3),)))
    assert (submission.size, submission.nodes, index) == (1, 4, 0)
    assert [submission.id_of(node) for node in (0, 2)] == ["8f1", "8f1#2"]
    assert submission.attempt_key(0, 1) == f"{ROOT}/attempts/x/0/1"
    assert submission.attempt_key(2, 1) == f"{ROOT}/outcomes/x/nodes/1/2"
    assert submission.name_of(2) == "n, node 2 of 4"


@pytest.mark.parametrize("node", [1, 12])
def test_node_differs_from_its_job(node):
    submission, index = Submission.of(detail(f"8f1#{node}"))
    assert (submission.job_id, index, submission.id_of(index)) == ("8f1", node, f"8f1#{node}")
    assert submission.is_other_node(index)


def test_main_node_id_names_the_job():
    submission, index = Submission.of(detail("8f1#0"))
    assert (submission.id_of(index), submission.is_other_node(index)) == ("8f1", False)


def test_one_node_job_is_plain_task():
    submission, index = Submission.of(detail(groups=(NodeGroup(0, 0),)))
    assert (submission.nodes, submission.name_of(index)) == (1, "n")
