"""Job options on the command line."""

import re

import click
import pytest

from farcall import Settings
from farcall.cli.options import given


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("vpcu=3", "did you mean vcpu?"),
        ("vcpu=true", "a Boolean is not a number"),
        ("tags=x", "tags is 'x'"),
        ("vcpu", "NAME=VALUE"),
    ],
)
def test_invalid_option_is_a_usage_error(assignment, message):
    with pytest.raises(click.UsageError, match=re.escape(message)):
        given([assignment], {})


def test_options_are_parsed_by_their_type():
    words = ['tags={"a": "b"}', "stuck_timeout_s=null", "keep-artifacts=yes", "queue=123"]

    options = given(words, {"vcpu": "4", "memory": None})

    expected = {"tags": {"a": "b"}, "stuck_timeout_s": None, "vcpu": 4, "queue": "123"}
    assert {**expected, "keep_artifacts": "yes"} == options
    assert Settings(**options).keep_artifacts is True
