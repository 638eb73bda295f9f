import pickle
import re
import textwrap
import traceback
from pathlib import Path

import pytest

from farcall import FarcallError, TaskError
from farcall.model import errors
from tests.support import hostile

TREE = re.findall(r"^ *\w+", textwrap.dedent(errors.__doc__.split("\n\n")[2]), re.MULTILINE)
"""The tree of classes in the docstring."""

HOMES = ("farcall", errors.__name__)

ENDED = [
    kind
    for name in map(str.strip, TREE)
    if issubclass(kind := getattr(errors, name), errors.JobError)
]


def drawn(kind, depth=0):
    """Return a class and its public descendants as a tree, in the order of their definition."""
    own = [] if kind.__name__.startswith("_") else [f"{'  ' * depth}{kind.__name__}"]
    below = [child for child in kind.__subclasses__() if child.__module__ in HOMES]
    return own + [line for child in below for line in drawn(child, depth + len(own))]


def test_class_tree_is_the_documented_one():
    assert sorted(drawn(errors.FarcallError)) == sorted(TREE)


def test_documentation_has_the_same_tree():
    page = Path(__file__).parents[3].joinpath("docs/errors.md").read_text(encoding="utf-8")
    names = re.findall(r"^ *\w+", page.split("```text\n")[1].split("```")[0], re.MULTILINE)
    assert [name.strip() for name in names] == [name.strip() for name in TREE]


@pytest.mark.parametrize("kind", ENDED)
def test_job_error_is_picklable(kind):
    fields = {
        "job_id": "j:3",
        "reason": "Host EC2 (instance i-1) terminated.",
        "exit_code": 137,
        "attempts": 2,
        "stdout": "out",
        "stderr": "err",
        "log_url": "https://example/log",
    }
    error = kind("said", **fields)
    error.extra = [1]
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (kind, "said", {**fields, "extra": [1]})


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(errors.JobTimeoutError, TimeoutError), (errors.OutOfMemoryError, MemoryError)],
)
def test_builtin_class_catches_job_error(kind, builtin):
    with pytest.raises(builtin, match="^said$"):
        raise kind("said", job_id="j:3")


def test_other_errors_are_picklable():
    service = errors.ServiceError(
        "said", operation="SubmitJob", code="Denied", request_id="r", status=403, sent=False
    )
    settings = errors.SettingsError("wrong", option="vcpu")
    copies = [pickle.loads(pickle.dumps(error)) for error in (service, settings)]
    assert [vars(copy) for copy in copies] == [
        {
            "operation": "SubmitJob",
            "code": "Denied",
            "request_id": "r",
            "status": 403,
            "sent": False,
        },
        {"option": "vcpu"},
    ]
    assert [str(copy) for copy in copies] == ["said", "wrong"]


def test_quoted_text_is_escaped_and_kept():
    error = TaskError(hostile.TEXT, job_id="1")
    assert hostile.obeyed(str(error)) == set()
    assert hostile.MARK in str(error)
    assert hostile.obeyed("".join(traceback.format_exception(error))) == set()
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.args, str(copy)) == (error.args, str(error))


def test_error_without_text_is_empty():
    assert str(FarcallError()) == ""
