"""Exit codes of errors."""

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
        (SettingsError("wrong"), exit_codes.WRONG),
        (FarcallError("wrong"), exit_codes.FAILED),
        (LookupError("of the function"), exit_codes.FAILED),
    ],
)
def test_error_class_selects_exit_code(error, code):
    assert exit_codes.code_of(error) == code


def test_help_lists_every_exit_code():
    listed = {int(code) for code in re.findall(r"^ +(\d+)  ", exit_codes.TABLE, re.MULTILINE)}
    assert listed == {
        0,
        2,  # click's own code
        exit_codes.FAILED,
        exit_codes.UNKNOWN,
        exit_codes.REFUSED,
        exit_codes.TIMED_OUT,
        exit_codes.INTERRUPTED,
    }
