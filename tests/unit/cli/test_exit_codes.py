"""Exit codes of errors."""

from __future__ import annotations

import re

import pytest

from farcall.cli import exit_codes
from farcall.model.errors import (
    FarcallError,
    JobLostError,
    ServiceError,
    SettingsError,
    TaskError,
    UnknownError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownError("no such run"), exit_codes.UNKNOWN),
        (JobLostError("no such job"), exit_codes.UNKNOWN),
        (ServiceError("refused"), exit_codes.REFUSED),
        (TaskError("failed"), exit_codes.FAILED),
        (SettingsError("wrong"), exit_codes.FAILED),
        (FarcallError("wrong"), exit_codes.FAILED),
        (LookupError("of the function"), exit_codes.FAILED),
    ],
)
def test_an_error_has_the_code_of_its_kind(error, code):
    assert exit_codes.code_of(error) == code


def test_the_help_tells_every_code():
    told = {int(code) for code in re.findall(r"^ +(\d+)  ", exit_codes.TABLE, re.MULTILINE)}
    assert told == {
        0,
        2,  # click's own
        exit_codes.FAILED,
        exit_codes.UNKNOWN,
        exit_codes.REFUSED,
        exit_codes.TIMED_OUT,
        exit_codes.INTERRUPTED,
    }
