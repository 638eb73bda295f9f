"""Executors before they open a connection."""

import pickle

import pytest

from farcall import BatchExecutor, Settings
from farcall.client.task import Task
from farcall.model.errors import FarcallError, SettingsError, TaskNotPicklableError


def double(x):
    return 2 * x


def test_keyword_options_override_settings():
    settings = Settings(vcpu=4, memory=8)
    executor = BatchExecutor(settings, memory=16)
    assert (executor.settings.vcpu, executor.settings.memory) == (4, 16)
    assert settings.memory == 8


@pytest.mark.parametrize("settings", [{"vcpu": 2}, 2, "vcpu=2"])
def test_settings_of_wrong_type_are_rejected(settings):
    with pytest.raises(SettingsError, match=r"settings is a \w+; use a farcall.Settings"):
        BatchExecutor(settings)


def test_repr_shows_options_without_secrets():
    executor = BatchExecutor(vcpu=2, job_definition_extra={"containerProperties": {"user": "me"}})
    assert repr(executor) == "BatchExecutor(vcpu=2.0)"


def test_pickling_is_rejected_with_alternative():
    with pytest.raises(TaskNotPicklableError, match="A task can call another task"):
        pickle.dumps(BatchExecutor())


def test_task_is_made_with_options():
    executor = BatchExecutor(vcpu=1)
    plain, larger = executor.task(double), executor.task(vcpu=8)(double)
    assert type(plain) is type(larger) is Task
    assert plain.executor is executor
    assert (larger.executor.settings.vcpu, executor.settings.vcpu) == (8, 1)


def test_executor_with_other_options_shares_jobs():
    executor = BatchExecutor()
    other = executor.with_options(vcpu=8)
    assert other._unfinished is executor._unfinished


async def test_exit_without_enter_is_rejected():
    with pytest.raises(FarcallError, match="was not entered on this event loop"):
        await BatchExecutor().__aexit__(None, None, None)


def test_attach_makes_no_api_request():
    job = BatchExecutor().attach("6f1c:3")
    assert (job.id, job.name, job.done()) == ("6f1c:3", "", False)
    assert repr(job) == "<Job 6f1c:3>"
