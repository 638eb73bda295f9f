"""Which node a function runs on, and where the main one is."""

from __future__ import annotations

import subprocess
import sys

import pytest

import farcall_runtime
from farcall_runtime import nodes
from tests.unit.fakes import RUNTIME_ROOT

INDEX, COUNT = "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"
ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


def test_outside_of_jobs_it_is_the_only_one():
    node = farcall_runtime.node()
    assert node == (0, 1, "127.0.0.1")
    assert node.is_main


def test_a_job_of_one_node_has_no_others(monkeypatch):
    monkeypatch.setenv(COUNT, "1")
    monkeypatch.setenv(INDEX, "0")
    assert farcall_runtime.node() == farcall_runtime.Node(0, 1, "127.0.0.1")


def test_batch_s_variables_say_which_one_it_is(monkeypatch):
    monkeypatch.setenv(COUNT, "4")
    monkeypatch.setenv(INDEX, "2")
    monkeypatch.setenv(ADDRESS, "10.0.0.7")
    node = farcall_runtime.node()
    assert (node.index, node.count, node.main_address) == (2, 4, "10.0.0.7")
    assert not node.is_main


def test_the_main_node_s_processes_are_told_its_address_too():
    environment = {COUNT: "2", INDEX: "0", "FARCALL_BUCKET_URL": "http://127.0.0.1:4566/bucket"}
    nodes.tell_address(environment)
    assert environment[ADDRESS] == "127.0.0.1"  # of those by which that one is reached


def test_what_batch_says_of_the_main_node_is_kept():
    environment = {COUNT: "2", INDEX: "1", ADDRESS: "10.0.0.7"}
    nodes.tell_address(environment)
    assert environment[ADDRESS] == "10.0.0.7"


def own(index, address, count="3"):
    """Return variables as a platform sets them that is not Batch."""
    return {
        "FARCALL_NODE_COUNT": count,
        "FARCALL_NODE_INDEX": index,
        "FARCALL_MAIN_ADDRESS": address,
        "FARCALL_BUCKET_URL": "http://127.0.0.1:4566/bucket",
    }


def told(environment):
    nodes.tell_address(environment)
    return environment["FARCALL_MAIN_ADDRESS"]


def test_a_name_becomes_the_address_that_it_has():
    assert told(own("1", "localhost")) == "127.0.0.1"
    assert told(own("2", "10.0.0.7")) == "10.0.0.7"


def test_the_main_node_asks_nobody_for_its_own_name(monkeypatch):
    monkeypatch.setattr(nodes.socket, "gethostbyname", pytest.fail)
    assert told(own("0", "job-0.farcall-nodes")) == "127.0.0.1"


def test_a_name_is_waited_for_and_stays_where_it_never_comes(monkeypatch):
    asked, slept = [], []

    def resolve(name):
        asked.append(name)
        if len(asked) < 3:
            raise OSError("no such name yet")
        return "10.0.0.7"

    monkeypatch.setattr(nodes.time, "sleep", slept.append)
    monkeypatch.setattr(nodes.socket, "gethostbyname", resolve)
    assert told(own("1", "job-0.farcall-nodes")) == "10.0.0.7"
    assert len(slept) == 2
    monkeypatch.setattr(nodes, "_NAMED_S", 0.0)
    asked.clear()
    assert told(own("1", "job-0.farcall-nodes")) == "job-0.farcall-nodes"


def test_a_job_of_one_node_is_told_nothing():
    environment = {COUNT: "1"}
    nodes.tell_address(environment)
    assert environment == {COUNT: "1"}


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:4566", "http://127.0.0.1", "file:///x"])
def test_where_the_bucket_is_on_this_machine_so_are_all_nodes(endpoint):
    assert nodes.own_address(endpoint) == "127.0.0.1"


def test_an_endpoint_that_tells_no_address_counts_for_nothing():
    assert nodes.own_address("http://[::1]:80") == nodes.own_address()


def test_without_a_network_the_address_is_this_machine_s_own(monkeypatch):
    def refuse(*_):
        raise OSError("no network")

    monkeypatch.setattr(nodes.socket.socket, "connect", refuse)
    assert nodes.own_address("http://127.0.0.1:4566") == "127.0.0.1"


def test_the_package_itself_imports_none_of_it():
    code = "import sys, farcall_runtime; print('farcall_runtime.nodes' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(RUNTIME_ROOT)},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"False\n"
