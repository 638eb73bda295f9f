"""Job names that Batch accepts."""

import re

import pytest

from farcall.model import names


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("hello", "hello-"),
        ("a name: with, blanks", "a-name-with-blanks-"),
        ("<lambda>", "lambda-"),
        ("outer.<locals>.<lambda>", "outer-locals-lambda-"),
        ("größe", "gr-e-"),
        ("日本", "command-"),
        ("--_", "command-"),
        ("", "command-"),
        ("x" * 500, "x" * 90 + "-"),
    ],
)
def test_name_is_legal_and_recognizable(name, begins):
    found = names.unique(name, "command")
    assert found.startswith(begins)
    assert re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]{0,127}", found)


def test_names_are_unique():
    assert len({names.unique("hello") for _ in range(100)}) == 100
