"""Outcomes of tasks, and the objects that can be deleted."""

from farcall.engine.delivered import Delivered, Usage
from farcall.payload.results import Result
from farcall_runtime.contract import OutcomeStatus, usage_text
from tests.unit.transcripts import written

OUTPUT, ERRORS = b"first\nsecond\n", b"1\n2\n"


def outcome(*ends):
    """Describe an outcome: calls that ended at these offsets, and one unfinished call."""
    records = [{"ended": list(end)} for end in ends]
    return {"status": OutcomeStatus.DONE, "stdout": {}, "stderr": {}, "results": [*records, {}]}


def test_output_keys_are_spent_with_outcome():
    assert Delivered([], deletable=["outcome"], output=["chunk"]).all_deletable == [
        "outcome",
        "chunk",
    ]
    assert Delivered([], deletable=["outcome"]).all_deletable == ["outcome"]
    assert Delivered([]).all_deletable == []


def test_calls_get_their_part_of_output():
    delivered = Delivered([Result(1), Result(2)], is_whole=False, meta=outcome((6, 2)))
    found = delivered.with_output(OUTPUT, ERRORS)
    assert (found.stdout, found.stderr, found.is_whole) == (OUTPUT, ERRORS, True)
    assert [(each.value, each.stdout, each.stderr) for each in found.results] == [
        (1, b"first\n", b"1\n"),
        (2, b"second\n", b"2\n"),
    ]
    assert not delivered.is_whole


def test_call_not_begun_has_no_output():
    meta = outcome((6, 2)) | {"status": OutcomeStatus.KILLED}
    meta["results"].pop()  # the second call's record: the process died during that call
    found = Delivered([Result(1), Result(2), Result(3)], meta=meta)
    assert [each.stdout for each in found.with_output(OUTPUT, ERRORS).results] == [
        b"first\n",
        b"second\n",
        b"",
    ]


def test_output_without_outcome_belongs_to_all():
    found = Delivered([Result(1), Result(2)]).with_output(OUTPUT, ERRORS)
    assert [each.stdout for each in found.results] == [OUTPUT] * 2


def test_missing_output_is_located():
    output = written(3, 12, b"rest")
    meta = outcome()
    assert Delivered([], written=output, meta=meta).elsewhere() is None
    assert Delivered([], written=output, is_whole=False).elsewhere() is None
    assert Delivered([], written=output, meta=meta, is_whole=False).elsewhere() is output


def test_usage_is_read_from_the_log():
    ours = f"farcall: {usage_text(12.25, 0.5, 512 * 2**20)}"
    forged = f"farcall: {usage_text(10**12, 0.5, 0)}"
    found = Usage.logged(["a line", "farcall: another line", ours, forged, f" {ours}"])
    assert found == Usage(12.25, 0.5, 512 * 2**20)
    assert Usage.logged([forged, "a line"]) is None
