"""Restarts of a Covalent server whose dispatches have jobs.

Each test starts its own Covalent server on the local AWS emulator, because it kills or stops the
server. Slow, because a server takes seconds to start. tests/unit/covalent/test_resume.py tests
which tasks are resumed.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request

import boto3
import covalent as ct
import pytest

import farcall_local
from tests.support.commands import FARCALL
from tests.support.patience import PATIENCE_S, until
from tests.support.proxy import Proxy
from tests.support.timing import STREAM_S

pytestmark = pytest.mark.slow  # each starts Covalent servers

UNDER_WAY = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")


class Work:
    """The tasks of one dispatch; each records its runs and waits until it is released.

    Attributes:
        id: Dispatch ID; empty before `begin`.
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

    def release(self, *numbers):
        for word in [f"go-{number}" for number in numbers] or ["go"]:
            (self.path / word).touch()

    def runs(self, number):
        """Return the IDs of the jobs that ran a task, one per run."""
        mark = self.path / f"ran-{number}"
        return mark.read_text().split() if mark.exists() else []


def nodes_of(result, node, name="work"):
    """Return the electrons with a name, in order."""
    graph = result.lattice.transport_graph._graph
    found = [node(result, number) for number in sorted(graph.nodes)]
    return [one for one in found if one.name == name]


def states(dispatch_id, server, name="work"):
    """Return the statuses of the electrons with a name, in order."""
    manifest = get(server, f"/api/v2/dispatches/{dispatch_id}")
    nodes = manifest["lattice"]["transport_graph"]["nodes"]
    return [n["metadata"]["status"] for n in nodes if n["metadata"]["name"] == name]


def get(server, path):
    with urllib.request.urlopen(f"{server.address}{path}", timeout=PATIENCE_S) as answer:
        return json.load(answer)


def resume(server, *arguments):
    """Run ``farcall covalent resume`` with the server's environment."""
    return subprocess.run(
        [FARCALL, "covalent", "resume", *arguments],
        env=os.environ | server.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def ends_of(client, job_ids):
    jobs = {job["jobId"]: job for job in client.describe_jobs(jobs=job_ids)["jobs"]}
    return [jobs[job_id]["status"] for job_id in job_ids]


def under_way(client):
    return [
        job["jobId"]
        for state in UNDER_WAY
        for job in client.list_jobs(jobQueue="farcall-local", jobStatus=state)["jobSummaryList"]
    ]


@pytest.fixture(scope="module")
def aws():
    """A local AWS emulator with processors for all jobs."""
    with farcall_local.start(cpus=16) as running:
        running.configure(stream_s=STREAM_S)
        yield running


@pytest.fixture(scope="module")
def here(aws, tmp_path_factory):
    """Set the environment of a user of the emulator; return the user's folder."""
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


def test_killed_server_resumes_dispatch(here, aws, client, new_server, wait, node):
    server = new_server(here / "killed", aws.environment)
    work = Work(here / "killed-work", executor(aws.endpoint_url, linger_s=2))
    good, bad = work.task(), work.task(fail=True)

    @ct.lattice(executor="local", workflow_executor="local")
    def flow():
        first, _, last = good(0), bad(1), good(2)
        return good(3, first, last)

    work.begin(server, flow)
    until(lambda: all(map(work.runs, range(3))))
    until(lambda: states(work.id, server) == [*3 * ["RUNNING"], "NEW_OBJECT"])
    server.kill()
    work.release(0, 1)
    ended = [*work.runs(0), *work.runs(1)]
    until(lambda: ["SUCCEEDED", "FAILED"] == ends_of(client, ended))
    server.start()
    done = resume(server)
    work.release()
    result = wait(work.id, server=server)

    assert (0, "") == (done.returncode, done.stderr)
    assert f"{work.id} (flow): " in done.stdout
    found = nodes_of(result, node)
    assert ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED"] == [one.status for one in found]
    assert [3, [0], [2]] == found[3].output
    assert [f"task {number} begins\n" for number in range(4)] == [one.stdout for one in found]
    assert "ValueError: task 1 is no good" in found[1].error
    assert [1, 1, 1, 1] == [len(work.runs(number)) for number in range(4)]
    until(lambda: not under_way(client))


def test_resume_submits_no_job_twice(here, aws, new_server, wait):
    """Batch has accepted the jobs, but Covalent has not stored their IDs."""
    server, answer = new_server(here / "submits", aws.environment), threading.Event()
    with Proxy(aws.endpoint_url) as proxy:
        proxy.changes["submitjob"] = lambda _: answer.wait(PATIENCE_S)
        work = Work(here / "accepted", executor(proxy.url, linger_s=2))
        task = work.task()

        @ct.lattice(executor="local", workflow_executor="local")
        def flow():
            return task(3, *[task(number) for number in range(3)])

        work.begin(server, flow)
        until(lambda: all(work.runs(number) for number in range(3)))
        until(lambda: proxy.counts["batch submitjob"])
        server.kill()
        answer.set()
        proxy.changes.clear()
        server.start()
        again = resume(server, work.id)
        work.release()
        result = wait(work.id, server=server)
        submitted = proxy.answers["batch submitjob 200"]

    assert (0, "") == (again.returncode, again.stderr)
    assert [3, [0], [1], [2]] == result.result
    assert 4 * [1] == [len(work.runs(number)) for number in range(4)]
    assert 2 >= submitted


def test_stopped_server_cancels_running_tasks(here, aws, client, new_server, wait, node):
    server = new_server(here / "stopped", aws.environment)
    array = Work(here / "stop-array", executor(aws.endpoint_url, linger_s=2))
    with Proxy(aws.endpoint_url) as counting:
        single = Work(here / "stop-single", executor(aws.endpoint_url))
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
