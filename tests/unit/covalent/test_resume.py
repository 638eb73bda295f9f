"""Tasks that Covalent's server resumes after a restart."""

import json

import pytest
from click.testing import CliRunner

from farcall.cli.covalent import resume_dispatches
from farcall.model.errors import FarcallError


def manifest(*nodes):
    """Return a dispatch with one node per given executor and status."""
    listed = [
        {"id": number, "metadata": {"executor": executor, "status": status}}
        for number, (executor, status) in enumerate(nodes)
    ]
    lattice = {"metadata": {"name": "flow"}, "transport_graph": {"nodes": listed}}
    return json.dumps({"lattice": lattice}).encode()


def resume(dispatch_id, address):
    words = [dispatch_id, "--covalent", address]
    return CliRunner().invoke(resume_dispatches, words, catch_exceptions=False).output


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
    assert resume("d/1", address) == (
        "d/1 (flow): 2 unfinished tasks\n"
        "  nodes 3 ran on other executors, which cannot resume them\n"
    )
    assert asked(answering) == [
        f"/api/v2/dispatches/d%2F1/electrons/{number}/job" for number in (0, 2)
    ]


def test_finished_dispatch_queries_one_task(answering):
    address = answering(200, manifest(("dask", "COMPLETED"), *[("awsbatch", "COMPLETED")] * 2))
    assert resume("d", address) == "d (flow): 0 unfinished tasks\n"
    assert asked(answering) == ["/api/v2/dispatches/d/electrons/1/job"]


def test_foreign_dispatch_is_left_alone(answering):
    address = answering(200, manifest(("dask", "RUNNING")))
    assert "  nodes 0 ran on other executors" in resume("d", address)
    assert asked(answering) == []


@pytest.mark.parametrize(
    "body", [b"[]", b"1", b"null", b'{"lattice": {}}', b'{"lattice": {"metadata": 1}}']
)
def test_response_of_other_format_is_rejected(answering, body):
    with pytest.raises(FarcallError, match="is not a Covalent 0.240 server"):
        resume("d", answering(200, body))
    assert asked(answering) == []
