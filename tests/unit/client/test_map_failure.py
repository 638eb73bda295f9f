"""Notes on errors of a map about the other calls."""

import dataclasses

import pytest

from farcall.client.map_failure import MapFailure, names_of
from tests.support.notes import notes

ONE = MapFailure(
    total=100,
    failed=3,
    cancelled=95,
    cancelled_tasks=95,
    unsubmitted=0,
    kept=2,
    errors=(("ValueError", 3),),
    run="mary-1",
    job_ids=("6f1c",),
)


def message(**changes):
    return dataclasses.replace(ONE, **changes).message


def test_sentence_counts_failed_and_ended_calls():
    assert ONE.message == "3 of 100 raised ValueError; 95 were cancelled because of it"
    assert message(cancelled=1, cancelled_tasks=1).endswith("; 1 was cancelled because of it")
    assert message(cancelled=0, cancelled_tasks=0) == "3 of 100 raised ValueError"


def test_chunked_calls_are_counted_with_tasks():
    found = message(total=12_000, cancelled=9500, cancelled_tasks=95)
    expected = "3 of 12,000 raised ValueError; 9500 calls in 95 tasks were cancelled because of it"
    assert found == expected


def test_unsubmitted_calls_are_counted():
    assert message(total=20_000, unsubmitted=10_000).endswith("; 10,000 were not submitted")


@pytest.mark.parametrize(
    ("errors", "expected_text"),
    [
        ({"KeyError": 1, "ValueError": 4}, "raised ValueError x4, KeyError x1;"),
        (dict.fromkeys("ABCDE", 1), "raised A x1, B x1, C x1 and 2 more;"),
        ({"E\x1b[2J\n": 1}, "raised E^[[2J ;"),
        ({"E" * 500: 1}, f"raised {'E' * 80};"),
    ],
)
def test_errors_are_counted_by_class(errors, expected_text):
    assert expected_text in message(errors=names_of(errors))


class StubbornError(ValueError):
    """Error whose class rejects new attributes."""

    def __setattr__(self, name, value):
        raise TypeError("no")


@pytest.mark.parametrize("kind", [ValueError, StubbornError])
def test_note_is_added_to_error(kind):
    """If the class of an error rejects attributes, its cause has the note."""
    error = kind("why")
    ONE.annotate(error, "recover it")
    assert getattr(error, "map_failure", ONE) is ONE
    (note,) = notes(error)
    assert note == (
        "map: 3 of 100 raised ValueError; 95 were cancelled because of it. "
        "Get the computed results with `recover it`."
    )


def test_no_kept_results_omit_recovery_hint():
    error = ValueError("why")
    dataclasses.replace(ONE, kept=0).annotate(error, "recover it")
    assert notes(error) == [f"map: {ONE.message}."]


def test_unfinished_calls_are_reported():
    error = ValueError("why")
    dataclasses.replace(ONE, cancelled=0, unfinished=95, kept=0).annotate(error, "")
    (note,) = notes(error)
    assert note == (
        "map: 3 of 100 raised ValueError; 95 have not finished. They continue until the iterator "
        "is closed."
    )
