"""A dispatch comes to its end although its server was killed or stopped and started again."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request

import boto3
import covalent as ct
import pytest

import farcall.local
from farcall.cli.demos.covalent_server import CovalentServer
from farcall.covalent import resume as covalent_resume
from tests.support.commands import FARCALL
from tests.support.patience import PATIENCE_S, until
from tests.support.proxy import Proxy, lose_reasons
from tests.support.timing import STREAM_S

pytestmark = pytest.mark.slow  # each starts Covalent servers

UNDER_WAY = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
TIMEOUT_S = PATIENCE_S


class Work:
    """The tasks of one dispatch: each notes that it has run, and waits until it is let go.

    Attributes:
        id: The dispatch, once there is one.
    """

    def __init__(self, path, executor):
        path.mkdir()
        self.path = path
        self.id = ""
        self._executor = executor

    def task(self, *, fail=False):
        path = self.path

        def work(number, *values):
            with (path / f"ran-{number}").open("a") as file:
                file.write(f"{os.environ['AWS_BATCH_JOB_ID']}\n")
            print(f"task {number} begins", flush=True)
            print("careful", file=sys.stderr, flush=True)
            while not any((path / word).exists() for word in ("go", f"go-{number}")):
                time.sleep(0.02)
            if fail:
                raise ValueError(f"task {number} is no good")
            return [number, *values]

        return ct.electron(work, executor=self._executor)

    def begin(self, server, lattice, *args):
        self.id = ct.dispatch(lattice, dispatcher_addr=server.address)(*args)

    def let_go(self, *numbers):
        for word in [f"go-{number}" for number in numbers] or ["go"]:
            (self.path / word).touch()

    def runs(self, number):
        """Return the IDs of the jobs that ran a task, one for each time."""
        mark = self.path / f"ran-{number}"
        return mark.read_text().split() if mark.exists() else []


def nodes_of(result, node, name="work"):
    """Return the electrons of a name, in their order."""
    graph = result.lattice.transport_graph._graph
    found = [node(result, number) for number in sorted(graph.nodes)]
    return [one for one in found if one.name == name]


def states(dispatch_id, server, name="work"):
    """Return the states of the electrons of a name, in their order."""
    manifest = get(server, f"/api/v2/dispatches/{dispatch_id}")
    nodes = manifest["lattice"]["transport_graph"]["nodes"]
    return [n["metadata"]["status"] for n in nodes if n["metadata"]["name"] == name]


def get(server, path):
    with urllib.request.urlopen(f"{server.address}{path}", timeout=PATIENCE_S) as answer:
        return json.load(answer)


def look_at(server, dispatch_id, number):
    """Have Covalent look at one node, as the command does for all."""
    request = urllib.request.Request(
        f"{server.address}/api/v2/dispatches/{dispatch_id}/electrons/{number}/job",
        b'{"resume": true}',
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=PATIENCE_S).close()


def resume(server, *arguments):
    """Run the command as the server's user does."""
    return subprocess.run(
        [FARCALL, "covalent", "resume", *arguments],
        env=os.environ | server.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def under_way(client):
    return [
        job["jobId"]
        for state in UNDER_WAY
        for job in client.list_jobs(jobQueue="farcall-local", jobStatus=state)["jobSummaryList"]
    ]


@pytest.fixture(scope="module")
def aws():
    """An embedded AWS with room for all jobs at once."""
    with farcall.local.start(cpus=16) as running:
        running.configure(stream_s=STREAM_S)
        yield running


@pytest.fixture(scope="module")
def here(aws, tmp_path_factory):
    """The environment of a user of that AWS, and a folder of theirs."""
    folder = tmp_path_factory.mktemp("restart")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in os.environ:
            if name.startswith(("AWS_", "COVALENT_", "FARCALL_")):
                monkeypatch.delenv(name)
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def client(aws, monkeypatch):
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)
    return boto3.client("batch")


def executor(endpoint_url, **options):
    small = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02, "poll_freq": 1}
    return ct.executor.AWSBatchExecutor(**{**small, "endpoint_url": endpoint_url, **options})


# --- killed --------------------------------------------------------------------------------------


