"""What a container's exit code says by itself."""

from __future__ import annotations

import pytest

from farcall.model import errors
from farcall.model.exit_codes import EXITS, refused
from farcall.model.failure_reasons import About
from farcall_runtime.contract import ExitCode

JOB = About("job-1", "simulate")


def test_every_code_of_the_container_but_success_has_an_ending():
    assert set(ExitCode) - set(EXITS) == {ExitCode.RETURNED}


def test_every_ending_says_what_happened_and_what_to_do():
    assert [code for code, found in EXITS.items() if not (found.sentence and found.remedy)] == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [(126, errors.ImageError), (127, errors.ImageError), (137, errors.OutOfMemoryError)],
)
def test_a_shell_s_codes_are_known_too(code, kind):
    assert EXITS[code].kind is kind


def test_a_refusal_has_the_container_s_own_words():
    found = refused({"code": ExitCode.INTEGRITY, "detail": "page 3 has another digest"}, JOB)
    assert found.sentence.endswith("is not what was submitted (page 3 has another digest)")
    error = found.error(JOB)
    assert (type(error), error.exit_code) == (errors.IntegrityError, ExitCode.INTEGRITY)
    assert EXITS[ExitCode.INTEGRITY].exit_code is None  # the row itself is unchanged
