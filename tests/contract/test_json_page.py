"""docs/json.md has every field of a job, an attempt, a node and an explanation."""

import dataclasses
import re
from pathlib import Path

import pytest

from farcall.engine.delivered import Usage
from farcall.model.jobs import Attempt, JobDetail, JobStatus
from farcall.model.output import LogLine
from farcall.model.workflows import Workflow
from farcall.operations import json_view
from farcall.operations.catalog import Entry
from farcall.operations.explain import Explanation

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
DETAIL = JobDetail("id", "fit-0", JobStatus.RUNNING)
ENTRY = Entry(DETAIL, Workflow(""), "ada-0-0-0")


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("Job", json_view.job(ENTRY)),
        ("Description", json_view.attempt(1, Attempt())),
        ("Description", json_view.node(DETAIL)),
        ("Description", [each.name for each in dataclasses.fields(Explanation)]),
        ("Usage", [each.name for each in dataclasses.fields(Usage)]),
        ("Line of output", {*LogLine._fields} - {"goes_on"}),
    ],
)
def test_page_has_every_field(title, fields):
    assert {*fields} - {*re.findall(r"`(\w+)`", section(title))} == set()


def test_page_has_no_unknown_job_field():
    named = {
        name
        for cell in re.findall(r"^\| (`.*?) \|", section("Job"), re.M)
        for name in re.findall(r"`(\w+)`", cell)
    }
    assert named - {*json_view.job(ENTRY)} == set()
