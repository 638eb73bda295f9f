"""Meaning of a container's exit code without further information."""

import pytest

from farcall.model import errors
from farcall.model.exit_codes import EXITS, refused
from farcall.model.failure_reasons import About
from farcall_runtime.contract import ExitCode

JOB = About("job-1", "simulate")


def test_every_failure_exit_code_is_explained():
    assert set(ExitCode) - set(EXITS) == {ExitCode.RETURNED}


def test_every_explanation_has_sentence_and_remedy():
    assert [code for code, found in EXITS.items() if not (found.sentence and found.remedy)] == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [(126, errors.ImageError), (127, errors.ImageError), (137, errors.OutOfMemoryError)],
)
def test_shell_exit_codes_are_explained(code, kind):
    assert EXITS[code].kind is kind


def test_refusal_quotes_the_container():
    found = refused({"code": ExitCode.INTEGRITY, "detail": "page 3 has another digest"}, JOB)
    assert found.sentence.endswith("is not what was submitted (page 3 has another digest)")
    error = found.error(JOB)
    assert (type(error), error.exit_code) == (errors.IntegrityError, ExitCode.INTEGRITY)
    assert EXITS[ExitCode.INTEGRITY].exit_code is None  # the table's entry is unchanged


def test_missing_array_index_is_not_blamed_on_image():
    detail = "the job has 3 tasks, but AWS_BATCH_JOB_ARRAY_INDEX is not set"
    found = refused({"code": ExitCode.BAD_ENVIRONMENT, "detail": detail}, JOB)
    assert found.sentence == f"the task has no valid array index ({detail})"
    assert "Batch must set AWS_BATCH_JOB_ARRAY_INDEX" in found.remedy
    assert "Dockerfile" not in found.remedy
