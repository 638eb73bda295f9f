"""Options of a job on a command line."""

from __future__ import annotations

import re

import click
import pytest

from farcall import Settings
from farcall.cli.options import given


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("vpcu=3", "did you mean vcpu?"),
        ("vcpu=true", "a Boolean is not a number"),
        ("tags=x", "tags is 'x'"),
        ("vcpu", "NAME=VALUE"),
    ],
)
def test_an_option_is_refused_as_a_usage_error(assignment: str, said: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(said)):
        given([assignment], {})


def test_options_are_read_as_their_types_say() -> None:
    words = ['tags={"a": "b"}', "stuck_timeout_s=null", "keep-artifacts=yes", "queue=123"]

    options = given(words, {"vcpu": "4", "memory": None})

    expected = {"tags": {"a": "b"}, "stuck_timeout_s": None, "vcpu": 4, "queue": "123"}
    assert {**expected, "keep_artifacts": "yes"} == options
    assert Settings(**options).keep_artifacts is True