class Killed:
    """A server that was killed while it had all kinds of dispatches, and resumed after it."""

    def __init__(self, server, folder, aws, pack_tasks):
        self.server = server
        self.aws = aws
        with Proxy(aws.endpoint_url) as self.early, Proxy(aws.endpoint_url) as self.late:
            usual = executor(aws.endpoint_url)
            self.single = Work(folder / "single", usual)
            self.array = Work(folder / "array", executor(aws.endpoint_url, linger_s=2))
            self.packed = Work(folder / "packed", usual)
            self.halved = Work(folder / "halved", usual)
            self.inner = Work(folder / "inner", usual)
            self.early_work = Work(folder / "early", executor(self.early.url, linger_s=4))
            self._begin(pack_tasks)
            self.ended = Work(folder / "ended", usual)
            self.ended.let_go()
            self._begin_last()
            server.kill()
            self.submitted_early = self.early.counts["batch submitjob"]
            self._go_on_without_server()
            server.start()
            self._receive_half()
            self.first = resume(server)
            # Nothing was received yet, and what is started again has not become a job.
            self.again = list(covalent_resume.resume(address=server.address))
            self._go_on()

    def _begin(self, pack_tasks):
        self._begin_plain()
        with pack_tasks():
            self._begin_packed()
        running = [
            (self.single, ["RUNNING", "NEW_OBJECT"]),
            (self.array, [*3 * ["RUNNING"], "NEW_OBJECT"]),
            (self.packed, ["RUNNING"]),
            (self.halved, ["RUNNING"]),
        ]
        for work, known in running:
            until(lambda work=work, known=known: states(work.id, self.server) == known)
        until(lambda: self.inner.runs(0))
        (self.inner_id,) = self._dispatches() - {work.id for work, _ in running} - {self.inner.id}
        until(lambda: states(self.inner_id, self.server) == ["RUNNING"])
        for work, numbers in ((self.single, [0]), (self.array, range(3)), (self.packed, [0])):
            until(lambda work=work, numbers=numbers: all(map(work.runs, numbers)))
        until(lambda: self.halved.runs(0))

    def _begin_plain(self):
        single, array, inner = (self.single.task(), self.array.task(), self.inner.task())
        fail = self.array.task(fail=True)

        @ct.lattice(executor="local", workflow_executor="local")
        def one():
            return single(1, single(0))

        @ct.lattice(executor="local", workflow_executor="local")
        def several():
            first, _, last = array(0), fail(1), array(2)
            return array(3, first, last)

        @ct.electron
        @ct.lattice(executor="local", workflow_executor="local")
        def sub():
            return inner(0)

        @ct.lattice(executor="local", workflow_executor="local")
        def outer():
            return sub()

        self.single.begin(self.server, one)
        self.array.begin(self.server, several)
        self.inner.begin(self.server, outer)

    def _begin_packed(self):
        for work in (self.packed, self.halved):
            task = work.task()

            @ct.lattice(executor="local", workflow_executor="local")
            def packed(one, task=task):
                made = task(0, [one])
                return [made[0], made[1]]

            work.begin(self.server, packed, 7)

    def _begin_last(self):
        ended, gathered = self.ended.task(), self.early_work.task()

        @ct.lattice(executor="local", workflow_executor="local")
        def over():
            return ended(0)

        @ct.lattice(executor="local", workflow_executor="local")
        def many():
            return gathered(3, *[gathered(number) for number in range(3)])

        self.ended.begin(self.server, over)
        until(lambda: states(self.ended.id, self.server) == ["COMPLETED"])
        self.early_work.let_go()
        self.early_work.begin(self.server, many)
        # Its session's first request says that the first task has come.
        until(lambda: self.early.of("batch"))

    def _dispatches(self):
        found = get(self.server, "/api/v2/dispatches?count=1000")["dispatches"]
        return {each["dispatch_id"] for each in found}

    def _go_on_without_server(self):
        self.single.let_go(0)
        self.array.let_go(0, 1)
        self.halved.let_go()
        client = boto3.client("batch")
        for work, number, end in (
            (self.single, 0, "SUCCEEDED"),
            (self.array, 0, "SUCCEEDED"),
            (self.array, 1, "FAILED"),
            (self.halved, 0, "SUCCEEDED"),
        ):
            (job_id,) = work.runs(number)
            until(
                lambda job_id=job_id, end=end: (
                    end == client.describe_jobs(jobs=[job_id])["jobs"][0]["status"]
                )
            )

    def _receive_half(self):
        """Have one node of a packed group received long before the others."""
        manifest = get(self.server, f"/api/v2/dispatches/{self.halved.id}")
        nodes = manifest["lattice"]["transport_graph"]["nodes"]
        (number,) = [n["id"] for n in nodes if n["metadata"]["name"] == "work"]
        look_at(self.server, self.halved.id, number)
        until(lambda: states(self.halved.id, self.server) == ["COMPLETED"])

    def _go_on(self):
        for work in (self.single, self.array, self.packed, self.inner):
            work.let_go()
        works = (self.single, self.array, self.packed, self.halved, self.inner, self.early_work)
        for work in works:
            deadline = time.monotonic() + TIMEOUT_S
            while "RUNNING" == self.state_of(work.id) and time.monotonic() < deadline:
                time.sleep(0.1)

    def state_of(self, dispatch_id):
        path = f"/api/v2/dispatches?status_only=true&dispatch_id={dispatch_id}"
        return get(self.server, path)["dispatches"][0]["status"]

    def result(self, work):
        return ct.get_result(work.id, dispatcher_addr=self.server.address)


