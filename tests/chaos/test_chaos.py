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

SEED, TASKS, CLIENTS = 26, 36, 3


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run(SEED, TASKS, 3, tmp_path_factory.mktemp("chaos"), CLIENTS)


@pytest.mark.path
def test_each_task_comes_to_one_end_whatever_goes_wrong(record: Record) -> None:
    account = Account(record)
    wrong = account.check()

    text = io.StringIO()
    repeat = f"make chaos CHAOS='--seed {SEED} --tasks {TASKS} --clients {CLIENTS}'"
    report.show(record, account, repeat=repeat, console=Console(file=text, width=200))
    assert not wrong, text.getvalue()
    assert record.injected
    assert {blow["kind"] for blow in record.dealt} >= {"client", "container"}
    assert any(nth and account.ends[number] == "value" for number, nth in account.retries.items())
    assert any("attached" in line for line in record.told)


def lose_an_end(record: Record, told: dict[str, Any]) -> None:
    record.told = [line for line in record.told if line.get("task") != told["task"]]


def tell_another_end(record: Record, told: dict[str, Any]) -> None:
    record.told.append({**told, "end": "raised"})


def run_it_twice(record: Record, told: dict[str, Any]) -> None:
    record.ledger += [line for line in record.ledger if line["task"] == told["task"]]


def run_it_in_two_jobs(record: Record, told: dict[str, Any]) -> None:
    (first, *_) = (line for line in record.ledger if line["task"] == told["task"])
    others = (j for j in record.truth.submitted if j not in first["job"])
    record.ledger.append({**first, "job": next(j for j in others if not record.truth.nth(j))})


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


def retry_what_succeeded(record: Record, told: dict[str, Any]) -> None:
    (begun, *_) = (line for line in record.ledger if line["task"] == told["task"])
    record.ledger.append({**begun, "job": retry_of(record, begun["job"])})


def retry_unasked(record: Record, told: dict[str, Any]) -> None:
    works = record.plan.works()
    number = next(n for n, (_, order) in works.items() if not order.retried)
    job_id = retry_of(record, next(iter(record.truth.submitted)))
    record.ledger.append({**record.ledger[0], "task": number, "job": job_id})


def retry_of(record: Record, job_id: str) -> str:
    """Make up a retry of a job, and return its ID."""
    job = copy.deepcopy(record.truth.jobs[job_id.partition(":")[0]])
    job["container"]["environment"].append({"name": "FARCALL_RETRY_OF", "value": job_id})
    record.truth.jobs["another"] = job
    return "another"


def retry_nothing(record: Record, told: dict[str, Any]) -> None:
    again = last_of_retry(record)
    lose_a_retrys_end(record, told)
    record.ledger = [
        line
        for line in record.ledger
        if line["task"] != again["task"] or not record.truth.nth(line["job"])
    ]


def lose_a_retrys_end(record: Record, told: dict[str, Any]) -> None:
    again = last_of_retry(record)
    record.told = [
        line for line in record.told if line.get("task") != again["task"] or not line["nth"]
    ]


def tell_another_end_of_a_retry(record: Record, told: dict[str, Any]) -> None:
    record.told.append({**last_of_retry(record), "end": "raised"})


def fail_a_retry(record: Record, told: dict[str, Any]) -> None:
    last_of_retry(record)["end"] = "raised"


def run_a_retry_in_two_jobs(record: Record, told: dict[str, Any]) -> None:
    begun = begun_of_retry(record)
    before = next(
        line["job"]
        for line in record.ledger
        if line["task"] == begun["task"] and not record.truth.nth(line["job"])
    )
    record.ledger.append({**begun, "job": retry_of(record, before)})


def leave_an_outcome_of_a_retry(record: Record, told: dict[str, Any]) -> None:
    parent, _, index = begun_of_retry(record)["job"].partition(":")
    key = record.truth.bundle_of(parent).replace("/bundles/", "/outcomes/")
    record.truth.keys[f"{key}/{index or 0}"] = 0.0


def last_of_retry(record: Record) -> dict[str, Any]:
    """Return the value that a retry gave, told by a client that lives to the end."""
    alive = alive_in(record)
    works = record.plan.works()
    return next(
        line
        for line in record.told
        if line.get("nth") == 1 and line["end"] == "value" and line["client"] in alive
        if works[line["task"]][0].kind == "mends"
    )


def begun_of_retry(record: Record) -> dict[str, Any]:
    number = last_of_retry(record)["task"]
    return next(
        line for line in record.ledger if line["task"] == number and record.truth.nth(line["job"])
    )


def alive_in(record: Record) -> list[int]:
    return [line["client"] for line in record.told if "over" in line and "client" in line["by"]]


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
        (retry_what_succeeded, "was run again although it had succeeded"),
        (retry_unasked, "was run again, which nobody has asked for"),
        (retry_nothing, "has failed and was not run again"),
        (lose_a_retrys_end, "no end at all"),
        (tell_another_end_of_a_retry, "two different ends: raised, value"),
        (fail_a_retry, "ended as raised, not as value"),
        (run_a_retry_in_two_jobs, "ran in 2 jobs"),
        (leave_an_outcome_of_a_retry, "is left although all of its tasks were delivered"),
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
    alive = alive_in(record)
    ends = (line for line in record.told if line.get("end") == "value" and not line["nth"])
    told = next(line for line in ends if line["client"] in alive)
    harm(harmed, told)

    assert any(said in wrong.what for wrong in Account(harmed).check())


def test_what_has_never_happened_is_found(record: Record) -> None:
    account = Account(Record(record.plan))
    account.check()
    account.wrong.clear()
    account.check_happened()

    assert [wrong.what.partition(":")[0] for wrong in account.wrong] == [
        "no container was hit",
        "no child was hit",
        "no host was hit",
        "no start was hit",
        "no client was hit",
        "no request to batch failed",
        "no request to s3 failed",
        "no run was recovered",
        "no task was cancelled",
        "no retry gave a value",
        "no job was retried by the command",
    ]
