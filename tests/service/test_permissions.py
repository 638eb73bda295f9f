"""The policies of docs/iam are enough, and no action in them is there for nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
import uuid
from pathlib import Path

import pytest

import farcall.local
from farcall import BatchExecutor, JobCancelledError, JobError, ServiceError, SettingsError
from farcall.aws.clients import Aws
from farcall.backends.batch.client import Batch
from farcall.engine.session import session_for
from farcall.model.settings import Settings
from farcall.storage.store import Store
from farcall_runtime.storage import Created, DeniedError, NotFoundError, Storage
from tests.support.iam import (
    JOB_ROLE,
    VALUES,
    Enforced,
    actions,
    actions_on,
    policy,
    without,
)
from tests.support.patience import PATIENCE_S

OPTIONS = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02}
BUCKET = VALUES["BUCKET"]
#: Beyond what either side stores by one request.
LARGE_BYTES = 70 * 1024 * 1024

#: What the embedded AWS has no use for: images are not pulled from a registry.
UNPROVEN = {
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:GetAuthorizationToken",
    "ecr:GetDownloadUrlForLayer",
}


@pytest.fixture(scope="module")
def account():
    with farcall.local.start(enforce_iam=True) as aws:
        yield Enforced(aws)


@pytest.fixture
def enforced(account, monkeypatch):
    """The account with its documented policies, and the environment of its user."""
    for name, value in {**account.aws.environment, **account.keys}.items():
        monkeypatch.setenv(name, value)
    account.restore()
    return account


def executor(**more):
    """An executor whose job definition is not there yet."""
    image = f"farcall-local-process:{uuid.uuid4().hex}"
    return BatchExecutor(**{**OPTIONS, "container_image_uri": image, **more})


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


def die_with_the_container():
    print("last words", flush=True)
    time.sleep(0.5)
    os.kill(os.getppid(), signal.SIGKILL)


# --- the policies are enough --------------------------------------------------------------------


async def test_a_whole_session_runs_on_the_documented_policies(enforced, caplog, tmp_path):
    """Submit, map, retry, large values both ways, failure, streams, cancel and cleaning up."""
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
    assert keys_below(enforced, "farcall/v1/") == before | {
        key for key in keys_below(enforced, "farcall/v1/") if "/attempts/" in key
    }
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


async def test_a_container_sees_that_its_output_is_followed(enforced, monkeypatch):
    key = "farcall/v1/run/streams/bundle/0/followed"
    access = await Aws.open(Settings())
    client = Store(BUCKET, access.store(BUCKET), access.operations(BUCKET), access.timing)
    await client.put(key, [b"followed"])
    for name, value in assumed(enforced).items():
        monkeypatch.setenv(name, value)
    role = Storage(BUCKET)

    await asyncio.to_thread(role.version, key)
    with pytest.raises(DeniedError):
        await asyncio.to_thread(role.version, key.replace("followed", "1/stdout/00000000"))
    client.delete_later([key])
    await client.flush()
    with pytest.raises(NotFoundError):
        await asyncio.to_thread(role.version, key)
    await access.close()


async def test_a_run_is_recovered_on_the_documented_policies(enforced):
    async with executor(keep_artifacts=True) as opened:
        await (await opened.submit(abs, -1)).wait()
        run = await opened.run_name()
        assert run in [found.name for found in await opened.runs()]
        (job,) = (await opened.recover(run)).jobs
        assert (await job.calls(), await job.result()) == ([((-1,), {})], 1)


async def test_a_workspace_is_stored_and_fetched_on_the_documented_policies(enforced, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "value").write_text(uuid.uuid4().hex)
    async with executor() as opened:
        for _ in range(2):  # the second finds what the first has stored
            command = ["sh", "-c", "test -s value"]
            job = await opened.command("any:1", command, workspace=tmp_path / "work")
            assert (await job.wait()).exit_codes == (0,)
    assert len(keys_below(enforced, "farcall/v1/workspaces/")) == 1


async def test_a_client_without_the_permissions_to_register_runs_what_was_run_before(enforced):
    image = f"farcall-local-process:{uuid.uuid4().hex}"

    async def session():
        async with executor(container_image_uri=image) as opened:
            assert await opened.task(abs)(-1) == 1

    await session()
    document = policy("client")
    for action in ("batch:RegisterJobDefinition", "iam:PassRole", "iam:GetRole"):
        document = without(document, action)
    enforced.set_policy("client", document)
    await session()
    with pytest.raises(ServiceError, match="RegisterJobDefinition was refused"):
        await run()


# --- no action of the client is there for nothing -----------------------------------------------


async def run():
    async with executor() as opened:
        await opened.task(abs)(-1)


async def ask_for_the_status():
    async with executor() as opened:
        job = await opened.submit(abs, -1)
        await job.result()
        await opened.attach(job.id).status()


async def cancel():
    async with executor() as opened:
        job = await opened.submit(talk_until_stopped)
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result()


async def submit_without_an_answer():
    await asyncio.to_thread(submit_without_an_answer.account.aws.fault, "SubmitJob", "lost")
    await run()


#: Action, what needs it, and the error without it.
REFUSED = [
    ("batch:SubmitJob", run, "SubmitJob was refused: .*perform: batch:SubmitJob on resource"),
    ("batch:RegisterJobDefinition", run, "perform: batch:RegisterJobDefinition on resource"),
    ("iam:PassRole", run, "RegisterJobDefinition was refused: .*perform: iam:PassRole"),
    ("batch:DescribeJobs", ask_for_the_status, "DescribeJobs was refused: .*batch:DescribeJobs"),
    ("batch:ListJobs", submit_without_an_answer, "ListJobs was refused: .*batch:ListJobs"),
    ("batch:TerminateJob", cancel, "TerminateJob was refused: .*batch:TerminateJob on resource"),
    ("s3:PutObject", run, "PutObject of s3://.*/bundles/.*perform: s3:PutObject on resource"),
    ("s3:GetObject", run, "GetObject of s3://.*/outcomes/.*perform: s3:GetObject on resource"),
    ("s3:ListBucket", run, "GetObject of s3://.*/outcomes/.*perform: s3:ListBucket on resource"),
]


@pytest.mark.parametrize(("action", "scenario", "words"), REFUSED, ids=[r[0] for r in REFUSED])
async def test_without_an_action_the_error_names_it(enforced, action, scenario, words):
    submit_without_an_answer.account = enforced
    await asyncio.wait_for(scenario(), PATIENCE_S)

    enforced.take_away("client", action)
    with pytest.raises(ServiceError, match=words):
        await asyncio.wait_for(scenario(), PATIENCE_S)


#: Action, an option that names nothing, and the error of a later moment without the look.
LOOKS = [
    ("batch:DescribeJobQueues", "batch_queue", ServiceError, "SubmitJob was refused"),
    ("iam:GetRole", "batch_job_role_name", ServiceError, "RegisterJobDefinition was refused"),
    ("logs:DescribeLogGroups", "batch_job_log_group_name", JobError, "log could not be opened"),
]


@pytest.mark.parametrize(("action", "option", "kind", "words"), LOOKS, ids=[r[0] for r in LOOKS])
async def test_without_a_look_what_is_not_there_shows_later(enforced, action, option, kind, words):
    async def run_on_nothing():
        async with executor(**{option: "not-there"}) as opened:
            await opened.task(abs)(-1)

    # Names that are not there are none of the policy's either, so that looking is all it allows.
    widened = policy("client")
    for statement in widened["Statement"]:
        if statement["Sid"] == "LookForTheRoles":
            statement["Resource"] = "*"
    enforced.set_policy("client", widened)
    with pytest.raises(SettingsError, match=f"{option} is 'not-there'"):
        await run_on_nothing()

    enforced.take_away("client", action)
    with pytest.raises(kind, match=words):
        await asyncio.wait_for(run_on_nothing(), PATIENCE_S)


async def test_without_a_look_at_compute_environments_nothing_is_known_of_them(enforced):
    resources = {
        "type": "EC2",
        "maxvCpus": 16,
        "instanceTypes": ["m5"],
        "instanceRole": "ecsInstanceRole",
        "subnets": [],
    }
    root = enforced.root("batch")
    root.create_compute_environment(
        computeEnvironmentName="small", type="MANAGED", computeResources=resources
    )
    order = [{"order": 1, "computeEnvironment": "small"}]
    root.create_job_queue(jobQueueName="small", priority=1, computeEnvironmentOrder=order)

    async def run_where_there_is_no_room():  # in a queue that the policy does not name
        async with executor(batch_queue="small", vcpu=500) as opened:
            await opened.task(abs)(-1)

    with pytest.raises(SettingsError, match="vcpu is 500"):
        await run_where_there_is_no_room()
    enforced.take_away("client", "batch:DescribeComputeEnvironments")
    with pytest.raises(ServiceError, match="SubmitJob was refused"):
        await asyncio.wait_for(run_where_there_is_no_room(), PATIENCE_S)
    await asyncio.wait_for(run(), PATIENCE_S)


async def test_without_describe_job_definitions_each_session_registers_a_revision(enforced):
    image = f"farcall-local-process:{uuid.uuid4().hex}"

    def revisions():
        pages = enforced.root("batch").describe_job_definitions(status="ACTIVE")
        # Those for several nodes, of other tests, have nodeProperties.
        containers = [item.get("containerProperties", {}) for item in pages["jobDefinitions"]]
        return sum(container.get("image") == image for container in containers)

    async def session():
        # In an event loop of its own, hence with no memory of what was registered before.
        await asyncio.to_thread(asyncio.run, one_task())

    async def one_task():
        async with executor(container_image_uri=image) as opened:
            await opened.task(abs)(-1)

    await session()
    await session()
    assert revisions() == 1
    enforced.take_away("client", "batch:DescribeJobDefinitions")
    await session()
    assert revisions() == 2


async def test_without_delete_object_delivered_objects_stay(enforced, caplog):
    enforced.take_away("client", "s3:DeleteObject")
    before = keys_below(enforced, "farcall/v1/")
    await run()
    left = keys_below(enforced, "farcall/v1/") - before
    assert {key.split("/")[3] for key in left} == {"bundles", "outcomes"}
    assert re.search("stay in s3://farcall-local .*s3:DeleteObject on resource", caplog.text)


async def test_without_get_log_events_last_words_are_lost(enforced):
    async def words():
        async with executor() as opened:
            with pytest.raises(JobError) as caught:
                await opened.task(die_with_the_container)()
        return caught.value.stdout

    # What was not uploaded when the container died is in CloudWatch only.
    assert "last words" in await words()
    enforced.take_away("client", "logs:GetLogEvents")
    assert await words() == ""


async def test_without_filter_log_events_nodes_have_no_lines(enforced):
    async with executor() as opened:
        job = await opened.submit(print, "a line")
        await job.wait()
        logs = (await session_for(opened.settings)).node_logs
        assert "a line" in [line.text async for line in logs.lines(job.id)]
        enforced.take_away("client", "logs:FilterLogEvents")
        for follow in (False, True):
            with pytest.raises(ServiceError, match="FilterLogEvents was refused"):
                assert [line async for line in logs.lines(job.id, follow=follow)] == []


async def test_without_get_job_queue_snapshot_no_place_in_the_queue_is_known(enforced):
    async with executor() as opened:
        listing = Batch((await session_for(opened.settings)).aws).listing
        assert await listing.front(VALUES["QUEUE"]) == []
        enforced.take_away("client", "batch:GetJobQueueSnapshot")
        with pytest.raises(ServiceError, match="GetJobQueueSnapshot was refused"):
            await listing.front(VALUES["QUEUE"])


class Interrupted(list):
    """Pieces of an object; something happens while they are sent."""

    def __init__(self, pieces, happening):
        super().__init__(pieces)
        self._happening = happening

    def __iter__(self):
        for number in range(len(self)):
            if number == len(self) - 1:
                self._happening()
            yield self[number]


def losing(account, folder, *, may_abort):
    """Return what takes the permission to upload away, and the one to abort if told so."""
    left = without(policy("client"), "s3:PutObject", folder)
    if not may_abort:
        left = without(left, "s3:AbortMultipartUpload", folder)
    return lambda: account.set_policy("client", left)


def uploads(account):
    return len(account.root("s3").list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))


@pytest.mark.parametrize("may_abort", [True, False], ids=["with", "without"])
@pytest.mark.parametrize("folder", ["/bundles/", "/v1/shared/"])
async def test_the_client_aborts_a_broken_upload_where_it_may(enforced, folder, may_abort, caplog):
    before = uploads(enforced)
    happening = losing(enforced, folder, may_abort=may_abort)
    key = {"/bundles/": "run/bundles/broken"}.get(folder, f"shared/{'0' * 64}/data/broken")
    pieces = Interrupted([bytes(8 * 1024 * 1024)] * 6, happening)
    access = await Aws.open(Settings())
    store = Store(BUCKET, access.store(BUCKET), access.operations(BUCKET), access.timing)
    with pytest.raises(ServiceError, match="s3:PutObject on resource"):
        await store.put(f"farcall/v1/{key}", pieces)
    await access.close()
    warned = "stays unfinished" in caplog.text and "s3:AbortMultipartUpload" in caplog.text
    assert warned is not may_abort
    assert uploads(enforced) == before + (not may_abort)


# --- nor of the job role ------------------------------------------------------------------------


def assumed(account):
    arn = f"arn:aws:iam::{VALUES['ACCOUNT']}:role/{JOB_ROLE}"
    role = account.root("sts").assume_role(RoleArn=arn, RoleSessionName="task")["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": role["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": role["SecretAccessKey"],
        "AWS_SESSION_TOKEN": role["SessionToken"],
    }


#: Action, attempts, and the error without it.
JOB_REFUSED = [
    ("s3:GetObject", 1, "could not reach the bucket.*batch_job_role_name needs s3:GetObject"),
    ("s3:PutObject", 1, "outcome could not be stored.*batch_job_role_name needs s3:PutObject"),
    # Without it S3 answers 403 where there is no outcome of an earlier attempt.
    ("s3:ListBucket", 2, "could not reach the bucket.*s3:ListBucket"),
]


@pytest.mark.parametrize(
    ("action", "attempts", "words"), JOB_REFUSED, ids=[r[0] for r in JOB_REFUSED]
)
async def test_without_an_action_of_the_job_role_the_error_says_what_was_denied(
    enforced, action, attempts, words, tmp_path
):
    place = tmp_path / "there"

    async def scenario():
        async with executor(retry_attempts=attempts, retry_on="failure") as opened:
            if attempts == 1:
                await opened.task(abs)(-1)
            else:
                await opened.task(fail_at_first)(str(place))

    await asyncio.wait_for(scenario(), PATIENCE_S)
    if place.exists():
        place.rmdir()
    enforced.take_away("job-role", action)
    with pytest.raises(farcall.FarcallError, match=words):
        await asyncio.wait_for(scenario(), PATIENCE_S)


def test_the_job_takes_back_an_outcome_that_was_stored_twice_where_it_may(enforced, monkeypatch):
    for name, value in assumed(enforced).items():
        monkeypatch.setenv(name, value)
    storage = Storage(BUCKET, os.environ, retry_s=10)
    key = "farcall/v1/run/outcomes/bundle/0"
    assert storage.create(key, [b"outcome"]) is not Created.BEFORE
    for missing in ("bundle", "bundle.delivered/0"):
        with pytest.raises(NotFoundError):
            storage.version(f"farcall/v1/run/bundles/{missing}")
    storage.delete(key)
    assert storage.create(key, [b"outcome"]) is not Created.BEFORE
    enforced.take_away("job-role", "s3:DeleteObject")
    with pytest.raises(DeniedError):
        storage.delete(key)


# --- nor what either may do with shared values --------------------------------------------------

SHARED = "/v1/shared/"

#: Whose action, and the error without it.
SHARED_REFUSED = [
    ("client", "s3:PutObject", "PutObject of s3://.*/shared/.*s3:PutObject on resource"),
    ("client", "s3:ListBucket", "of s3://.*/shared/.*s3:ListBucket on resource"),
    ("job-role", "s3:GetObject", "could not reach the bucket.*role_name needs s3:GetObject"),
]


async def share(*, loses=lambda: None):
    """Have a job fetch a value that nobody else has; something happens before."""
    async with executor() as opened:
        value = await opened.put(os.urandom(2 * 1024 * 1024))
        loses()
        return await opened.task(len)(value)


@pytest.mark.parametrize(("whose", "action", "words"), SHARED_REFUSED)
async def test_without_an_action_on_shared_values_the_error_names_it(
    enforced, whose, action, words
):
    enforced.take_away(whose, action, SHARED)
    await asyncio.wait_for(run(), PATIENCE_S)
    with pytest.raises(farcall.FarcallError, match=words):
        await asyncio.wait_for(share(), PATIENCE_S)


async def test_only_who_may_list_shared_values_learns_that_one_is_gone(enforced):
    def lose():
        keys = keys_below(enforced, "farcall/v1/shared/")
        gone = [{"Key": key} for key in keys if "/data/" in key]
        enforced.root("s3").delete_objects(Bucket=BUCKET, Delete={"Objects": gone})

    with pytest.raises(farcall.FarcallError, match="did not find a value in the bucket"):
        await asyncio.wait_for(share(loses=lose), PATIENCE_S)
    enforced.take_away("job-role", "s3:ListBucket", SHARED)
    with pytest.raises(farcall.FarcallError, match="could not reach the bucket.*s3:ListBucket"):
        await asyncio.wait_for(share(loses=lose), PATIENCE_S)


async def test_without_delete_object_shared_values_stay(enforced):
    before = keys_below(enforced, "farcall/v1/shared/")
    await share()
    assert keys_below(enforced, "farcall/v1/shared/") <= before
    enforced.take_away("client", "s3:DeleteObject", SHARED)
    assert await share() == 2 * 1024 * 1024
    left = keys_below(enforced, "farcall/v1/shared/") - before
    assert {key.split("/")[4] for key in left} >= {"data", "held"}


async def test_without_get_object_a_shared_value_is_not_copied(enforced):
    key = f"farcall/v1/shared/{'0' * 64}/data/"
    enforced.root("s3").put_object(Bucket=BUCKET, Key=f"{key}old", Body=b"value")
    access = await Aws.open(Settings())
    store = Store(BUCKET, access.store(BUCKET), access.operations(BUCKET), access.timing)
    await store.copy(f"{key}old", f"{key}new")
    enforced.take_away("client", "s3:GetObject", SHARED)
    with pytest.raises(ServiceError, match="s3:GetObject on resource"):
        await store.copy(f"{key}old", f"{key}newer")
    await access.close()


def test_every_action_on_shared_values_is_proven_to_be_needed():
    tested = {(whose, action) for whose, action, _ in SHARED_REFUSED} | {
        ("client", "s3:AbortMultipartUpload"),  # as of bundles
        ("client", "s3:DeleteObject"),
        ("client", "s3:GetObject"),
        ("job-role", "s3:ListBucket"),
    }
    named = {(w, a) for w in ("client", "job-role") for a in actions_on(policy(w), SHARED)}
    assert named == tested


# --- nor of the execution role ------------------------------------------------------------------


async def test_without_create_log_stream_no_job_starts(enforced):
    enforced.take_away("execution-role", "logs:CreateLogStream")
    with pytest.raises(
        JobError, match=r"AccessDeniedException.*batch_execution_role_name needs logs:Create"
    ):
        await run()


async def test_without_put_log_events_the_log_stays_empty(enforced):
    def events():
        logs = enforced.root("logs")
        return len(logs.filter_log_events(logGroupName=VALUES["LOG-GROUP"])["events"])

    async def write():
        async with executor() as opened:
            await opened.task(print)("a line")

    before = events()
    await write()
    assert events() > before
    before = events()
    enforced.take_away("execution-role", "logs:PutLogEvents")
    await write()
    assert events() == before


def test_every_action_is_proven_to_be_needed_or_named_as_unproven():
    """A new action needs a new test here."""
    client = {row[0] for row in (*REFUSED, *LOOKS)} | {
        "batch:DescribeComputeEnvironments",
        "batch:DescribeJobDefinitions",
        "batch:GetJobQueueSnapshot",
        "logs:FilterLogEvents",
        "logs:GetLogEvents",
        "s3:AbortMultipartUpload",
        "s3:DeleteObject",
    }
    job = {row[0] for row in JOB_REFUSED} | {"s3:DeleteObject"}
    execution = {"logs:CreateLogStream", "logs:PutLogEvents"} | UNPROVEN
    assert set(actions(policy("client"))) == client
    assert set(actions(policy("job-role"))) == job
    assert set(actions(policy("execution-role"))) == execution


# --- what the policies refuse -------------------------------------------------------------------


REFUSALS = [
    ("put_object", {"Key": "farcall/v1/run/bundles/new"}),
    ("put_object", {"Key": "farcall/v1/workspaces/0.tar.gz"}),
    ("put_object", {"Key": "elsewhere/v1/run/outcomes/b/0"}),
    ("delete_object", {"Key": "farcall/v1/run/bundles/b"}),
    ("delete_object", {"Key": "farcall/v1/run/values/b/0/1/00000000"}),
    ("get_object", {"Key": "farcall/v1/run/values/b/0/1/00000000"}),
    ("list_objects_v2", {}),
    ("list_objects_v2", {"Prefix": "farcall/v1/run/streams/"}),
]


@pytest.mark.parametrize(("operation", "request_"), REFUSALS)
def test_the_job_role_may_not(enforced, operation, request_):
    s3 = enforced.client("s3", assumed(enforced))
    with pytest.raises(s3.exceptions.ClientError, match="AccessDenied"):
        getattr(s3, operation)(Bucket=BUCKET, **request_)


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("get_object", {"Key": "other/v1/run/bundles/b"}),
        ("put_object", {"Key": "farcall/v1/run/outcomes/b/0"}),
        ("put_object", {"Key": "farcall/v1/run/streams/b/0/1/stdout/00000000"}),
        ("put_object", {"Key": "other/v1/run/bundles/b"}),
        ("list_objects_v2", {}),
        ("list_objects_v2", {"Prefix": "other/"}),
    ],
)
def test_the_client_may_not_touch(enforced, operation, request_):
    s3 = enforced.client("s3", enforced.keys)
    with pytest.raises(s3.exceptions.ClientError, match="AccessDenied"):
        getattr(s3, operation)(Bucket=BUCKET, **request_)


def test_the_client_may_not_pass_another_role_nor_register_another_name(enforced):
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
