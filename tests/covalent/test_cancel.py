"""A task ends whenever and wherever its owner says so, and nothing else does."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import time
import urllib.request

import boto3
import covalent as ct
import pytest

from farcall.cli.demos.covalent_server import CovalentServer
from tests.support.commands import FARCALL
from tests.support.patience import PATIENCE_S, until
from tests.support.proxy import Proxy, lose_reasons

UNDER_WAY = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")


@pytest.fixture(scope="module")
def aws(embedded):
    return embedded


@pytest.fixture(scope="module")
def proxy(aws):
    with Proxy(aws.endpoint_url) as running:
        yield running


@pytest.fixture
def counting(proxy):
    proxy.counts.clear()
    return proxy


@pytest.fixture(autouse=True)
def client(aws, monkeypatch):
    """Batch; when the test ends nothing runs there any more."""
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)
    found = boto3.client("batch")
    yield found
    aws.configure(delays={})
    until(lambda: not under_way(found))


def under_way(client, *states):
    """List the jobs that have not ended; of an array the parent."""
    return [
        job["jobId"]
        for state in states or UNDER_WAY
        for job in client.list_jobs(jobQueue="farcall-local", jobStatus=state)["jobSummaryList"]
    ]


@pytest.fixture
def batch(client, proxy):
    """Make an executor for small jobs: ``batch(**options)``."""
    small = {"vcpu": 1, "memory": 1, "linger_s": 0.02, "poll_freq": 1, "endpoint_url": proxy.url}
    return lambda **options: ct.executor.AWSBatchExecutor(**{**small, **options})


class Folder:
    """How a test and its tasks talk: each task leaves its job's ID there, and waits for a word."""

    def __init__(self, path):
        self.path = path

    def task(self, executor, name="work"):
        """Make an electron that waits until it is let go, and tells how it is stopped."""
        path = self.path

        def work(number=0, *_):
            print(f"task {number} begins", flush=True)
            mark = path / f".{number}"
            mark.write_text(os.environ["AWS_BATCH_JOB_ID"])
            mark.rename(path / f"job-{number}")
            try:
                while not any((path / word).exists() for word in ("go", f"go-{number}")):
                    time.sleep(0.02)
            except KeyboardInterrupt as error:
                time.sleep(0.3)
                print(f"task {number} cleans up: {type(error).__name__}")
                raise
            return number

        work.__name__ = name
        return ct.electron(work, executor=executor)

    def let_go(self, *numbers):
        for word in [f"go-{number}" for number in numbers] or ["go"]:
            (self.path / word).touch()

    def jobs(self, *numbers):
        """Wait until tasks run; return the IDs of their jobs."""
        marks = [self.path / f"job-{number}" for number in numbers]
        until(lambda: all(mark.exists() for mark in marks))
        return [mark.read_text() for mark in marks]


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    return Folder(path)


def detail(client, job_id):
    (found,) = client.describe_jobs(jobs=[job_id])["jobs"]
    return found


