"""The main node's view of the other nodes' outcomes."""

from __future__ import annotations

import math
import threading
import time

import pytest

from farcall_runtime import envelope, peers
from farcall_runtime.bundle import Assignment, RefusedError
from farcall_runtime.contract import ExitCode, Location, OutcomeStatus
from farcall_runtime.peers import Peers
from farcall_runtime.storage import Storage, StorageError
from farcall_runtime.waiting import NoThreadError
from tests.support.patience import PATIENCE_S, until

KEY = bytes(range(32))
WHERE = Location("bucket", "prefix/v1/run", "work-0011223344556677")


class Bucket:
    """Folder used as the bucket, with the objects that nodes store."""

    def __init__(self, folder):
        (folder / "bucket").mkdir()
        variables = {"FARCALL_BUCKET_URL": f"{folder.as_uri()}/bucket"}
        self.storage = Storage("bucket", variables, retry_s=0.0)

    def put(self, node, code=0, *, attempt=1, at=None, key=KEY, ended_at=1.0, status="done"):
        """Store a node's outcome; `at` is another key than its own."""
        place = WHERE.node_key(attempt, node)
        meta = {"status": status, "code": code, "node": node, "ended_at": ended_at}
        pieces = envelope.seal_outcome(key, place, meta, b"", b"", [])
        self.storage.put(at or place, pieces)


@pytest.fixture
def bucket(tmp_path):
    return Bucket(tmp_path)


def others(bucket, nodes=3, attempt=1):
    return Peers(Assignment(WHERE, "0" * 64, KEY, None, attempt, "job", 0, nodes), bucket.storage)


def wait(made):
    """Wait like the main node, but with a limit."""
    deadline = time.monotonic() + PATIENCE_S
    made.wait(lambda: deadline)
    return made


def test_main_node_waits_for_all(bucket):
    made = others(bucket)
    made.start()
    bucket.put(1)
    until(lambda: made.left == {2})
    threading.Timer(0.1, bucket.put, [2]).start()
    assert wait(made).left == set()


def test_failure_ends_the_wait(bucket):
    made = others(bucket)
    bucket.put(2, ExitCode.RAISED)
    wait(made)
    assert made.failed["node"] == 2
    assert made.left == {1}


def test_earliest_failure_counts(bucket):
    made = others(bucket)
    bucket.put(1, ExitCode.RAISED, ended_at=7.5)
    bucket.put(2, ExitCode.OUT_OF_MEMORY, ended_at=7.25)
    assert wait(made).failed["node"] == 2


@pytest.mark.parametrize(
    "forge", ["another node's", "another attempt's", "another job's", "short"]
)
def test_forged_outcome_is_refused(bucket, forge):
    place = WHERE.node_key(1, 2)
    if forge == "another node's":
        bucket.put(1, at=place)
    elif forge == "another attempt's":
        bucket.put(2, attempt=2, at=place)
    elif forge == "another job's":
        bucket.put(2, key=bytes(32))
    else:
        bucket.storage.put(place, [b"x"])
    made = others(bucket)
    bucket.put(1)
    wait(made)
    assert made.failed["node"] == 2
    assert made.failed["status"] == OutcomeStatus.REFUSED
    assert made.failed["code"] == ExitCode.OUTCOME_OCCUPIED
    assert place in made.failed["detail"]


def test_other_names_are_ignored(bucket):
    made = others(bucket, nodes=2)
    for name in ("0", "2", "01", "x", "3/x", "-1", "9" * 30):
        bucket.storage.put(f"{WHERE.nodes_prefix(1)}{name}", [b"x"])
    made.wait(lambda: 0.0)  # only briefly
    threading.Timer(0.2, bucket.put, [1]).start()
    assert wait(made).failed is None


def test_listing_failure_is_retried(bucket, monkeypatch, capfd):
    made = others(bucket, nodes=2)
    bucket.put(1)
    tries = []

    def refuse_twice(prefix):
        tries.append(prefix)
        if len(tries) < 3:
            raise StorageError("no answer")
        return ["1"]

    monkeypatch.setattr(bucket.storage, "names", refuse_twice)
    assert wait(made).left == set()
    assert tries == [WHERE.nodes_prefix(1)] * 3
    assert capfd.readouterr().err.count("cannot be listed at the moment: no answer") == 1


def test_without_thread_waiting_polls(bucket, monkeypatch):
    def refuse(*_):
        raise NoThreadError("no thread")

    monkeypatch.setattr(peers, "start_thread", refuse)
    made = others(bucket, nodes=2)
    made.start()
    bucket.put(1)
    assert wait(made).left == set()


def test_deadline_ends_the_wait(bucket):
    made = others(bucket)
    asked = []
    made.wait(lambda: asked.append(0) or (math.inf if len(asked) < 3 else 0.0))
    assert len(asked) == 3
    made.close()
    assert made.left == {1, 2}


def test_closing_ends_the_thread(bucket):
    made = others(bucket)
    made.start()
    made.close()
    until(lambda: "farcall-nodes" not in [each.name for each in threading.enumerate()])


def environment(**more):
    return {
        "FARCALL_BUNDLE": WHERE.url,
        "FARCALL_DIGEST": "0" * 64,
        "FARCALL_OUTCOME_KEY": KEY.hex(),
        **more,
    }


def test_node_outcome_is_stored_by_index():
    job = Assignment.read(
        environment(
            AWS_BATCH_JOB_NODE_INDEX="2",
            AWS_BATCH_JOB_NUM_NODES="4",
            AWS_BATCH_JOB_MAIN_NODE_INDEX="0",
            AWS_BATCH_JOB_ATTEMPT="3",
        )
    )
    assert (job.entry, job.number, job.node, job.nodes, job.attempt) == (0, 2, 2, 4, 3)
    assert not job.is_main


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"AWS_BATCH_JOB_NODE_INDEX": "4", "AWS_BATCH_JOB_NUM_NODES": "4"},
            "is 4, but the job has 4 nodes",
        ),
        ({"AWS_BATCH_JOB_NUM_NODES": "0"}, "must be a number of at least 1"),
        (
            {"AWS_BATCH_JOB_NUM_NODES": "4", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "2"},
            "the main node of a farcall job is the first one",
        ),
    ],
)
def test_invalid_node_variables_are_rejected(given, message):
    with pytest.raises(RefusedError, match=message) as caught:
        Assignment.read(environment(**given))
    assert caught.value.code == ExitCode.BAD_ENVIRONMENT


@pytest.mark.parametrize(("status", "by_itself"), [("done", True), ("terminated", False)])
def test_stopped_node_has_not_failed_itself(bucket, status, by_itself):
    made = others(bucket)
    assert not made.poll_for_failure()
    bucket.put(1, code=1 if by_itself else 143, status=status)
    assert made.poll_for_failure() is by_itself
    assert made.failed["node"] == 1
