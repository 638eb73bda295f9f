"""Electrons as Batch jobs: what a lattice may be made of, and what it costs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pathlib
import random
import re
import sys
import time
import urllib.request

import boto3
import covalent as ct
import numpy as np
import pytest

from tests.support.patience import PATIENCE_S, until
from tests.support.proxy import Proxy

MIB = 1 << 20
SHORTEST_PAUSE_S = 0.15  # between two questions about a job: farcall.engine.status_poller


@pytest.fixture
def batch(embedded, monkeypatch):
    """Make an executor for small jobs: ``batch(**options)``."""
    for name, value in embedded.environment.items():
        monkeypatch.setenv(name, value)
    small = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02, "poll_freq": 1}
    return lambda **options: ct.executor.AWSBatchExecutor(**{**small, **options})


@pytest.fixture
def counting(embedded):
    with Proxy(embedded.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def client(batch, embedded):
    """Make a client of the embedded AWS: ``client("batch")``."""
    return boto3.client


@pytest.fixture
def nodes(node):
    """Read all electrons of a result: by number, by name, or all."""

    def read(result, name=None):
        numbers = sorted(result.lattice.transport_graph._graph.nodes)
        found = {number: node(result, number) for number in numbers}
        return {n: one for n, one in found.items() if name in (None, one.name)}

    return read


# --- executors -----------------------------------------------------------------------------------


def test_an_electron_runs_on_batch_with_the_executor_as_an_object(run, node, batch):
    @ct.electron(executor=batch())
    def add(left, right):
        print(f"{left} and {right}")
        print("careful", file=sys.stderr)
        return left + right, os.environ["AWS_BATCH_JOB_ID"]

    @ct.lattice
    def flow(one):
        return add(one, right=2)

    result = run(flow, 1)
    assert ct.status.COMPLETED == result.status
    value, job_id = result.result
    assert (3, 36) == (value, len(job_id))
    assert ("add", "COMPLETED", "", "1 and 2\n", "careful\n") == node(result, 0)[:5]


def test_an_electron_runs_on_batch_with_the_executor_by_name(run, server):
    @ct.electron(executor="awsbatch")
    def where():
        return os.environ["AWS_BATCH_JQ_NAME"]

    @ct.lattice
    def flow():
        return where()

    result = run(flow)
    assert "farcall-local" == result.result
    # Covalent stores nothing of such an executor, and its page shows the first options.
    url = f"{server.address}/api/v1/dispatches/{result.dispatch_id}/electron/0/details/executor"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        shown = json.load(answer)["executor_details"]["attributes"]
    assert ("page_url", "http://127.0.0.1:8750") == next(iter(shown.items()))
    assert "farcall-local" == shown["batch_queue"]


def test_a_lattices_executor_is_that_of_its_electrons(run):
    @ct.electron
    def where():
        return os.environ["AWS_BATCH_JQ_NAME"]

    @ct.lattice(executor="awsbatch")
    def flow():
        return where()

    assert "farcall-local" == run(flow).result


def test_a_workflow_executor_on_batch_does_arithmetic_and_sums_up(run, batch):
    @ct.electron(executor=batch())
    def give(value):
        return value

    @ct.lattice(executor=batch(), workflow_executor=batch())
    def flow(value):
        return {"sum": give(value) + give(2), "list": [give(value)]}

    assert {"sum": 5, "list": [3]} == run(flow, 3).result


def test_two_executors_with_different_resources_run_in_one_lattice(run, batch, client):
    def work():
        return os.environ["AWS_BATCH_JOB_ID"]

    small = ct.electron(work, executor=batch())
    large = ct.electron(work, executor=batch(vcpu=2, memory=2.5, time_limit=120))

    @ct.lattice
    def flow():
        return small(), large()

    jobs = client("batch").describe_jobs(jobs=list(run(flow).result))["jobs"]
    found = {
        (
            *(each["value"] for each in job["container"]["resourceRequirements"]),
            job["timeout"]["attemptDurationSeconds"],
        )
        for job in jobs
    }
    assert {("1", "1024", 300), ("2", "2560", 120)} == found


def test_two_executors_with_different_regions_run_in_one_lattice(run, batch, client, counting):
    client("s3").create_bucket(Bucket="another-bucket")
    here = batch(endpoint_url=counting.url)
    there = batch(
        endpoint_url=counting.url,
        region="eu-west-1",
        s3_bucket_name="another-bucket",
        batch_job_log_group_name="",
    )

    def work(value):
        return [*value, 1]

    first, second = ct.electron(work, executor=here), ct.electron(work, executor=there)

    @ct.lattice
    def flow(value):
        return first(second(first(value)))

    assert [1, 1, 1] == run(flow, []).result
    assert 2 == counting.regions["us-east-1 batch submitjob"]
    assert 1 == counting.regions["eu-west-1 batch submitjob"]
    assert 1 == counting.regions["eu-west-1 s3 PUT bundles"]


# --- what Covalent adds by itself ----------------------------------------------------------------


def test_collections_among_the_arguments_start_no_job(run, batch, counting):
    @ct.electron(executor=batch(endpoint_url=counting.url))
    def give(value):
        return value

    @ct.electron(executor=batch(endpoint_url=counting.url))
    def look(*values, **named):
        return repr(values), repr(named)

    @ct.lattice
    def flow(one):
        a = give(one)
        return look([a, 2], (3, a), {4}, {"x": a, "y": [a, {"z": a}]}, [], {}, keys=[a])

    values, named = run(flow, 1).result
    assert "([1, 2], [3, 1], [4], {'x': 1, 'y': [1, {'z': 1}]}, [], {})" == values
    assert "{'keys': [1]}" == named
    assert 2 == counting.counts["batch submitjob"]


def test_a_collections_node_has_its_value_and_text(run, batch, nodes):
    @ct.electron(executor=batch())
    def total(values, more):
        return sum(values) + sum(more.values())

    @ct.lattice
    def flow(one):
        return total([one, 2], {"a": one})

    result = run(flow, 3)
    assert 8 == result.result
    # Covalent makes lists of a dict's keys and values, too.
    lists = nodes(result, ":electron_list:")
    values = [[3, 2], ["a"], [3]]
    assert [("COMPLETED", "", value) for value in values] == [*map(_ended, lists.values())]
    (made,) = nodes(result, ":electron_dict:").values()
    assert ("COMPLETED", "", {"a": 3}) == _ended(made)
    assert "[3, 2]" == result.get_node_result(min(lists))["output"].object_string


def _ended(one):
    return one.status, one.error, one.output


def test_a_function_of_the_users_with_the_name_of_a_collection_runs_on_batch(run, batch):
    def _auto_list_node(*values):
        return [os.environ["AWS_BATCH_JQ_NAME"], *values]

    mine = ct.electron(_auto_list_node, executor=batch())

    @ct.lattice
    def flow(one):
        return mine(one)

    assert ["farcall-local", 1] == run(flow, 1).result


def test_odd_names_are_names_of_jobs(run, batch, nodes, client):
    @ct.electron(executor=batch())
    def load():
        return {"a b": complex(3, 4)}, 2

    @ct.electron(executor=batch())
    def größe(value):
        return value + 1

    def tell(value):
        return value, os.environ["AWS_BATCH_JOB_ID"]

    tell.__name__ = "tell it/to:everybody " * 10
    tell = ct.electron(tell, executor=batch())

    @ct.lattice
    def flow():
        data = load()
        one, two = data
        return tell(größe(one["a b"].imag)), two

    result = run(flow)
    (value, job_id), two = result.result
    assert (5, 2) == (value, two)
    assert nodes(result, ":load()[0]")
    (job,) = client("batch").describe_jobs(jobs=[job_id])["jobs"]
    assert job["jobName"].startswith("tell")


def test_a_sublattice_is_built_beside_the_server_and_its_electrons_run_on_batch(
    run, batch, counting
):
    on_batch = batch(endpoint_url=counting.url)

    @ct.electron(executor=on_batch)
    def double(value):
        return 2 * value, os.environ["AWS_BATCH_JQ_NAME"]

    @ct.electron
    @ct.lattice
    def inner(value):
        return double(value)

    @ct.electron(executor=on_batch)
    def tell(pair):
        return [*pair]

    # The sublattice's graph is built on what the outer lattice has for a workflow executor.
    @ct.lattice(workflow_executor=on_batch)
    def flow(value):
        return tell(inner(value))

    assert [6, "farcall-local"] == run(flow, 3).result
    # The two electrons; what builds and sums up both lattices runs beside the server.
    assert 2 == counting.counts["batch submitjob"]


def test_a_sublattice_on_the_local_executor_has_electrons_on_batch(run, batch):
    @ct.electron(executor=batch())
    def where(value):
        return value, os.environ["AWS_BATCH_JQ_NAME"]

    @ct.electron
    @ct.lattice
    def inner(value):
        return [where(value), where(value + 1)]

    @ct.lattice
    def flow(value):
        return inner(value)

    assert [(1, "farcall-local"), (2, "farcall-local")] == run(flow, 1).result


def test_a_failed_sublattice_fails_its_node(run, batch, nodes, node):
    @ct.electron(executor=batch())
    def fail():
        raise ValueError("no good")

    @ct.electron
    @ct.lattice
    def inner():
        return fail()

    @ct.lattice(workflow_executor="awsbatch")
    def flow():
        return inner()

    result = run(flow)
    assert ct.status.FAILED == result.status
    assert "FAILED" == nodes(result)[0].status
    assert "ValueError: no good" in node(result.get_node_result(0)["sublattice_result"], 0).error


# --- task groups ---------------------------------------------------------------------------------


def test_packed_nodes_run_in_one_job_without_covalent(run, batch, nodes, counting, packing):
    @ct.electron(executor=batch(endpoint_url=counting.url))
    def make(values, named):
        print("made", values, named)
        loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "covalent")
        return {"sum": sum(values) + named["x"], "loaded": loaded}

    @ct.lattice
    def flow(one):
        made = make([one, 2], {"x": one})
        return made["sum"], made["loaded"]

    result = run(flow, 3)
    assert [8, []] == result.result
    assert 1 == counting.counts["batch submitjob"]
    found = nodes(result)
    assert "made [3, 2] {'x': 3}\n" == found.pop(0).stdout
    ended = [_ended(one) for one in found.values()]
    assert ("COMPLETED", "", [3, 2]) in ended
    assert ("COMPLETED", "", {"x": 3}) in ended
    assert "" == "".join(one.stdout + one.stderr + one.error for one in found.values())


def test_packed_nodes_have_their_own_output(run, batch, nodes, packing):
    @ct.electron(executor=batch())
    def make():
        class Talking(dict):
            def __getitem__(self, key):
                print("asked for", key)
                os.write(2, f"asked for {key}\n".encode())
                return super().__getitem__(key)

            def __reduce__(self):
                return Talking, (dict(self),)

        print("making")
        os.write(2, b"making\n")
        return Talking(a=1, b=2)

    @ct.lattice
    def flow():
        made = make()
        return made["a"] + made["b"]

    result = run(flow)
    assert 3 == result.result
    texts = {(one.stdout, one.stderr) for one in nodes(result).values() if one.stdout}
    said = ["making\n", "asked for a\n", "asked for b\n"]
    assert {(text, text) for text in said} == texts


def test_a_failed_member_of_a_packed_group_fails_alone(run, batch, nodes, packing):
    @ct.electron(executor=batch())
    def make():
        print("made")
        return [{"a": 1}]

    @ct.lattice
    def flow():
        made = make()
        return made[0]["a"], made[5]["b"]

    result = run(flow)
    assert ct.status.FAILED == result.status
    made, first, a, failed, left_out = (
        one for one in nodes(result).values() if "make" in one.name or "get_item" in one.name
    )
    assert ["COMPLETED"] * 3 + ["FAILED"] * 2 == [
        one.status for one in (made, first, a, failed, left_out)
    ]
    assert ("made\n", [{"a": 1}], {"a": 1}, 1) == (
        made.stdout,
        made.output,
        first.output,
        a.output,
    )
    assert "IndexError: list index out of range" in failed.error
    assert "farcall_runtime" not in failed.error
    assert re.search("was not run: node [0-9]+, whose value it takes, failed", left_out.error)
    assert "Traceback" not in left_out.error
    assert "" == failed.stdout + failed.stderr + left_out.stdout + left_out.stderr


def test_a_member_that_leaves_fails_its_whole_group_with_a_reason(run, batch, nodes, packing):
    @ct.electron(executor=batch())
    def leave(values):
        print("leaving", flush=True)
        os._exit(3)

    @ct.lattice
    def flow(one):
        return leave([one])

    result = run(flow, 1)
    for name in ("leave", ":electron_list:"):
        (one,) = nodes(result, name).values()
        assert "FAILED" == one.status
        assert "exit code 3" in one.error
        assert "leaving\n" == one.stdout


# --- requests ------------------------------------------------------------------------------------


def test_requests_per_electron_are_few(run, batch, counting):
    @ct.electron(executor=batch(endpoint_url=counting.url, tags={"few": "yes"}))
    def step(value, _):
        return value + 1

    @ct.lattice
    def flow(value):
        for _ in range(3):
            value = step(value, [value])
        return value

    began = time.monotonic()
    assert 3 == run(flow, 0).result
    took_s = time.monotonic() - began
    batch_requests = counting.of("batch")
    assert 3 == batch_requests.pop("submitjob")
    # Once for all: queue and environments are looked at, the definition looked up and registered.
    assert 1 >= batch_requests.pop("registerjobdefinition", 0)
    looks = "describecomputeenvironments", "describejobdefinitions", "describejobqueues"
    assert dict.fromkeys(looks, 1) == {
        name: number for name, number in batch_requests.items() if name != "describejobs"
    }
    # A job that ends soon is never asked for, one that takes longer at its shortest pause.
    assert batch_requests.get("describejobs", 0) <= took_s / SHORTEST_PAUSE_S
    assert {} == counting.of("sts")
    assert 3 == counting.counts["s3 PUT bundles"]
    # One more than there are jobs: the first look, whether outcomes can be seen at all.
    assert 4 == counting.counts["s3 GET outcomes"]

    counting.counts.clear()
    assert 6 == run(flow, 3).result
    assert 3 == counting.of("batch").pop("submitjob")
    assert {} == {
        name: number
        for name, number in counting.of("batch").items()
        if name not in ("submitjob", "describejobs")
    }
    assert {} == counting.of("sts") | counting.of("iam") | counting.of("logs")


@pytest.mark.slow
def test_a_hundred_electrons_run_in_one_lattice(run, batch, counting):
    # Long beside what Covalent takes from one electron to the next, which is a second where the
    # machine is busy: how many jobs these become then depends on no machine's pace.
    @ct.electron(executor=batch(endpoint_url=counting.url, linger_s=10))
    def square(value):
        return value * value

    @ct.lattice
    def flow(count):
        return [square(number) for number in range(count)]

    assert [number * number for number in range(100)] == run(flow, 100).result
    assert counting.counts["batch submitjob"] <= 50
    assert counting.counts["batch describejobs"] <= 50
    assert {} == counting.of("sts")


# --- values --------------------------------------------------------------------------------------


def test_an_async_function_is_an_electron(run, batch):
    @ct.electron(executor=batch())
    async def sleep(value):
        await asyncio.sleep(0.01)
        return value

    @ct.lattice
    def flow(value):
        return sleep(value)

    assert "slept" == run(flow, "slept").result


def test_a_value_is_what_the_function_returned(run, batch):
    values = [None, b"\x00\xff", "\ud800 \u2603", {1: [2, (3,)]}, "", {4}, 1.5, float, _Wrapped]

    @ct.electron(executor=batch())
    def give(wrapped):
        return wrapped.value

    @ct.lattice
    def flow(wrapped):
        return [give(each) for each in wrapped]

    assert values == run(flow, [_Wrapped(value) for value in values]).result


class _Wrapped:
    """Keeps Covalent from looking into a value."""

    def __init__(self, value):
        self.value = value

    def __str__(self):
        return "wrapped"


def test_a_value_and_an_error_are_never_unpickled_in_the_server(run, batch, nodes, tmp_path):
    marks = tmp_path / "marks"

    class Marking:
        def __init__(self, value):
            self.value = value

        def __setstate__(self, state):
            with marks.open("a") as file:
                file.write(f"{os.getpid()}\n")
            self.__dict__.update(state)

    class MarkingError(Marking, Exception):
        pass

    @ct.electron(executor=batch())
    def give(value):
        print(os.getpid())
        return Marking(value.value + 1)

    @ct.electron(executor=batch())
    def take(values):
        print(os.getpid())
        raise MarkingError(values)

    @ct.lattice
    def flow(value):
        given = give(value)
        return take([given]), take({"a": given})

    result = run(flow, Marking(0))
    assert [1] == [one.output.value for one in nodes(result, "give").values()]
    failed = nodes(result, "take").values()
    assert [True, True] == ["MarkingError" in one.error for one in failed]
    jobs = {int(one.stdout) for one in nodes(result).values() if one.stdout}
    assert 3 == len(jobs)
    assert jobs | {os.getpid()} == {int(line) for line in marks.read_text().split()}


def test_large_values_travel(run, batch):
    executor = batch(memory=2)

    @ct.electron(executor=executor)
    def make():
        data = random.randbytes(52 * MIB)  # in base64 more than what goes into one request
        print(hashlib.sha256(data).hexdigest())
        return data

    @ct.electron(executor=executor)
    def measure(data):
        return len(data), hashlib.sha256(data).hexdigest()

    @ct.lattice
    def flow():
        return measure(make())

    result = run(flow)
    assert (52 * MIB, result.get_node_result(0)["stdout"].strip()) == result.result


def test_arrays_travel(run, batch):
    @ct.electron(executor=batch())
    def make(rows):
        return np.arange(100.0 * rows).reshape(rows, 100)

    @ct.electron(executor=batch())
    def turn(array):
        return array.T, "\udce4"

    @ct.lattice(executor="local", workflow_executor="local")
    def flow(rows):
        return turn(make(rows))

    turned, text = run(flow, 300).result
    np.testing.assert_array_equal(np.arange(30_000.0).reshape(300, 100).T, turned)
    assert text == "\udce4"


def test_output_that_is_no_text_can_be_read(run, batch, node):
    @ct.electron(executor=batch())
    def bark():
        os.write(1, b"\xff woof \xc3\xa4\n")

    @ct.lattice(executor="local", workflow_executor="local")
    def flow():
        return bark()

    assert "\ufffd woof \u00e4\n" == node(run(flow), 0).stdout


def test_what_failed_stays_in_the_bucket(run, batch, counting):
    @ct.electron(executor=batch(prefix="failed-here"))
    def work(value):
        return 1 // value

    @ct.lattice(executor="local", workflow_executor="local")
    def flow(value):
        return work(value)

    s3 = boto3.client("s3")

    def stored():
        found = s3.list_objects_v2(Bucket="farcall-local", Prefix="failed-here/")
        return [each["Key"].split("/")[3] for each in found.get("Contents", ())]

    run(flow, 1)
    until(lambda: not stored())
    run(flow, 0)
    time.sleep(2)  # by when the objects of the one before were gone
    assert ["bundles", "outcomes"] == sorted(stored())


def test_a_redispatch_writes_over_nothing(run, wait, server, batch, node, tmp_path):
    @ct.electron(executor=batch())
    def work(path):
        if not pathlib.Path(path).exists():
            print("first output")
            raise ValueError("not yet")
        return "done"

    @ct.lattice(executor="local", workflow_executor="local")
    def flow(path):
        return work(path)

    first = run(flow, str(tmp_path / "now"))
    assert "FAILED" == node(first, 0).status
    (tmp_path / "now").touch()
    again = ct.redispatch(first.dispatch_id, dispatcher_addr=server.address)
    second = wait(again(str(tmp_path / "now")))
    assert ("COMPLETED", "", "") == (
        node(second, 0).status,
        node(second, 0).stdout,
        node(second, 0).error,
    )
    seen = node(wait(first.dispatch_id), 0)
    assert ("FAILED", "first output\n") == (seen.status, seen.stdout)
    assert "ValueError: not yet" in seen.error


def test_a_key_added_while_the_server_runs_harms_no_task(
    dispatch, wait, new_server, embedded, batch
):
    server = new_server(environment=embedded.environment)

    @ct.electron(executor=batch())
    def work():
        time.sleep(2)
        return 1

    @ct.lattice(executor="local", workflow_executor="local")
    def flow():
        return work()

    file = server.home / "config" / "covalent.conf"
    begun = dispatch(flow, server=server)
    text = file.read_text()
    changed = text.replace("[executors.awsbatch]", "[executors.awsbatch]\nmemori = 3", 1)
    assert changed != text
    file.write_text(changed)
    assert 1 == wait(begun, server=server).result
