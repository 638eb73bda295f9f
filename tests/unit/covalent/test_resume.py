"""Tasks that Covalent's server resumes after a restart."""

from __future__ import annotations

import json

import pytest

from farcall.cli.covalent import Resumed, resume
from farcall.model.errors import FarcallError


def manifest(*nodes):
    """Return a dispatch with nodes of an executor each, in some status."""
    listed = [
        {"id": number, "metadata": {"executor": executor, "status": status}}
        for number, (executor, status) in enumerate(nodes)
    ]
    lattice = {"metadata": {"name": "flow"}, "transport_graph": {"nodes": listed}}
    return json.dumps({"lattice": lattice}).encode()


def asked(answering):
    assert all(body == {"resume": True} for _, body in answering.told)
    return [path for path, _ in answering.told]


def test_tasks_of_ours_that_have_not_ended_are_looked_at_and_foreign_ones_are_told(answering):
    address = answering(
        200,
        manifest(
            ("awsbatch", "RUNNING"),
            ("awsbatch", "COMPLETED"),
            ("awsbatch", "NEW_OBJECT"),
            ("dask", "RUNNING"),
            ("dask", "COMPLETED"),
        ),
    )
    assert list(resume(["d/1"], address)) == [Resumed("d/1", "flow", [0, 2], [3])]
    assert asked(answering) == [
        f"/api/v2/dispatches/d%2F1/electrons/{number}/job" for number in (0, 2)
    ]


def test_where_all_of_ours_have_ended_one_is_looked_at(answering):
    address = answering(200, manifest(("dask", "COMPLETED"), *[("awsbatch", "COMPLETED")] * 2))
    assert list(resume(["d"], address)) == [Resumed("d", "flow", [], [])]
    assert asked(answering) == ["/api/v2/dispatches/d/electrons/1/job"]


def test_a_dispatch_of_others_alone_is_left_to_them(answering):
    address = answering(200, manifest(("dask", "RUNNING")))
    assert list(resume(["d"], address)) == [Resumed("d", "flow", [], [0])]
    assert asked(answering) == []


@pytest.mark.parametrize(
    "body", [b"[]", b"1", b"null", b'{"lattice": {}}', b'{"lattice": {"metadata": 1}}']
)
def test_an_answer_of_another_form_is_told_and_nothing_asked(answering, body):
    with pytest.raises(FarcallError, match="is not a Covalent 0.240 server"):
        list(resume(["d"], answering(200, body)))
    assert asked(answering) == []
