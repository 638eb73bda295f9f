"""Recovery after a client was killed.

Starts clients as processes and the local AWS emulator, because a client is killed at each step of
a submission. The cases "apart" are slow, because they start one job per task.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import boto3
import pytest

from tests.service.recover_client import FAILING
from tests.support import patience
from tests.support.patience import PATIENCE_S
from tests.support.proxy import Proxy

CLIENT = Path(__file__).with_name("recover_client.py")
TASKS = 5

until = functools.partial(patience.until, patience_s=PATIENCE_S)


class Client:
    """A client in a separate process, with its own home and working directory."""

    def __init__(self, place, kind, **options):
        place.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, CLIENT, kind, json.dumps(options)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=place,
            env={**os.environ, "HOME": str(place), "PYTHONPATH": str(CLIENT.parents[2])},
        )
        self.said = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with self._process.stdout as lines:
            for line in lines:
                with self._changed:
                    self.said.append(json.loads(line))
                    self._changed.notify_all()

    def of(self, event):
        return [said for said in self.said if said["event"] == event]

    def wait_for(self, event, times=1):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(event)) >= times, PATIENCE_S)
        return self.of(event)[times - 1]

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def end(self):
        """Wait until the client exits by itself."""
        assert self._process.wait(PATIENCE_S) == 0
        self._reader.join()
        return self


class Place:
    """Clients, the tasks' ledger, and a proxy between clients and the local AWS emulator."""

    def __init__(self, aws, folder, proxy):
        self.proxy = proxy
        self.ledger = folder / "ledger"
        self._bucket = aws.environment["FARCALL_S3_BUCKET_NAME"]
        self._folder = folder
        self._clients = []

    def start(self, kind, **options):
        name = f"client-{len(self._clients)}"
        client = Client(self._folder / name, kind, endpoint_url=self.proxy.url, **options)
        self._clients.append(client)
        return client

    def begin(self, kind, **options):
        """Start a client that submits; return it and the name of its run."""
        client = self.start(kind, folder=str(self._folder), **options)
        return client, client.wait_for("run")["run"]

    def recover(self, run):
        return self.start("recover", run=run).end()

    def release(self):
        (self._folder / "go").touch()

    def keys(self, run, kind):
        prefix = f"farcall/v1/{run}/{kind}/"
        found = boto3.client("s3").list_objects_v2(Bucket=self._bucket, Prefix=prefix)
        return [item["Key"] for item in found.get("Contents", [])]

    def ran(self):
        """Return the number of each started task, once per start."""
        if not self.ledger.exists():
            return []
        return sorted(int(line.split()[0]) for line in self.ledger.read_text().splitlines())

    def close(self):
        self.release()
        for client in self._clients:
            client.kill()


@pytest.fixture
def place(aws, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.endpoint_url)
    with Proxy(aws.endpoint_url) as proxy, contextlib.closing(Place(aws, tmp_path, proxy)) as made:
        yield made


def values(tasks=TASKS):
    """Return task number to expected result and error."""
    given = {number: (number * number, None) for number in range(tasks)}
    if FAILING in given:
        given[FAILING] = (None, f"ValueError: task {FAILING} fails")
    return given


def results_of(client):
    return {said["number"]: (said["value"], said["error"]) for said in client.of("ended")}


KINDS = {
    "map": ("map", {}),
    "apart": ("submit", {"apart": True}),
}


@pytest.fixture(params=["map", pytest.param("apart", marks=pytest.mark.slow)])
def kind(request):
    name, options = KINDS[request.param]
    return name, {"tasks": TASKS, **options}


# --- killed in each phase -----------------------------------------------------------------------


def test_client_killed_before_upload(place):
    place.proxy.lasting["s3 PUT bundles"] = "hang"
    client, run = place.begin("map", tasks=TASKS)
    until(lambda: place.proxy.counts["s3 PUT bundles"])
    client.kill()

    found = place.recover(run)

    assert f"run '{run}' has nothing left in" in found.wait_for("refused")["error"]
    assert place.ran() == []


def test_client_killed_before_submitjob(place):
    place.proxy.lasting["batch submitjob"] = "hang"
    client, run = place.begin("map", tasks=TASKS)
    until(lambda: place.proxy.counts["batch submitjob"])
    client.kill()

    found = place.recover(run).wait_for("found")

    (bundle,) = [key.rpartition("/")[2] for key in place.keys(run, "bundles")]
    assert bundle.startswith("work-")
    assert found["unsubmitted"] == [bundle]
    assert (found["jobs"], found["delivered"], found["forgotten"]) == ([], 0, [])
    assert place.ran() == []


