"""Notes on errors of a map about the other calls."""

import dataclasses

import pytest

from farcall.client.map_failure import MapFailure, names_of
from tests.support.notes import notes

ONE = MapFailure(
    total=100,
    failed=3,
    ended=95,
    ended_tasks=95,
    unsubmitted=0,
    kept=2,
    errors=(("ValueError", 3),),
    run="mary-1",
    job_ids=("6f1c",),
)


def sentence(**changes):
    return dataclasses.replace(ONE, **changes).sentence


def test_sentence_counts_failed_and_ended_calls():
    assert ONE.sentence == "3 of 100 raised ValueError; 95 were ended because of it"
    assert sentence(ended=1, ended_tasks=1).endswith("; 1 was ended because of it")
    assert sentence(ended=0, ended_tasks=0) == "3 of 100 raised ValueError"


def test_chunked_calls_are_counted_with_tasks():
    found = sentence(total=12_000, ended=9500, ended_tasks=95)
    expected = "3 of 12,000 raised ValueError; 9500 calls in 95 tasks were ended because of it"
    assert found == expected


def test_unsubmitted_calls_are_counted():
    assert sentence(total=20_000, unsubmitted=10_000).endswith("; 10,000 were not submitted")


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
    assert expected_text in sentence(errors=names_of(errors))


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
        "map: 3 of 100 raised ValueError; 95 were ended because of it. "
        "Get the computed results with `recover it`."
    )


def test_no_kept_results_omit_recovery_hint():
    error = ValueError("why")
    dataclasses.replace(ONE, kept=0).annotate(error, "recover it")
    assert notes(error) == [f"map: {ONE.sentence}."]


def test_unfinished_calls_are_reported():
    error = ValueError("why")
    dataclasses.replace(ONE, ended=0, unfinished=95, kept=0).annotate(error, "")
    (note,) = notes(error)
    assert note == (
        "map: 3 of 100 raised ValueError; 95 have not ended. They continue until the iterator is "
        "closed."
    )
