"""A session with the policies of docs/iam, and requests that they deny.

Starts a local AWS emulator that enforces IAM.
"""

import os
import sys
import time
import uuid
from pathlib import Path

import pytest

from farcall import BatchExecutor, JobCancelledError
from tests import emulators
from tests.support.iam import (
    JOB_ROLE,
    VALUES,
    Enforced,
)
from tests.support.patience import PATIENCE_S

OPTIONS = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02}
BUCKET = VALUES["BUCKET"]
#: Size that both sides upload in several requests.
LARGE_BYTES = 70 * 1024 * 1024


@pytest.fixture(scope="module")
def account():
    with emulators.start(enforce_iam=True) as aws:
        yield Enforced(aws)


@pytest.fixture
def enforced(account, monkeypatch):
    """Restore the documented policies and use the credentials of the account's user."""
    account.use(monkeypatch)
    return account


def executor(**more):
    """Return an executor whose job definition is not registered yet."""
    image = f"farcall-local-process:{uuid.uuid4().hex}"
    return BatchExecutor(**{**OPTIONS, "image": image, **more})


def keys_below(account, prefix):
    found = account.root("s3").list_objects_v2(Bucket=BUCKET, Prefix=prefix)
    return {item["Key"] for item in found.get("Contents", [])}


# --- tasks --------------------------------------------------------------------------------------


def size_of(data):
    return data, len(data)


def talk_until_stopped():
    print("to stdout", flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    time.sleep(PATIENCE_S)


def fail():
    print("before the error")
    raise LookupError("on purpose")


def fail_at_first(place):
    try:
        Path(place).mkdir()
    except FileExistsError:
        return "the second attempt"
    raise LookupError("the first attempt")


# --- granted ------------------------------------------------------------------------------------


async def test_documented_policies_suffice_for_session(enforced, caplog, tmp_path):
    """Submit, map, retry, pass large values, fail, read output, cancel and clean up."""
    before = keys_below(enforced, "farcall/v1/")
    async with executor() as opened:
        assert await opened.task(abs)(-1) == 1
        assert await opened.task(abs).map([-1, -2, -3]) == [1, 2, 3]
        again = opened.with_options(retry_attempts=2, retry_on="failure")
        assert await again.task(fail_at_first)(str(tmp_path / "there")) == "the second attempt"
        several = opened.with_options(nodes=2)
        assert await several.task(abs)(-1) == [1, 1]
        data = os.urandom(LARGE_BYTES)
        assert await opened.task(size_of)(data) == (data, LARGE_BYTES)
        shared = await opened.put(data)
        assert await opened.task(len).map([shared, shared]) == [LARGE_BYTES, LARGE_BYTES]
    for _ in range(2):
        options = {"cache": True, "cache_key": "the key of these tests"}
        async with executor(image="farcall-local-process:cached", **options) as opened:
            assert await opened.task(abs).map([-4, -5]) == [4, 5]
            assert await opened.task(bytes)(LARGE_BYTES) == bytes(LARGE_BYTES)
    cached = keys_below(enforced, "farcall/v1/cache/")
    assert sum("/large/" not in key for key in cached) == 2
    before |= cached
    assert keys_below(enforced, "farcall/v1/") == before | {
        key for key in keys_below(enforced, "farcall/v1/") if "/attempts/" in key
    }
    async with executor(workers=2) as opened:
        assert await opened.task(abs).map([-1, -2, -3]) == [1, 2, 3]
    async with executor() as opened:
        failing = await opened.submit(fail)
        with pytest.raises(LookupError, match="on purpose"):
            await failing.result()
        assert await failing.stdout() == "before the error\n"
        job = await opened.submit(talk_until_stopped)
        lines = []
        async for line in job.logs(follow=True):
            lines.append(line)
            if len(lines) == 2:
                break
        assert sorted(lines) == ["to stderr", "to stdout"]
        assert (await opened.attach(job.id).status()).value == "RUNNING"
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result()
    assert not [r for r in caplog.records if "refused" in r.message or "stay in" in r.message]


# --- denied -------------------------------------------------------------------------------------


def assumed(account):
    arn = f"arn:aws:iam::{VALUES['ACCOUNT']}:role/{JOB_ROLE}"
    role = account.root("sts").assume_role(RoleArn=arn, RoleSessionName="task")["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": role["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": role["SecretAccessKey"],
        "AWS_SESSION_TOKEN": role["SessionToken"],
    }


@pytest.mark.parametrize(
    ("who", "operation", "request_"),
    [
        ("job", "put_object", {"Key": "farcall/v1/run/bundles/new"}),
        ("job", "put_object", {"Key": "farcall/v1/workspaces/0.tar.gz"}),
        ("job", "put_object", {"Key": "farcall/v1/cache/abs-0/large/0/00000000"}),
        ("job", "put_object", {"Key": "elsewhere/v1/run/outcomes/b/0"}),
        ("job", "delete_object", {"Key": "farcall/v1/run/bundles/b"}),
        ("job", "delete_object", {"Key": "farcall/v1/run/values/b/0/1/00000000"}),
        ("job", "get_object", {"Key": "farcall/v1/run/values/b/0/1/00000000"}),
        ("job", "list_objects_v2", {}),
        ("job", "list_objects_v2", {"Prefix": "farcall/v1/run/streams/"}),
        ("job", "put_object", {"Key": "farcall/v1/run/workers/pool/inbox/0"}),
        ("client", "get_object", {"Key": "other/v1/run/bundles/b"}),
        ("client", "put_object", {"Key": "farcall/v1/run/outcomes/b/0"}),
        ("client", "put_object", {"Key": "farcall/v1/run/streams/b/0/1/stdout/00000000"}),
        ("client", "put_object", {"Key": "other/v1/run/bundles/b"}),
        ("client", "list_objects_v2", {}),
        ("client", "list_objects_v2", {"Prefix": "other/"}),
    ],
)
def test_other_objects_are_denied(enforced, who, operation, request_):
    s3 = enforced.client("s3", enforced.keys if who == "client" else assumed(enforced))
    with pytest.raises(s3.exceptions.ClientError, match="AccessDenied"):
        getattr(s3, operation)(Bucket=BUCKET, **request_)


def test_client_cannot_use_other_role(enforced):
    batch = enforced.client("batch", enforced.keys)
    container = {
        "image": "any",
        "resourceRequirements": [
            {"type": "VCPU", "value": "1"},
            {"type": "MEMORY", "value": "128"},
        ],
    }
    admin = {**container, "jobRoleArn": f"arn:aws:iam::{VALUES['ACCOUNT']}:role/admin"}
    for name, properties, words in (
        ("farcall-any", admin, "iam:PassRole on resource: .*role/admin"),
        ("other", container, "batch:RegisterJobDefinition on resource: .*job-definition/other"),
    ):
        with pytest.raises(batch.exceptions.ClientError, match=words) as caught:
            batch.register_job_definition(
                jobDefinitionName=name, type="container", containerProperties=properties
            )
        error = caught.value.response
        assert error["Error"]["Code"] == "AccessDeniedException"
        assert error["ResponseMetadata"]["HTTPStatusCode"] == 403