@pytest.fixture(scope="module")
def killed(here, aws, pack_tasks):
    with CovalentServer(here / "killed", aws.environment) as server:
        yield Killed(server, here, aws, pack_tasks)


def test_the_command_says_what_it_found(killed):
    assert (0, "") == (killed.first.returncode, killed.first.stderr)
    lines = killed.first.stdout
    assert f"{killed.single.id} (one): " in lines
    assert f"{killed.array.id} (several): " in lines
    assert f"{killed.early_work.id} (many): " in lines
    assert killed.ended.id not in lines


def test_a_job_that_ended_without_the_server_is_received_and_its_followers_run(killed, node):
    result = killed.result(killed.single)
    assert ct.status.COMPLETED == result.status, killed.server.log[-3000:]
    assert [1, [0]] == result.result
    assert [1, 1] == [len(killed.single.runs(number)) for number in range(2)]
    first, _ = nodes_of(result, node)
    assert ("COMPLETED", "", "task 0 begins\n", "careful\n") == first[1:5]


def test_children_of_an_array_are_received_with_streams_and_errors(killed, node):
    result = killed.result(killed.array)
    assert ct.status.FAILED == result.status, killed.server.log[-3000:]
    found = nodes_of(result, node)
    assert ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED"] == [one.status for one in found]
    assert [3, [0], [2]] == found[3].output
    assert [f"task {number} begins\n" for number in range(4)] == [one.stdout for one in found]
    assert 4 * ["careful\n"] == [one.stderr for one in found]
    assert "ValueError: task 1 is no good" in found[1].error
    jobs = [killed.array.runs(number) for number in range(4)]
    assert [1, 1, 1, 1] == [len(each) for each in jobs]
    assert jobs[1][0] in found[1].error
    parents = {job.partition(":")[0] for (job,) in jobs[:3]}
    assert 1 == len(parents)


def test_what_had_no_job_yet_is_started_once(killed):
    assert 0 == killed.submitted_early
    result = killed.result(killed.early_work)
    assert ct.status.COMPLETED == result.status, killed.server.log[-3000:]
    assert [3, [0], [1], [2]] == result.result
    assert [1, 1, 1, 1] == [len(killed.early_work.runs(number)) for number in range(4)]


def test_a_packed_task_group_is_received(killed, node):
    result = killed.result(killed.packed)
    assert ct.status.COMPLETED == result.status, killed.server.log[-3000:]
    assert [0, [7]] == result.result
    assert 1 == len(killed.packed.runs(0))
    (found,) = nodes_of(result, node)
    assert ("COMPLETED", "task 0 begins\n") == (found.status, found.stdout)


def test_a_packed_task_group_of_which_a_part_was_received_is_completed(killed):
    result = killed.result(killed.halved)
    assert ct.status.COMPLETED == result.status, killed.server.log[-3000:]
    assert [0, [7]] == result.result
    assert 1 == len(killed.halved.runs(0))


def test_a_sublattice_comes_to_its_end(killed):
    assert "COMPLETED" == killed.state_of(killed.inner_id), killed.server.log[-3000:]
    result = killed.result(killed.inner)
    assert ct.status.COMPLETED == result.status
    assert [0] == result.result
    assert 1 == len(killed.inner.runs(0))