def cancel_by_rest(server, dispatch_id, nodes):
    request = urllib.request.Request(
        f"{server.address}/api/v2/dispatches/{dispatch_id}/status",
        json.dumps({"status": "CANCELLED", "task_ids": nodes}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert 202 == answer.status


def cancel_by_command(job_id):
    done = subprocess.run([FARCALL, "cancel", job_id], capture_output=True, text=True, check=True)
    assert f"{job_id} was RUNNING and is being ended\n" == done.stdout


@pytest.fixture
def cancel(server, client):
    """Cancel node 0 of a dispatch, whose job is known: ``cancel(way, dispatch_id, job_id)``."""
    ways = {
        "dispatch": lambda dispatch_id, _: ct.cancel(dispatch_id),
        "task": lambda dispatch_id, _: ct.cancel(dispatch_id, task_ids=[0]),
        "rest": lambda dispatch_id, _: cancel_by_rest(server, dispatch_id, [0]),
        "command": lambda _, job_id: cancel_by_command(job_id),
        "console": lambda _, job_id: client.terminate_job(jobId=job_id, reason="mine to end"),
        "withdrawn": lambda _, job_id: client.cancel_job(jobId=job_id, reason="mine to end"),
    }
    return lambda way, dispatch_id, job_id: ways[way](dispatch_id, job_id)


# --- one task, at each moment --------------------------------------------------------------------


@pytest.mark.parametrize("way", ["dispatch", "task", "rest", "command", "console"])
def test_a_running_task_is_stopped_and_its_output_kept(
    dispatch, wait, node, batch, folder, client, cancel, way
):
    work = folder.task(batch(retry_attempts=3))

    @ct.lattice
    def flow():
        return work(0)

    started = dispatch(flow)
    (job_id,) = folder.jobs(0)
    cancel(way, started, job_id)

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    found = node(result, 0)
    assert "CANCELLED" == found.status
    assert "task 0 begins\ntask 0 cleans up: TaskTerminated\n" == found.stdout
    assert "JobCancelledError: the job was cancelled" in found.error
    assert job_id in found.error
    until(lambda: "FAILED" == detail(client, job_id)["status"])
    assert 1 == len(detail(client, job_id)["attempts"])


@pytest.mark.parametrize("way", ["dispatch", "task", "rest", "command"])
def test_it_was_cancelled_also_on_a_batch_that_loses_why(
    dispatch, wait, node, batch, folder, aws, cancel, way
):
    with Proxy(aws.endpoint_url) as lossy:
        lose_reasons(lossy)
        work = folder.task(batch(endpoint_url=lossy.url, linger_s=1))

        @ct.lattice
        def flow():
            return [work(0), work(1)]

        started = dispatch(flow)
        (job_id, _) = folder.jobs(0, 1)
        cancel(way, started, job_id)
        until(lambda: node(ct.get_result(started), 0).status == "CANCELLED")
        folder.let_go()

        result = wait(started)
    assert ct.status.CANCELLED == result.status
    first, second = (node(result, number) for number in _nodes(result))
    assert "CANCELLED" == first.status
    assert "JobCancelledError: the job was cancelled" in first.error
    assert ("CANCELLED" if way == "dispatch" else "COMPLETED") == second.status


@pytest.mark.parametrize("way", ["task", "console", "withdrawn"])
def test_a_task_that_waits_for_a_place_never_begins(
    dispatch, wait, node, batch, folder, client, aws, cancel, way
):
    aws.configure(delays={"RUNNABLE": 600})
    work = folder.task(batch())

    @ct.lattice
    def flow():
        return work(0)

    started = dispatch(flow)
    (job_id,) = until(lambda: under_way(client, "RUNNABLE"))
    cancel(way, started, job_id)

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    assert ("CANCELLED", "") == (node(result, 0).status, node(result, 0).stdout)
    assert [] == list(folder.path.iterdir())


@pytest.mark.parametrize("nodes", [None, [0]])
def test_a_task_that_is_being_gathered_becomes_no_job(dispatch, wait, node, batch, aws, nodes):
    with Proxy(aws.endpoint_url) as counting:
        # A session of its own, whose first request says that the task has come.
        @ct.electron(executor=batch(linger_s=60, endpoint_url=counting.url))
        def work():
            return 1

        @ct.lattice
        def flow():
            return work()

        started = dispatch(flow)
        until(lambda: counting.of("batch"))
        ct.cancel(started, task_ids=nodes)

        result = wait(started)
        assert ct.status.CANCELLED == result.status
        assert "CANCELLED" == node(result, 0).status
        assert 0 == counting.counts["batch submitjob"]
        assert 0 == counting.counts["s3 PUT bundles"]


def test_a_task_whose_turn_has_not_come_never_gets_one(
    dispatch, wait, node, batch, folder, counting
):
    work = folder.task(batch())

    @ct.lattice
    def flow():
        return work(1, work(0))

    started = dispatch(flow)
    folder.jobs(0)
    graph = ct.get_result(started).lattice.transport_graph._graph
    ends = {number: graph.nodes[number]["name"] for number in graph.nodes}
    (second,) = [number for number, name in ends.items() if name == "work" and number != 0]
    ct.cancel(started, task_ids=[second])
    folder.let_go()

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    assert ["COMPLETED", "CANCELLED"] == [node(result, number).status for number in (0, second)]
    assert 1 == counting.counts["batch submitjob"]


def test_a_task_that_has_just_ended_stays_as_it_is(
    dispatch, wait, node, batch, folder, client, aws, counting
):
    # Batch takes its time to notice that the container has ended.
    aws.configure(delays={"RUNNING": 6})
    first, second = folder.task(batch(), "first"), folder.task(batch(), "second")

    @ct.lattice
    def flow():
        return first(0), second(1)

    started = dispatch(flow)
    (job_id, _) = folder.jobs(0, 1)
    folder.let_go(0)
    until(lambda: node(ct.get_result(started), 0).status == "COMPLETED")
    assert "RUNNING" == detail(client, job_id)["status"]
    ct.cancel(started)

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    assert 0 == node(result, 0).output
    assert ["COMPLETED", "CANCELLED"] == sorted(
        (one.status for one in [node(result, 0), *_named(result, node, "second")]), reverse=True
    )
    assert 1 == counting.counts["batch terminatejob"]
    ct.cancel(started)
    assert "COMPLETED" == node(ct.get_result(started), 0).status
    until(lambda: "SUCCEEDED" == detail(client, job_id)["status"])


def _named(result, node, name):
    graph = result.lattice.transport_graph._graph
    return [one for one in (node(result, number) for number in graph.nodes) if one.name == name]


def test_cancelling_again_changes_nothing(dispatch, wait, node, batch, folder, counting):
    work = folder.task(batch())

    @ct.lattice
    def flow():
        return work(0)

    started = dispatch(flow)
    folder.jobs(0)
    for _ in range(3):
        ct.cancel(started, task_ids=[0])
    ct.cancel(started)

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    found = node(result, 0)
    assert "task 0 begins\ntask 0 cleans up: TaskTerminated\n" == found.stdout

    asked = counting.counts["batch terminatejob"]
    ct.cancel(started)
    assert asked <= 4
    assert asked == counting.counts["batch terminatejob"]
    assert found == node(wait(started), 0)


def test_a_function_that_goes_on_cleaning_up_is_waited_for(dispatch, wait, node, batch, tmp_path):
    begun = tmp_path / "begun"

    @ct.electron(executor=batch())
    def save():
        try:
            begun.touch()
            time.sleep(600)  # until the test ends it
        except KeyboardInterrupt:
            for number in range(4):
                print("saved", number, flush=True)
                time.sleep(0.5)
            return "saved"

    @ct.lattice
    def flow():
        return save()

    started = dispatch(flow)
    until(begun.exists)
    ct.cancel(started)

    found = node(wait(started), 0)
    assert ("CANCELLED", None) == (found.status, found.output)
    assert "saved 0\nsaved 1\nsaved 2\nsaved 3\n" == found.stdout


# --- one of several ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["covalent", "command"])
def test_a_child_of_an_array_ends_alone(
    dispatch, wait, node, batch, folder, client, counting, way
):
    work = folder.task(batch(linger_s=2))

    started = dispatch(several(work, 3))
    jobs = folder.jobs(0, 1, 2)
    parent = jobs[0].partition(":")[0]
    assert {f"{parent}:{index}" for index in range(3)} == set(jobs)
    number = _nodes(ct.get_result(started))
    if way == "covalent":
        ct.cancel(started, task_ids=[number[1]])
    else:
        cancel_by_command(jobs[1])
    until(lambda: node(ct.get_result(started), number[1]).status == "CANCELLED")
    until(lambda: 1 == len(_children(client, parent, "FAILED")))
    assert 2 == len(_children(client, parent, "RUNNING"))
    folder.let_go()

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    ends = [node(result, number[index]) for index in range(3)]
    assert ["COMPLETED", "CANCELLED", "COMPLETED"] == [one.status for one in ends]
    assert [0, None, 2] == [one.output for one in ends]
    assert "task 1 cleans up" in ends[1].stdout
    assert "cleans up" not in ends[0].stdout + ends[2].stdout
    asked = counting.counts["batch terminatejob"]  # by the server; the command asks by itself
    assert asked == 1 if way == "covalent" else asked <= 1


def several(work, count):
    """Return a lattice of so many electrons that do not wait for each other."""

    @ct.lattice
    def flow():
        for number in range(count):
            work(number)

    return flow


def _nodes(result):
    """Return the numbers of the electrons that `Folder.task` made, in their order."""
    graph = result.lattice.transport_graph._graph
    return [number for number in sorted(graph.nodes) if graph.nodes[number]["name"] == "work"]


def _children(client, parent, status):
    return client.list_jobs(arrayJobId=parent, jobStatus=status)["jobSummaryList"]


def test_an_array_that_is_ended_as_a_whole_cancels_its_tasks(
    dispatch, wait, node, batch, folder, client
):
    work = folder.task(batch(linger_s=2))

    started = dispatch(several(work, 3))
    parent = folder.jobs(0, 1, 2)[0].partition(":")[0]
    client.terminate_job(jobId=parent, reason="all of it")

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    ends = [node(result, number) for number in _nodes(result)]
    assert {"CANCELLED"} == {one.status for one in ends}
    assert all("cleans up" in one.stdout for one in ends)
    assert all("all of it" in one.error for one in ends)


def test_other_tasks_of_the_dispatch_go_on(dispatch, wait, node, batch, folder, counting):
    one, other = folder.task(batch()), folder.task(batch(memory=2))

    @ct.electron
    def here(value):
        return value + 1

    @ct.lattice
    def flow():
        one(0)
        return here(other(1))

    started = dispatch(flow)
    folder.jobs(0, 1)
    ct.cancel(started, task_ids=[0])
    until(lambda: node(ct.get_result(started), 0).status == "CANCELLED")
    folder.let_go()

    result = wait(started)
    found = [node(result, number) for number in _nodes(result)]
    assert [("CANCELLED", None), ("COMPLETED", 1)] == [(one.status, one.output) for one in found]
    assert [2] == [one.output for one in _named(result, node, "here")]
    assert 1 == counting.counts["batch terminatejob"]


@pytest.mark.parametrize("of", ["first", "last"])
def test_the_nodes_of_a_packed_task_group_end_together(
    dispatch, wait, node, batch, folder, counting, packing, of
):
    work = folder.task(batch())

    @ct.lattice
    def flow(one):
        made = work(0, [one])
        return made[0]

    started = dispatch(flow, 1)
    folder.jobs(0)
    graph = ct.get_result(started).lattice.transport_graph._graph
    groups = {number: graph.nodes[number]["task_group_id"] for number in graph.nodes}
    (work_node,) = _nodes(ct.get_result(started))
    members = sorted(n for n, group in groups.items() if group == groups[work_node])
    assert len(members) >= 3
    ct.cancel(started, task_ids=[members[0] if of == "first" else members[-1]])

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    assert {"CANCELLED"} == {node(result, number).status for number in members}
    assert "task 0 cleans up: TaskTerminated" in node(result, work_node).stdout
    assert 1 == counting.counts["batch submitjob"]
    assert 1 == counting.counts["batch terminatejob"]


# --- whole dispatches ----------------------------------------------------------------------------


@pytest.mark.slow
def test_sixty_tasks_are_cancelled_with_few_requests(
    dispatch, wait, node, batch, folder, client, counting
):
    work = folder.task(batch(linger_s=1))

    @ct.lattice
    def flow():
        for _ in range(60):
            work()  # each argument would be a node more

    started = dispatch(flow)
    sizes = {}

    def all_submitted():
        for job_id in under_way(client):
            if job_id not in sizes:
                array = detail(client, job_id).get("arrayProperties", {})
                sizes[job_id] = array.get("size", 1)
        return sum(sizes.values()) == 60

    until(all_submitted)
    folder.jobs(0)
    ct.cancel(started)

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    assert {"CANCELLED"} == {node(result, number).status for number in _nodes(result)}
    assert len(sizes) == counting.counts["batch submitjob"]
    ended = sum(counting.counts[f"batch {name}"] for name in ("terminatejob", "terminatejobs"))
    assert 1 <= ended <= len(sizes) < 30


def test_what_has_ended_costs_no_request(dispatch, wait, node, batch, folder, counting):
    work = folder.task(batch(linger_s=1.5))

    started = dispatch(several(work, 6))
    folder.jobs(*range(6))
    folder.let_go(*range(5))
    numbers = _nodes(ct.get_result(started))

    def ends():
        result = ct.get_result(started)
        return [node(result, number).status for number in numbers]

    until(lambda: 5 == ends().count("COMPLETED"))
    ct.cancel(started)

    assert ct.status.CANCELLED == wait(started).status
    assert [*5 * ["COMPLETED"], "CANCELLED"] == ends()
    assert 1 == counting.counts["batch terminatejob"]


def test_what_is_left_of_an_array_ends_with_one_request(
    dispatch, wait, node, batch, folder, counting
):
    work = folder.task(batch(linger_s=2))

    started = dispatch(several(work, 4))
    jobs = folder.jobs(*range(4))
    folder.let_go(0)
    until(lambda: node(ct.get_result(started), 0).status == "COMPLETED")
    ct.cancel(started)

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    ends = [node(result, number).status for number in _nodes(result)]
    assert ["COMPLETED", *3 * ["CANCELLED"]] == ends
    assert len({job.partition(":")[0] for job in jobs}) == counting.counts["batch submitjob"]
    # One request an array, or one for those of two jobs that a busy machine has made of them.
    ended = sum(counting.counts[f"batch {name}"] for name in ("terminatejob", "terminatejobs"))
    assert 1 <= ended <= counting.counts["batch submitjob"]


def test_a_sublattice_is_cancelled_with_its_dispatch(server, dispatch, wait, node, batch, folder):
    former = _dispatches(server)
    work = folder.task(batch())

    @ct.electron(executor=batch())
    @ct.lattice(executor=batch(), workflow_executor="local")
    def inner(number):
        return work(number)

    @ct.lattice(executor=batch(), workflow_executor=batch())
    def flow():
        return inner(0)

    started = dispatch(flow)
    folder.jobs(0)
    ct.cancel(started)

    result = wait(started)
    assert ct.status.CANCELLED == result.status
    (found,) = _named(result, node, ":sublattice:inner")
    assert "CANCELLED" == found.status
    (inside,) = _dispatches(server) - former - {started}
    result = wait(inside)
    assert ct.status.CANCELLED == result.status
    assert "task 0 cleans up: TaskTerminated" in _named(result, node, "work")[0].stdout


def _dispatches(server):
    url = f"{server.address}/api/v2/dispatches?count=1000"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return {each["dispatch_id"] for each in json.load(answer)["dispatches"]}


# --- before Covalent knows the job ---------------------------------------------------------------

#: Runs in the server before anything else: submissions wait while a file is there.
HOLDING = """
    import asyncio, importlib.abc, importlib.util, sys
    from pathlib import Path

    FOLDER = Path({folder!r})

    async def held(name):
        (FOLDER / f"at-{{name}}").touch()
        while (FOLDER / f"hold-{{name}}").exists():
            await asyncio.sleep(0.02)

    def hold(groups):
        submit = groups.submit

        async def submit_slowly(self, *args):
            await held("before")
            job_id = await submit(self, *args)
            await held("after")
            return job_id

        groups.submit = submit_slowly

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != "farcall.covalent.task_groups":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            execute = spec.loader.exec_module

            def execute_and_hold(module):
                execute(module)
                hold(module.TaskGroups)

            spec.loader.exec_module = execute_and_hold
            return spec

    sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(scope="module")
def holding(aws, tmp_path_factory):
    """A server whose submissions can be held, and the folder of the files that do it."""
    folder = tmp_path_factory.mktemp("holding")
    code = textwrap.dedent(HOLDING).format(folder=str(folder))
    (folder / "sitecustomize.py").write_text(code)
    environment = aws.environment | {"PYTHONPATH": str(folder)}
    with CovalentServer(folder / "server", environment) as server:
        yield server, folder


@pytest.mark.parametrize("nodes", [None, [0]])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_cancel_is_not_lost_before_the_job_is_known(
    holding, dispatch, wait, node, batch, folder, counting, moment, nodes
):
    server, signs = holding
    work = folder.task(batch())

    @ct.lattice(executor="local", workflow_executor="local")
    def flow():
        return work(0)

    hold, at = signs / f"hold-{moment}", signs / f"at-{moment}"
    at.unlink(missing_ok=True)
    hold.touch()
    try:
        started = dispatch(flow, server=server)
        until(at.exists)
        if moment == "after":
            folder.jobs(0)
        ct.cancel(started, task_ids=nodes, dispatcher_addr=server.address)
        if moment == "after":
            until(lambda: counting.counts["batch terminatejob"])
    finally:
        hold.unlink()

    result = wait(started, server=server)
    assert ct.status.CANCELLED == result.status
    found = node(result, 0)
    assert "CANCELLED" == found.status
    if moment == "before":
        assert 0 == counting.counts["batch submitjob"]
    else:
        assert "task 0 begins\ntask 0 cleans up: TaskTerminated\n" == found.stdout
