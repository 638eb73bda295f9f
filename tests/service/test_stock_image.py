"""Jobs in an image without farcall.

Starts a local AWS emulator that enforces IAM and runs jobs without installed packages.

Slow, because each job unpacks the runtime. An own module and the refusal of a changed runtime run
in CI as well.
"""

import subprocess
import sys

import pytest

from farcall import (
    BatchExecutor,
    IntegrityError,
)
from tests import emulators
from tests.support.iam import VALUES, Enforced
from tests.support.proxy import Proxy

pytestmark = pytest.mark.slow

BUCKET = VALUES["BUCKET"]
PREFIX = "farcall/v1/runtime/"
OPTIONS = {
    "vcpu": 1,
    "memory": 0.5,
    "retry_attempts": 1,
    "linger_s": 0.02,
    "image": "",
}


@pytest.fixture(scope="module")
def account():
    with emulators.start(enforce_iam=True, cpus=4) as aws:
        aws.configure(stream_s=0.1)
        yield Enforced(aws)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder for the runtime archive, so that it is created only once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def enforced(account, cache, monkeypatch):
    """Restore the documented policies and use the credentials of the account's user."""
    account.use(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
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


# --- jobs -------------------------------------------------------------------------------------


async def test_task_has_only_the_runtime(executor):
    async with executor() as opened:
        job = await opened.submit(describe_yourself, 1)
        # The job sees neither the emulator's installed packages nor keys in the environment.
        assert (2, [False, False], [], "/tmp") == await job.result()
        assert (await job.stdout(), await job.stderr()) == ("of 1\n", "to stderr\n")


@pytest.mark.path
def test_module_with_decorated_function_is_imported(enforced, tmp_path):
    (tmp_path / "tasks.py").write_text(
        "from farcall import BatchExecutor\n"
        f"executor = BatchExecutor(**{OPTIONS})\n"
        "@executor.task\n"
        "def f(x): return g(x) + 1\n"
        "def g(x): return 10 * x\n"
    )
    (tmp_path / "main.py").write_text(
        'import tasks\nif __name__ == "__main__":\n    print(tasks.f.run(3))\n'
    )
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("31\n", 0), done.stderr


# --- stored archive ---------------------------------------------------------------------------


async def test_session_checks_archive_once(executor, enforced):
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
    # One definition more, because the bucket has another URL behind the proxy.
    found = batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    assert len(found) == definitions + 1


# --- changed archive --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1] + b"x", lambda data: data[:1000]],
    ids=["tampered with", "cut off"],
)
@pytest.mark.path
async def test_changed_runtime_is_rejected_and_restored(executor, enforced, change):
    s3 = enforced.root("s3")
    async with executor() as opened:
        await opened.task(abs)(-1)
        (key,) = stored(enforced)
        data = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        s3.put_object(Bucket=BUCKET, Key=key, Body=change(data))
        with pytest.raises(
            IntegrityError, match="which stores the changed objects again"
        ) as caught:
            await opened.task(abs)(-1)
        assert "nothing was run" in str(caught.value)
        assert await opened.task(abs)(-1) == 1  # it was stored again
        assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == data
        s3.put_object(Bucket=BUCKET, Key=key, Body=change(data))
    async with executor() as opened:
        assert await opened.task(abs)(-1) == 1
