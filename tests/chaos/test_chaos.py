"""A short chaos run; ``make chaos`` makes a long one."""

from __future__ import annotations

import copy
import io
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tests.chaos import report
from tests.chaos.account import Account
from tests.chaos.run import Record, run

pytestmark = pytest.mark.slow

SEED, TASKS, CLIENTS = 11, 36, 3


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run(SEED, TASKS, 3, tmp_path_factory.mktemp("chaos"), CLIENTS)


def test_each_task_comes_to_one_end_whatever_goes_wrong(record: Record) -> None:
    account = Account(record)
    wrong = account.check()

    text = io.StringIO()
    repeat = f"make chaos CHAOS='--seed {SEED} --tasks {TASKS} --clients {CLIENTS}'"
    report.show(record, account, repeat=repeat, console=Console(file=text, width=200))
    assert not wrong, text.getvalue()
    assert record.injected
    assert {blow["kind"] for blow in record.dealt} >= {"client", "container"}


def lose_an_end(record: Record, told: dict[str, Any]) -> None:
    record.told = [line for line in record.told if line.get("task") != told["task"]]


def tell_another_end(record: Record, told: dict[str, Any]) -> None:
    record.told.append({**told, "end": "raised"})


def run_it_twice(record: Record, told: dict[str, Any]) -> None:
    record.ledger += [line for line in record.ledger if line["task"] == told["task"]]


def run_it_in_two_jobs(record: Record, told: dict[str, Any]) -> None:
    (first, *_) = (line for line in record.ledger if line["task"] == told["task"])
    record.ledger.append({**first, "job": next(iter(record.truth.submitted))})


def submit_it_twice(record: Record, told: dict[str, Any]) -> None:
    (job_id, job) = next(iter(record.truth.submitted.items()))
    record.truth.jobs[f"another-{job_id}"] = job


def leave_an_object(record: Record, told: dict[str, Any]) -> None:
    record.truth.keys["chaos/0/somewhere"] = 0.0


def leave_a_shared_value(record: Record, told: dict[str, Any]) -> None:
    record.truth.keys[f"chaos/99/v1/shared/{'0' * 64}/data/1"] = 0.0


def store_an_outcome_again(record: Record, told: dict[str, Any]) -> None:
    (begun, *_) = (line for line in record.ledger if line["task"] == told["task"])
    parent, _, index = begun["job"].partition(":")
    bundle = record.truth.bundle_of(parent)
    key = f"{bundle.replace('/bundles/', '/outcomes/')}/{index or 0}"
    record.truth.keys[key] = time.time()


def run_it_after_its_delivery(record: Record, told: dict[str, Any]) -> None:
    (begun, *_) = (line for line in record.ledger if line["task"] == told["task"])
    record.ledger.append({**begun, "attempt": begun["attempt"] + 1, "at": time.time()})


def leave_an_upload(record: Record, told: dict[str, Any]) -> None:
    record.truth.uploads.append("chaos/0/v1/run/values/bundle/0/1/00000000")


def leave_a_job(record: Record, told: dict[str, Any]) -> None:
    job_id = next(iter(record.truth.jobs))
    record.truth.jobs[job_id] = {**record.truth.jobs[job_id], "status": "RUNNING"}


def leave_a_process(record: Record, told: dict[str, Any]) -> None:
    record.processes.append("1: init")


def leak_a_thread(record: Record, told: dict[str, Any]) -> None:
    first_over(record)["leaked"].append("thread farcall_0")


def leak_a_thread_and_be_killed(record: Record, told: dict[str, Any]) -> None:
    """As a blow does that hits a client when it has noted its end and has not exited yet."""
    over = first_over(record)
    over["leaked"].append("thread farcall_0")
    record.clients[over["by"]] = -signal.SIGKILL, ""
    record.dealt.append({"kind": over["by"].split()[0], "client": over["client"]})


def first_over(record: Record) -> dict[str, Any]:
    return next(line for line in record.told if "over" in line)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lose_an_end, "no end at all"),
        (tell_another_end, "two different ends"),
        (run_it_twice, "ran twice in one attempt"),
        (run_it_in_two_jobs, "ran in 2 jobs"),
        (submit_it_twice, "2 jobs carry the bundle"),
        (leave_an_object, "nobody knows the object"),
        (leave_a_shared_value, "although nothing refers to it"),
        (store_an_outcome_again, "stored again after its delivery"),
        (run_it_after_its_delivery, "ran again after its value was delivered"),
        (leave_an_upload, "was never finished"),
        (leave_a_job, "is still RUNNING"),
        (leave_a_process, "a process is left"),
        (leak_a_thread, "has leaked"),
        (leak_a_thread_and_be_killed, "has leaked"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_is_found(
    record: Record, harm: Callable[[Record, dict[str, Any]], None], said: str
) -> None:
    harmed = copy.deepcopy(record)
    alive = [line["client"] for line in record.told if "over" in line and "client" in line["by"]]
    told = next(t for t in record.told if t.get("end") == "value" and t["client"] in alive)
    harm(harmed, told)

    assert any(said in wrong.what for wrong in Account(harmed).check())