def test_nothing_is_left_to_be_resumed(killed, client):
    for work in (killed.single, killed.array, killed.early_work, killed.packed, killed.inner):
        assert killed.state_of(work.id) in ("COMPLETED", "FAILED")
    until(lambda: not under_way(client))
    done = resume(killed.server)
    assert (0, "no dispatch is running there\n") == (done.returncode, done.stdout)


def test_an_unknown_dispatch_is_named(killed):
    done = resume(killed.server, "no-such-dispatch")
    assert 1 == done.returncode
    assert f"farcall: the Covalent server at {killed.server.address} has no dispatch " in (
        done.stderr
    )
    assert "no-such-dispatch" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_does_not_answer_is_named(killed):
    done = resume(killed.server, "--server", "http://127.0.0.1:9")
    assert 1 == done.returncode
    assert "farcall: no Covalent server answers at http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


# --- not killed ----------------------------------------------------------------------------------


def test_a_healthy_server_is_left_alone(killed, here, aws, client, wait):
    server = killed.server
    work = Work(here / "healthy", executor(aws.endpoint_url))
    task = work.task()

    @ct.lattice(executor="local", workflow_executor="local")
    def flow():
        return task(8, *[task(number) for number in range(8)])

    work.begin(server, flow)
    deadline = time.monotonic() + TIMEOUT_S
    while not all(work.runs(number) for number in range(8)) and time.monotonic() < deadline:
        for _ in covalent_resume.resume([work.id], server.address):
            pass
    work.let_go()
    result = wait(work.id, server=server)

    assert ct.status.COMPLETED == result.status
    assert [8, *[[number] for number in range(8)]] == result.result
    until(lambda: not under_way(client))
    assert 9 * [1] == [len(work.runs(number)) for number in range(9)]


@pytest.mark.parametrize("accepted", [True, False])
def test_a_server_killed_while_it_submits_submits_nothing_twice(killed, here, aws, wait, accepted):
    """Batch has accepted the jobs, or is about to be asked, and no job has an ID in Covalent."""
    server, answer = killed.server, threading.Event()
    with Proxy(aws.endpoint_url) as proxy:
        if accepted:
            proxy.changes["submitjob"] = lambda _: answer.wait(TIMEOUT_S)
        else:
            proxy.lasting["batch submitjob"] = "hang"
        work = Work(here / f"accepted-{accepted}", executor(proxy.url, linger_s=2))
        task = work.task()

        @ct.lattice(executor="local", workflow_executor="local")
        def flow():
            return task(3, *[task(number) for number in range(3)])

        work.begin(server, flow)
        if accepted:
            until(lambda: all(work.runs(number) for number in range(3)))
        until(lambda: proxy.counts["batch submitjob"])
        server.kill()
        answer.set()
        proxy.changes.clear()
        proxy.lasting.clear()
        server.start()
        again = resume(server, work.id)
        work.let_go()
        result = wait(work.id, server=server)
        submitted = proxy.answers["batch submitjob 200"]

    assert (0, "") == (again.returncode, again.stderr)
    assert [3, [0], [1], [2]] == result.result
    assert 4 * [1] == [len(work.runs(number)) for number in range(4)]
    assert (2 if accepted else 4) >= submitted


def test_a_server_killed_between_a_tasks_end_and_its_followers_goes_on(
    here, aws, new_server, wait
):
    """Covalent stores the end first, and then counts down what waits for it."""
    state = here / "between.sqlite"
    environment = aws.environment | {"COVALENT_CACHE_DB_URL": f"sqlite+pysqlite:///{state}"}
    server = new_server(here / "between", environment)
    work = Work(here / "between-work", executor(aws.endpoint_url))
    task = work.task()

    @ct.lattice(executor="local", workflow_executor="local")
    def flow():
        return task(1, task(0))

    work.begin(server, flow)
    until(lambda: work.runs(0))
    work.let_go(0)
    until(lambda: work.runs(1))
    server.kill()
    with contextlib.closing(sqlite3.connect(state)) as counts, counts:
        # As before the first one's end was counted; the second one was not begun then.
        counts.execute("UPDATE workflowstate SET num_unresolved_tasks = 1")
        counts.execute(
            "UPDATE taskgroupstate SET num_pending_parents = num_pending_parents + 1 "
            "WHERE dispatch_id = ? AND task_group_id > 0",
            (work.id,),
        )
    server.start()
    assert 0 == resume(server, work.id).returncode
    work.let_go()
    result = wait(work.id, server=server)

    assert [1, [0]] == result.result
    assert [1, 1] == [len(work.runs(number)) for number in (0, 1)]


