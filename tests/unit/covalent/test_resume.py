"""Tasks that Covalent's server resumes after a restart."""

from __future__ import annotations

import json

import pytest

from farcall.cli.covalent import Resumed, resume
from farcall.model.errors import FarcallError


def manifest(*nodes):
    """Return a dispatch with one node per given executor and status."""
    listed = [
        {"id": number, "metadata": {"executor": executor, "status": status}}
        for number, (executor, status) in enumerate(nodes)
    ]
    lattice = {"metadata": {"name": "flow"}, "transport_graph": {"nodes": listed}}
    return json.dumps({"lattice": lattice}).encode()


def asked(answering):
    assert all(body == {"resume": True} for _, body in answering.received)
    return [path for path, _ in answering.received]


def test_unfinished_own_tasks_are_resumed(answering):
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


def test_finished_dispatch_queries_one_task(answering):
    address = answering(200, manifest(("dask", "COMPLETED"), *[("awsbatch", "COMPLETED")] * 2))
    assert list(resume(["d"], address)) == [Resumed("d", "flow", [], [])]
    assert asked(answering) == ["/api/v2/dispatches/d/electrons/1/job"]


def test_foreign_dispatch_is_left_alone(answering):
    address = answering(200, manifest(("dask", "RUNNING")))
    assert list(resume(["d"], address)) == [Resumed("d", "flow", [], [0])]
    assert asked(answering) == []


@pytest.mark.parametrize(
    "body", [b"[]", b"1", b"null", b'{"lattice": {}}', b'{"lattice": {"metadata": 1}}']
)
def test_response_of_other_format_is_rejected(answering, body):
    with pytest.raises(FarcallError, match="is not a Covalent 0.240 server"):
        list(resume(["d"], answering(200, body)))
    assert asked(answering) == []
