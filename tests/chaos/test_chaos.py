"""A short chaos run; ``make chaos`` makes a long one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests import emulators
from tests.chaos import truth
from tests.chaos.account import Account
from tests.chaos.run import Record, run, run_on_cluster

pytestmark = pytest.mark.slow

SEED, TASKS, CLIENTS = 26, 36, 3


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return run(SEED, TASKS, 3, tmp_path_factory.mktemp("chaos"), CLIENTS)


@pytest.mark.path
def test_each_task_ends_once(record):
    account = Account(record)

    assert not account.check(), account.report()
    assert record.injected
    assert {blow["kind"] for blow in record.dealt} >= {"client", "container"}


def test_each_kubernetes_task_ends_once(tmp_path):
    record = run(SEED, TASKS, 3, tmp_path, CLIENTS, kubernetes=True)
    account = Account(record)

    assert not account.check(), account.report()
    assert {blow["kind"] for blow in record.dealt} >= {"client", "container"}


def test_each_task_of_a_kubeconfig_ends_once(tmp_path, monkeypatch):
    with emulators.start(kubernetes=True, cpus=8) as aws:
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        record = run_on_cluster(SEED, TASKS, 3, tmp_path, aws.environment["KUBECONFIG"], CLIENTS)
        left = truth.request(aws.environment)
    account = Account(record)

    assert not account.check(), account.report()
    assert {blow["kind"] for blow in record.dealt} >= {"client", "pod"}
    assert (left.jobs, left.keys) == ({}, {})


def lose_result(record: Record, told: dict[str, Any]) -> None:
    record.told = [line for line in record.told if line.get("task") != told["task"]]


def submit_twice(record: Record, told: dict[str, Any]) -> None:
    (job_id, job) = next(iter(record.truth.submitted.items()))
    record.truth.jobs[f"another-{job_id}"] = job


def leave_object(record: Record, told: dict[str, Any]) -> None:
    record.truth.keys["chaos/0/somewhere"] = 0.0


def alive_in(record: Record) -> list[int]:
    return [line["client"] for line in record.told if "over" in line and "client" in line["by"]]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lose_result, "no end at all"),
        (submit_twice, "2 jobs carry the bundle"),
        (leave_object, "unknown object"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_account_finds_errors(record, harm, said):
    harmed = copy.deepcopy(record)
    alive = alive_in(record)
    ends = (line for line in record.told if line.get("end") == "value")
    told = next(line for line in ends if line["client"] in alive)
    harm(harmed, told)

    assert any(said in wrong.what for wrong in Account(harmed).check())