# --- stopped -------------------------------------------------------------------------------------


def test_what_runs_when_the_server_is_stopped_is_cancelled(
    here, aws, client, new_server, wait, node
):
    server = new_server(here / "stopped", aws.environment)
    array = Work(here / "stop-array", executor(aws.endpoint_url, linger_s=2))
    with Proxy(aws.endpoint_url) as counting, Proxy(aws.endpoint_url) as lossy:
        lose_reasons(lossy)
        single = Work(here / "stop-single", executor(lossy.url))
        gathered = Work(here / "stop-gathered", executor(counting.url, linger_s=30))
        one, several, later = single.task(), array.task(), gathered.task()

        @ct.lattice(executor="local", workflow_executor="local")
        def plain():
            return one(1, one(0))

        @ct.lattice(executor="local", workflow_executor="local")
        def many():
            return [several(number) for number in range(3)]

        @ct.lattice(executor="local", workflow_executor="local")
        def waiting():
            return later(0)

        single.begin(server, plain)
        array.begin(server, many)
        until(lambda: all(map(array.runs, range(3))) and single.runs(0))
        until(lambda: states(array.id, server) == 3 * ["RUNNING"])
        until(lambda: states(single.id, server) == ["RUNNING", "NEW_OBJECT"])
        gathered.begin(server, waiting)
        until(lambda: counting.of("batch"))

        server.stop()
        until(lambda: not under_way(client))
        assert 0 == counting.counts["batch submitjob"]

        server.start()
        done = resume(server)
        assert 0 == done.returncode, done.stderr
        ends = [wait(work.id, server=server) for work in (single, array, gathered)]

    assert [*3 * [ct.status.CANCELLED]] == [result.status for result in ends]
    first, second = nodes_of(ends[0], node)
    assert ("CANCELLED", "task 0 begins\n") == (first.status, first.stdout)
    assert "COMPLETED" != second.status
    assert 3 * ["CANCELLED"] == [one.status for one in nodes_of(ends[1], node)]
    assert ["CANCELLED"] == [one.status for one in nodes_of(ends[2], node)]
    assert [1, 0, 0] == [len(w.runs(n)) for w, n in ((single, 0), (single, 1), (gathered, 0))]
    assert [] == under_way(client)


# --- state lost ----------------------------------------------------------------------------------


def test_where_the_servers_state_is_lost_the_error_says_how_to_go_on(
    here, aws, new_server, wait, node
):
    state = here / "state.sqlite"
    environment = aws.environment | {"COVALENT_CACHE_DB_URL": f"sqlite+pysqlite:///{state}"}
    server = new_server(here / "lost", environment)
    work = Work(here / "lost-work", executor(aws.endpoint_url))
    task = work.task()

    @ct.lattice(executor="local", workflow_executor="local")
    def flow():
        first, other = task(0), task(1)
        return task(2, first, other)

    work.begin(server, flow)
    until(lambda: work.runs(1))  # what Covalent calls running may have no job yet
    work.let_go(0)
    until(lambda: states(work.id, server) == ["COMPLETED", "RUNNING", "NEW_OBJECT"])
    server.kill()
    state.unlink()
    server.start()
    done = resume(server)
    assert 0 == done.returncode, done.stderr

    until(lambda: states(work.id, server)[2] == "FAILED")
    work.let_go()
    until(lambda: states(work.id, server)[1] == "COMPLETED")
    result = wait(work.id, server=server)
    assert ct.status.FAILED == result.status
    error = nodes_of(result, node)[2].error
    assert f"ct.redispatch({work.id!r}, reuse_previous_results=True)" in error

    again = ct.redispatch(work.id, dispatcher_addr=server.address, reuse_previous_results=True)()
    result = wait(again, server=server)
    assert ct.status.COMPLETED == result.status
    assert [2, [0], [1]] == result.result
    assert [1, 1, 1] == [len(work.runs(number)) for number in range(3)]
