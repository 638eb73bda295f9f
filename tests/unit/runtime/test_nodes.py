"""The node that a function runs on, and the address of the main node."""

from __future__ import annotations

import subprocess
import sys

import pytest

import farcall_runtime
from farcall_runtime import nodes
from tests.unit.fakes import RUNTIME_ROOT

INDEX, COUNT = "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"
ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


def test_outside_jobs_there_is_one_node():
    node = farcall_runtime.node()
    assert node == (0, 1, "127.0.0.1")
    assert node.is_main


def test_single_node_job_has_no_others(monkeypatch):
    monkeypatch.setenv(COUNT, "1")
    monkeypatch.setenv(INDEX, "0")
    assert farcall_runtime.node() == farcall_runtime.Node(0, 1, "127.0.0.1")


def test_batch_variables_set_the_node(monkeypatch):
    monkeypatch.setenv(COUNT, "4")
    monkeypatch.setenv(INDEX, "2")
    monkeypatch.setenv(ADDRESS, "10.0.0.7")
    node = farcall_runtime.node()
    assert (node.index, node.count, node.main_address) == (2, 4, "10.0.0.7")
    assert not node.is_main


def test_main_node_processes_get_its_address():
    environment = {COUNT: "2", INDEX: "0", "FARCALL_BUCKET_URL": "http://127.0.0.1:4566/bucket"}
    nodes.set_main_address(environment)
    assert environment[ADDRESS] == "127.0.0.1"  # the endpoint is on this machine


def test_address_set_by_batch_is_kept():
    environment = {COUNT: "2", INDEX: "1", ADDRESS: "10.0.0.7"}
    nodes.set_main_address(environment)
    assert environment[ADDRESS] == "10.0.0.7"


def own(index, address, count="3"):
    """Return variables as set by a platform other than Batch."""
    return {
        "FARCALL_NODE_COUNT": count,
        "FARCALL_NODE_INDEX": index,
        "FARCALL_MAIN_ADDRESS": address,
        "FARCALL_BUCKET_URL": "http://127.0.0.1:4566/bucket",
    }


def resolved(environment):
    nodes.set_main_address(environment)
    return environment["FARCALL_MAIN_ADDRESS"]


def test_name_is_resolved_to_its_address():
    assert resolved(own("1", "localhost")) == "127.0.0.1"
    assert resolved(own("2", "10.0.0.7")) == "10.0.0.7"


def test_main_node_does_not_resolve_itself(monkeypatch):
    monkeypatch.setattr(nodes.socket, "gethostbyname", pytest.fail)
    assert resolved(own("0", "job-0.farcall-nodes")) == "127.0.0.1"


def test_name_resolution_is_retried_then_skipped(monkeypatch):
    asked, slept = [], []

    def resolve(name):
        asked.append(name)
        if len(asked) < 3:
            raise OSError("no such name yet")
        return "10.0.0.7"

    monkeypatch.setattr(nodes.time, "sleep", slept.append)
    monkeypatch.setattr(nodes.socket, "gethostbyname", resolve)
    assert resolved(own("1", "job-0.farcall-nodes")) == "10.0.0.7"
    assert len(slept) == 2
    monkeypatch.setattr(nodes, "_NAMED_S", 0.0)
    asked.clear()
    assert resolved(own("1", "job-0.farcall-nodes")) == "job-0.farcall-nodes"


def test_single_node_job_sets_no_address():
    environment = {COUNT: "1"}
    nodes.set_main_address(environment)
    assert environment == {COUNT: "1"}


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:4566", "http://127.0.0.1", "file:///x"])
def test_local_bucket_means_local_address(endpoint):
    assert nodes.own_address(endpoint) == "127.0.0.1"


def test_endpoint_without_address_is_ignored():
    assert nodes.own_address("http://[::1]:80") == nodes.own_address()


def test_without_network_address_is_local(monkeypatch):
    def refuse(*_):
        raise OSError("no network")

    monkeypatch.setattr(nodes.socket.socket, "connect", refuse)
    assert nodes.own_address("http://127.0.0.1:4566") == "127.0.0.1"


def test_package_import_is_lazy():
    code = "import sys, farcall_runtime; print('farcall_runtime.nodes' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(RUNTIME_ROOT)},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"False\n"
