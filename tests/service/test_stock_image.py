"""Jobs whose image holds Python and nothing of farcall's: as processes that have no packages."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta

import pytest

import farcall.local
from farcall import (
    BatchExecutor,
    IntegrityError,
    JobCancelledError,
    OutcomeMissingError,
    VersionMismatchError,
)
from farcall.engine import runtimes
from farcall.engine.session import session_for
from farcall.storage import packages
from tests.support.iam import VALUES, Enforced
from tests.support.patience import PATIENCE_S, until_async
from tests.support.proxy import Proxy

BUCKET = VALUES["BUCKET"]
PREFIX = "farcall/v1/runtime/"
OPTIONS = {
    "vcpu": 1,
    "memory": 0.5,
    "retry_attempts": 1,
    "linger_s": 0.02,
    "container_image_uri": "",
}


@pytest.fixture(scope="module")
def account():
    with farcall.local.start(enforce_iam=True, cpus=4) as aws:
        aws.configure(stream_s=0.1)
        yield Enforced(aws)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where it is noted which archive there is, so that each test need not make it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def enforced(account, cache, monkeypatch):
    """The account with its documented policies, and the environment of its user."""
    for name, value in {**account.aws.environment, **account.keys}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    account.restore()
    return account


@pytest.fixture
def executor(enforced):
    return lambda **more: BatchExecutor(**{**OPTIONS, **more})


def stored(account):
    found = account.root("s3").list_objects_v2(Bucket=BUCKET, Prefix=PREFIX)
    return [item["Key"] for item in found.get("Contents", [])]


# --- tasks ------------------------------------------------------------------------------------


def describe_yourself(x):
    import importlib.util
    import os

    print(f"of {x}")
    print("to stderr", file=sys.stderr)
    here = [importlib.util.find_spec(name) is not None for name in ("pydantic", "farcall")]
    keys = [name for name in os.environ if "ACCESS_KEY" in name or name.startswith("FARCALL_")]
    return x + 1, here, keys, os.environ["HOME"]


def fail(x):
    if x == 2:
        raise LookupError(f"not {x}")
    return x


def wait(path):
    from pathlib import Path

    Path(path).touch()
    time.sleep(PATIENCE_S)


def fail_at_first(path):
    from pathlib import Path

    if Path(path).exists():
        return "the second attempt"
    Path(path).touch()
    raise LookupError("the first attempt")


# --- what a job can ---------------------------------------------------------------------------


async def test_a_task_has_the_runtime_and_no_other_package(executor):
    async with executor() as opened:
        job = await opened.submit(describe_yourself, 1)
        # Neither what is installed where the embedded AWS runs, nor keys in the environment.
        assert (2, [False, False], [], "/tmp") == await job.result()
        assert (await job.stdout(), await job.stderr()) == ("of 1\n", "to stderr\n")


async def test_errors_come_back(executor):
    async with executor() as opened:
        with pytest.raises(LookupError, match="not 2"):
            await opened.task(fail)(2)


async def test_a_map_and_its_failure(executor):
    async with executor() as opened:
        assert await opened.task(fail).map([1, 3, 4]) == [1, 3, 4]
        with pytest.raises(LookupError, match="not 2"):
            await opened.task(fail).map([1, 2])


async def test_several_nodes(executor):
    async with executor(nodes=2) as opened:
        assert await opened.task(abs)(-1) == [1, 1]


async def test_a_job_is_cancelled(executor, tmp_path):
    async with executor() as opened:
        job = await opened.submit(wait, str(tmp_path / "running"))
        await until_async((tmp_path / "running").exists)
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result()


async def test_attempts_and_a_retry_by_another_session(executor, enforced, tmp_path):
    async with executor(retry_attempts=2, retry_on="failure") as opened:
        assert await opened.task(fail_at_first)(str(tmp_path / "a")) == "the second attempt"
    async with executor(keep_artifacts=True) as opened:
        job = await opened.submit(fail_at_first, str(tmp_path / "b"))
        with pytest.raises(LookupError):
            await job.result()
    for key in stored(enforced):  # somebody has tidied up meanwhile
        enforced.root("s3").delete_object(Bucket=BUCKET, Key=key)
    async with executor() as opened:
        again = await opened.attach(job.id).retry()
        assert await again.result() == "the second attempt"


async def test_described_it_has_no_command_and_its_image(executor):
    async with executor() as opened:
        job = await opened.submit(abs, -1)
        await job.result()
        detail = await (await session_for(opened.settings)).describe(job.id)
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert detail.image == f"public.ecr.aws/docker/library/python:{minor}-slim-trixie"
    assert detail.command == ()
    assert detail.runtime.startswith(f"{BUCKET}/{PREFIX}")


# --- what is stored, and how often it is looked at --------------------------------------------


async def test_one_archive_one_definition_and_one_look_for_a_session(executor, enforced):
    async with executor() as opened:
        await opened.task(abs)(-1)
    before = len(stored(enforced))
    batch = enforced.root("batch")
    definitions = len(batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"])
    with Proxy(enforced.aws.endpoint_url) as proxy:
        async with executor(endpoint_url=proxy.url) as opened:
            for _ in range(3):
                await opened.task(abs)(-1)
    asked = [request for request in proxy.seen if "/runtime/" in request.path]
    assert ["HEAD"] == [each.method for each in asked]
    assert before == len(stored(enforced)) == 1
    # One more: the bucket has another URL behind the proxy.
    found = batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    assert len(found) == definitions + 1


async def test_what_was_deleted_is_stored_again(executor, enforced):
    async with executor() as opened:
        await opened.task(abs)(-1)
        (key,) = stored(enforced)
        enforced.root("s3").delete_object(Bucket=BUCKET, Key=key)
        with pytest.raises(OutcomeMissingError, match="did not find farcall's runtime") as caught:
            await opened.task(abs)(-1)
        assert "NoSuchKey" in str(caught.value)
        assert 65 == caught.value.exit_code
        assert await opened.task(abs)(-1) == 1
    assert [key] == stored(enforced)


async def test_what_is_old_is_stored_anew(executor, enforced, monkeypatch):
    async with executor() as opened:
        await opened.task(abs)(-1)
    monkeypatch.setattr(packages, "FRESH", timedelta(0))
    with Proxy(enforced.aws.endpoint_url) as proxy:
        async with executor(endpoint_url=proxy.url) as opened:
            await opened.task(abs)(-1)
    asked = [request.method for request in proxy.seen if "/runtime/" in request.path]
    assert ["HEAD", "PUT"] == asked


# --- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1] + b"x", lambda data: data[:1000]],
    ids=["tampered with", "cut off"],
)
async def test_a_changed_runtime_is_refused_by_name(executor, enforced, change):
    s3 = enforced.root("s3")
    async with executor() as opened:
        await opened.task(abs)(-1)
        (key,) = stored(enforced)
        data = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        s3.put_object(Bucket=BUCKET, Key=key, Body=change(data))
        with pytest.raises(IntegrityError, match="which stores what was changed anew") as caught:
            await opened.task(abs)(-1)
        assert "nothing of it was run" in str(caught.value)
        assert await opened.task(abs)(-1) == 1  # it was stored anew
        assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == data
        s3.put_object(Bucket=BUCKET, Key=key, Body=change(data))
    async with executor() as opened:
        assert await opened.task(abs)(-1) == 1


async def test_another_architecture_is_refused_by_name(executor, enforced, monkeypatch):
    # Made here, as if it were for that one: which is what a wrong option comes to.
    monkeypatch.setattr(runtimes.Target, "is_here", True)
    other = "arm64" if enforced.aws.environment["FARCALL_ARCHITECTURE"] != "arm64" else "x86_64"
    async with executor(architecture=other) as opened:
        with pytest.raises(VersionMismatchError, match="set architecture to") as caught:
            await opened.task(abs)(-1)
    assert 67 == caught.value.exit_code
    for key in stored(enforced):
        enforced.root("s3").delete_object(Bucket=BUCKET, Key=key)


async def test_a_role_that_may_not_read_it_is_told(executor, enforced):
    enforced.take_away("job-role", "s3:GetObject", "/v1/runtime/")
    async with executor() as opened:
        with pytest.raises(OutcomeMissingError, match="what is below runtime/ too") as caught:
            await opened.task(abs)(-1)
    assert "AccessDenied" in str(caught.value)


async def test_without_a_role_there_are_no_credentials(executor):
    async with executor(batch_job_role_name="") as opened:
        with pytest.raises(farcall.ImageError, match="batch_job_role_name") as caught:
            await opened.task(abs)(-1)
    assert "has no role" in str(caught.value)


async def test_an_image_that_is_not_to_be_had_is_named_with_its_option(executor):
    async with executor(stock_image_uri="nowhere/python:3.99") as opened:
        with pytest.raises(farcall.ImageError, match="stock_image_uri") as caught:
            await opened.task(abs)(-1)
    assert "nowhere/python:3.99" in str(caught.value)


async def test_a_definition_that_is_named_need_not_be_there_and_that_is_said(executor, caplog):
    async with executor(batch_job_definition_name="covalent-batch-qa-job-definition") as opened:
        assert await opened.task(abs)(-1) == 1
    assert "'covalent-batch-qa-job-definition', and there is no such" in caplog.text


async def test_the_old_plugin_s_image_is_passed_over(executor, enforced):
    enforced.root("batch").register_job_definition(
        jobDefinitionName="covalent-batch-jobs",
        type="container",
        containerProperties={
            "image": "public.ecr.aws/covalent/covalent-executor-base:stable",
            "resourceRequirements": [
                {"type": "VCPU", "value": "1"},
                {"type": "MEMORY", "value": "128"},
            ],
        },
    )
    async with executor() as opened:
        assert await opened.task(abs)(-1) == 1


# --- the command line -------------------------------------------------------------------------


def test_plan_shows_it_and_stores_nothing(enforced, commands, tmp_path):
    for key in stored(enforced):
        enforced.root("s3").delete_object(Bucket=BUCKET, Key=key)
    for offline in ((), ("--offline",)):
        done = commands.run("plan", *offline, "math:sqrt", "4", FARCALL_CONTAINER_IMAGE_URI="")
        container = json.loads(done.stdout)["RegisterJobDefinition"]["containerProperties"]
        assert "-slim-trixie" in container["image"]
        assert f"{BUCKET}/{PREFIX}" in " ".join(container["command"])
    assert stored(enforced) == []
