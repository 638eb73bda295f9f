"""What the error of a call says of the other calls of its map."""

from __future__ import annotations

import dataclasses

import pytest

from farcall.client.map_failure import MapFailure, names_of

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


def sentence(**said):
    return dataclasses.replace(ONE, **said).sentence


def test_it_is_told_in_a_line():
    assert ONE.sentence == "3 of 100 raised ValueError; 95 were ended because of it"
    assert sentence(ended=1, ended_tasks=1).endswith("; 1 was ended because of it")
    assert sentence(ended=0, ended_tasks=0) == "3 of 100 raised ValueError"


def test_calls_in_chunks_are_told_with_their_tasks():
    said = sentence(total=12_000, ended=9500, ended_tasks=95)
    expected = "3 of 12,000 raised ValueError; 9500 calls in 95 tasks were ended because of it"
    assert said == expected


def test_what_was_not_submitted_is_told():
    assert sentence(total=20_000, unsubmitted=10_000).endswith("; 10,000 were not submitted")


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ({"KeyError": 1, "ValueError": 4}, "raised ValueError x4, KeyError x1;"),
        (dict.fromkeys("ABCDE", 1), "raised A x1, B x1, C x1 and 2 more;"),
        ({"E\x1b[2J\n": 1}, "raised E^[[2J ;"),
        ({"E" * 500: 1}, f"raised {'E' * 80};"),
    ],
)
def test_errors_are_counted_by_their_class(errors, told):
    assert told in sentence(errors=names_of(errors))


class StubbornError(ValueError):
    """An error whose class refuses new attributes."""

    def __setattr__(self, name, value):
        raise TypeError("no")


def notes(error):
    return "\n".join(getattr(error, "__notes__", [])) or str(error.__cause__)


@pytest.mark.parametrize("kind", [ValueError, StubbornError])
def test_an_error_is_given_it_as_far_as_its_class_allows(kind):
    error = kind("why")
    ONE.tell(error, "recover it")
    assert getattr(error, "map_failure", ONE) is ONE
    assert notes(error) == (
        "map: 3 of 100 raised ValueError; 95 were ended because of it. "
        "Get the computed results with `recover it`."
    )


def test_where_nothing_is_kept_nothing_is_said_of_recovery():
    error = ValueError("why")
    dataclasses.replace(ONE, kept=0).tell(error, "recover it")
    assert notes(error) == f"map: {ONE.sentence}."


def test_of_calls_that_go_on_it_is_said_how_long():
    error = ValueError("why")
    dataclasses.replace(ONE, ended=0, unfinished=95, kept=0).tell(error, "")
    assert notes(error) == (
        "map: 3 of 100 raised ValueError; 95 have not ended. They continue until the iterator is "
        "closed."
    )
