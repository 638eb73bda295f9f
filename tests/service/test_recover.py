"""Recovery after a client was killed.

Starts clients as processes and the local AWS emulator, because only a process can be killed. The
states that a client can leave in the bucket are in `tests/unit/client/test_recovery.py`.
"""

import contextlib
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
from tests.support.patience import PATIENCE_S, until

CLIENT = Path(__file__).with_name("recover_client.py")
TASKS = 5


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
    """Clients and the tasks' ledger."""

    def __init__(self, folder):
        self.ledger = folder / "ledger"
        self._folder = folder
        self._clients = []

    def start(self, kind, **options):
        name = f"client-{len(self._clients)}"
        client = Client(self._folder / name, kind, **options)
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
def place(aws, tmp_path):
    with contextlib.closing(Place(tmp_path)) as made:
        yield made


def values():
    """Return task number to expected result and error."""
    given = {number: (number * number, None) for number in range(TASKS)}
    return {**given, FAILING: (None, f"ValueError: task {FAILING} fails")}


def results_of(client):
    return {said["number"]: (said["value"], said["error"]) for said in client.of("ended")}


@pytest.mark.core
def test_client_killed_while_tasks_run(place):
    client, run = place.begin("map", tasks=TASKS)
    until(place.ran)
    client.kill()

    found = place.start("recover", run=run)
    assert len(found.wait_for("found")["jobs"]) == TASKS
    place.release()
    found.end()

    assert results_of(found) == values()
    assert place.ran() == list(range(TASKS))
    assert {said["stdout"] for said in found.of("ended")} == {f"task {n}\n" for n in range(TASKS)}


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


@pytest.mark.slow
def test_concurrent_recoveries_share_one_run(place):
    client, run = place.begin("map", tasks=TASKS)
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