@pytest.mark.slow
def test_client_killed_before_submitjob_response(place, kind):
    name, options = kind
    is_accepted, is_over = threading.Event(), threading.Event()

    def hold(_answer):
        is_accepted.set()
        is_over.wait(PATIENCE_S)

    place.proxy.changes["submitjob"] = hold
    client, run = place.begin(name, **options)
    assert is_accepted.wait(PATIENCE_S)
    client.kill()
    is_over.set()
    place.release()

    found = place.recover(run)

    # If tasks are submitted one after the other, only the first one was submitted.
    tasks = 1 if options.get("apart") else TASKS
    assert results_of(found) == values(tasks)
    assert place.ran() == list(range(tasks))


@pytest.mark.core
def test_client_killed_after_submitjob(place, kind):
    name, options = kind
    client, run = place.begin(name, **options)
    jobs = TASKS if options.get("apart") else 1
    until(lambda: place.proxy.answers["batch submitjob 200"] >= jobs)
    client.kill()
    place.release()

    found = place.recover(run)

    assert results_of(found) == values()
    assert place.ran() == list(range(TASKS))


def test_client_killed_while_tasks_run(place, kind):
    name, options = kind
    client, run = place.begin(name, **options)
    jobs = TASKS if options.get("apart") else 1
    until(lambda: place.ran() and place.proxy.answers["batch submitjob 200"] >= jobs)
    client.kill()

    found = place.start("recover", run=run)
    assert len(found.wait_for("found")["jobs"]) == TASKS
    place.release()
    found.end()

    assert results_of(found) == values()
    assert place.ran() == list(range(TASKS))
    assert {said["stdout"] for said in found.of("ended")} == {f"task {n}\n" for n in range(TASKS)}


@pytest.mark.slow
def test_client_killed_before_fetching_outcomes(place, kind):
    name, options = kind
    # The poll before the first task requests a missing key without a number.
    place.proxy.rule = lambda request: (
        "hang"
        if request.operation == "s3 GET outcomes" and request.path.rpartition("/")[2].isdigit()
        else ""
    )
    client, run = place.begin(name, **options)
    place.release()
    until(lambda: len(place.keys(run, "outcomes")) == TASKS)
    client.kill()
    place.proxy.rule = lambda request: ""

    found = place.recover(run)

    assert results_of(found) == values()
    assert place.ran() == list(range(TASKS))


def test_client_killed_in_map_loop(place):
    client, run = place.begin("map", tasks=TASKS, stop_after=3)
    place.release()
    client.wait_for("waiting")
    had = {said["index"] for said in client.of("taken")}
    # Batch reports the tasks as ended shortly after their outcomes are stored.
    until(lambda: len(place.ran()) == TASKS and all_ended(run))
    client.kill()

    found = place.recover(run)

    wanted = values()
    back = results_of(found)
    assert back == {number: wanted[number] for number in back}
    assert back.keys() | had == wanted.keys()
    assert len(back) + found.wait_for("found")["delivered"] == TASKS
    assert place.ran() == list(range(TASKS))


def all_ended(run):
    """Return whether the only array of a run has ended, according to Batch."""
    batch = boto3.client("batch")
    found = []
    for status in ("SUCCEEDED", "FAILED"):
        listed = batch.list_jobs(jobQueue=os.environ["FARCALL_QUEUE"], jobStatus=status)
        ids = [job["jobId"] for job in listed["jobSummaryList"]]
        for first in range(0, len(ids), 100):
            found += batch.describe_jobs(jobs=ids[first : first + 100])["jobs"]
    return any(
        f"/{run}/bundles/" in pair["value"]
        for job in found
        for pair in job.get("container", {}).get("environment", ())  # some have nodes instead
    )


# --- concurrent recoveries ----------------------------------------------------------------------


@pytest.mark.slow
def test_concurrent_recoveries_share_one_run(place):
    client, run = place.begin("submit", tasks=TASKS)
    until(place.ran)
    client.kill()
    both = [place.start("recover", run=run) for _ in range(2)]
    for one in both:
        one.wait_for("found")
    place.release()
    for one in both:
        one.end()

    wanted = values()
    got = Counter()
    for one in both:
        assert one.of("through")
        for number, (value, error) in results_of(one).items():
            if (value, error) == wanted[number]:
                got[number] += 1
            else:  # the other client has collected the result
                assert "OutcomeMissingError" in error
    assert got.keys() == wanted.keys()
    assert place.ran() == list(range(TASKS))
