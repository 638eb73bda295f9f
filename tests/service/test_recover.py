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
    """A client in a process of its own, with a home and a working directory of its own."""

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

    def hears(self, event, times=1):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(event)) >= times, PATIENCE_S)
        return self.of(event)[times - 1]

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def end(self):
        """Wait until it ends by itself."""
        assert self._process.wait(PATIENCE_S) == 0
        self._reader.join()
        return self


class Place:
    """Clients, the tasks' ledger, and a proxy between these and the local AWS emulator."""

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
        return client, client.hears("run")["run"]

    def recover(self, run):
        return self.start("recover", run=run).end()

    def let_go(self):
        (self._folder / "go").touch()

    def keys(self, run, kind):
        prefix = f"farcall/v1/{run}/{kind}/"
        found = boto3.client("s3").list_objects_v2(Bucket=self._bucket, Prefix=prefix)
        return [item["Key"] for item in found.get("Contents", [])]

    def ran(self):
        """Return the numbers of the tasks that began, one for each time."""
        if not self.ledger.exists():
            return []
        return sorted(int(line.split()[0]) for line in self.ledger.read_text().splitlines())

    def close(self):
        self.let_go()
        for client in self._clients:
            client.kill()


@pytest.fixture
def place(aws, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.endpoint_url)
    with Proxy(aws.endpoint_url) as proxy, contextlib.closing(Place(aws, tmp_path, proxy)) as made:
        yield made


def values(tasks=TASKS):
    """Return what each task gives, by number: value and error."""
    given = {number: (number * number, None) for number in range(tasks)}
    if FAILING in given:
        given[FAILING] = (None, f"ValueError: task {FAILING} fails")
    return given


def brought(client):
    return {said["number"]: (said["value"], said["error"]) for said in client.of("ended")}


KINDS = {
    "map": ("map", {}),
    "apart": ("submit", {"apart": True}),
}


@pytest.fixture(params=["map", pytest.param("apart", marks=pytest.mark.slow)])
def kind(request):
    name, options = KINDS[request.param]
    return name, {"tasks": TASKS, **options}


# --- killed at each point -----------------------------------------------------------------------


def test_before_the_bundle_is_uploaded(place):
    place.proxy.lasting["s3 PUT bundles"] = "hang"
    client, run = place.begin("map", tasks=TASKS)
    until(lambda: place.proxy.counts["s3 PUT bundles"])
    client.kill()

    found = place.recover(run)

    assert f"run '{run}' has nothing left in" in found.hears("refused")["error"]
    assert place.ran() == []


def test_before_submitjob(place):
    place.proxy.lasting["batch submitjob"] = "hang"
    client, run = place.begin("map", tasks=TASKS)
    until(lambda: place.proxy.counts["batch submitjob"])
    client.kill()

    found = place.recover(run).hears("found")

    (bundle,) = [key.rpartition("/")[2] for key in place.keys(run, "bundles")]
    assert bundle.startswith("work-")
    assert found["unsubmitted"] == [bundle]
    assert (found["jobs"], found["delivered"], found["forgotten"]) == ([], 0, [])
    assert place.ran() == []


@pytest.mark.slow
def test_while_the_answer_of_submitjob_is_on_its_way(place, kind):
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
    place.let_go()

    found = place.recover(run)

    # Tasks that are submitted one after the other have come no further than the first.
    tasks = 1 if options.get("apart") else TASKS
    assert brought(found) == values(tasks)
    assert place.ran() == list(range(tasks))


@pytest.mark.core
def test_right_after_submitjob(place, kind):
    name, options = kind
    client, run = place.begin(name, **options)
    jobs = TASKS if options.get("apart") else 1
    until(lambda: place.proxy.answers["batch submitjob 200"] >= jobs)
    client.kill()
    place.let_go()

    found = place.recover(run)

    assert brought(found) == values()
    assert place.ran() == list(range(TASKS))


def test_while_tasks_run(place, kind):
    name, options = kind
    client, run = place.begin(name, **options)
    jobs = TASKS if options.get("apart") else 1
    until(lambda: place.ran() and place.proxy.answers["batch submitjob 200"] >= jobs)
    client.kill()

    found = place.start("recover", run=run)
    assert len(found.hears("found")["jobs"]) == TASKS
    place.let_go()
    found.end()

    assert brought(found) == values()
    assert place.ran() == list(range(TASKS))
    assert {said["stdout"] for said in found.of("ended")} == {f"task {n}\n" for n in range(TASKS)}


@pytest.mark.slow
def test_when_outcomes_are_stored_and_were_not_fetched(place, kind):
    name, options = kind
    # What is looked for before the first task is not there, and has no number.
    place.proxy.rule = lambda request: (
        "hang"
        if request.operation == "s3 GET outcomes" and request.path.rpartition("/")[2].isdigit()
        else ""
    )
    client, run = place.begin(name, **options)
    place.let_go()
    until(lambda: len(place.keys(run, "outcomes")) == TASKS)
    client.kill()
    place.proxy.rule = lambda request: ""

    found = place.recover(run)

    assert brought(found) == values()
    assert place.ran() == list(range(TASKS))


def test_in_the_midst_of_a_loop_over_a_map(place):
    client, run = place.begin("map", tasks=TASKS, stop_after=3)
    place.let_go()
    client.hears("waiting")
    had = {said["index"] for said in client.of("taken")}
    # Batch calls the tasks ended a little after their outcomes are there.
    until(lambda: len(place.ran()) == TASKS and all_ended(run))
    client.kill()

    found = place.recover(run)

    wanted = values()
    back = brought(found)
    assert back == {number: wanted[number] for number in back}
    assert back.keys() | had == wanted.keys()
    assert len(back) + found.hears("found")["delivered"] == TASKS
    assert place.ran() == list(range(TASKS))


def all_ended(run):
    """Return whether the one array of a run has ended, by Batch."""
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


# --- and then -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_recover_one_run_at_the_same_time(place):
    client, run = place.begin("submit", tasks=TASKS)
    until(place.ran)
    client.kill()
    both = [place.start("recover", run=run) for _ in range(2)]
    for one in both:
        one.hears("found")
    place.let_go()
    for one in both:
        one.end()

    wanted = values()
    got = Counter()
    for one in both:
        assert one.of("through")
        for number, (value, error) in brought(one).items():
            if (value, error) == wanted[number]:
                got[number] += 1
            else:  # the other was there before
                assert "OutcomeMissingError" in error
    assert got.keys() == wanted.keys()
    assert place.ran() == list(range(TASKS))
