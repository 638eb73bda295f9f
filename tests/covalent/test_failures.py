"""Every way an electron can fail, and what the user of Covalent gets."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

import boto3
import botocore.config
import botocore.exceptions
import cloudpickle
import covalent as ct
import pytest

from tests.service.attempt import LATE
from tests.support.commands import FARCALL
from tests.support.patience import until
from tests.support.proxy import Proxy

NOBODY = "arn:aws:iam::123456789012:role/nobody"


@pytest.fixture
def batch(embedded, monkeypatch):
    """Make an executor for small jobs: ``batch(**options)``."""
    for name, value in embedded.environment.items():
        monkeypatch.setenv(name, value)
    return make_executor


def make_executor(**options):
    small = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02, "poll_freq": 1}
    return ct.executor.AWSBatchExecutor(**{**small, **options})


@pytest.fixture
def counting(embedded):
    with Proxy(embedded.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def faults(embedded, batch):
    """Order faults: ``faults(operation, kind, count)``; those left over end with the test."""
    ordered = set()

    def order(operation, kind, count=1):
        ordered.add(operation)
        embedded.fault(operation, kind, count)

    yield order
    once = botocore.config.Config(retries={"total_max_attempts": 1})
    client = boto3.client("batch", config=once)
    for _ in range(40 if ordered else 0):
        try:
            client.describe_jobs(jobs=["none"])
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError):
            continue
        break


def only(function, *args):
    """Return a lattice of one electron."""

    @ct.lattice
    def flow():
        return function(*args)

    return flow


def is_told(error):
    """Say whether an error is a sentence of ours, not a bare one of somebody below us."""
    bare = re.match(r"An error occurred|\('|Node|list index", error)
    return bool(error) and not bare and "(404)" not in error and "HeadObject" not in error


# --- one lattice of everything that goes wrong by itself -----------------------------------------


class OddError(Exception):
    def __init__(self, code, where):
        super().__init__(f"code {code}")
        self.where = where


def raise_value_error():
    print("before")
    print("beware", file=sys.stderr)
    raise ValueError("no good")


def raise_own_error():
    raise OddError(3, "here")


def raise_from_another():
    try:
        {}["key"]
    except KeyError as error:
        raise RuntimeError("could not be found") from error


def return_a_lock():
    print("locked")
    return threading.Lock()


def be_killed():
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    ctypes.string_at(0)


def leave_at_once():
    print("last words", flush=True)
    os._exit(3)


def leave():
    print("last words")
    sys.exit(3)


def interrupt():
    raise KeyboardInterrupt


def miss_a_package():
    import a_package_nobody_has  # noqa: F401


def nothing():
    return 1


class Row(NamedTuple):
    """A function, options, patterns of its error, and its output."""

    function: Any
    error: tuple[str, ...]
    stdout: str = ""
    stderr: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012


def starting(*command):
    return {"job_definition_extra": {"containerProperties": {"command": list(command)}}}


ROWS = {
    "an exception": Row(
        raise_value_error,
        (
            "^Traceback",
            'raise ValueError\\("no good"\\)',
            "^ValueError: no good$",
            "Raised in AWS",
        ),
        "before\n",
        "beware\n",
    ),
    "an exception of the user's": Row(raise_own_error, ("OddError: code 3$", "Raised in AWS")),
    "a chain of exceptions": Row(
        raise_from_another,
        ("KeyError: 'key'", "direct cause", "^RuntimeError: could not be found"),
    ),
    "a value that cannot be pickled": Row(
        return_a_lock,
        ("^ResultNotPicklableError: .* a lock, which cannot be pickled",),
        "locked\n",
    ),
    "a kill": Row(be_killed, ("^ChildKilledError: .* killed by SIGKILL",), "last words\n"),
    "a crash": Row(crash, ("^ChildKilledError: .* SIGSEGV",), "", "Segmentation fault"),
    "os._exit": Row(leave_at_once, ("^ChildKilledError: .* exit code 3 ",), "last words\n"),
    "sys.exit": Row(leave, ("^Traceback", "^SystemExit: 3$"), "last words\n"),
    "Ctrl-C": Row(interrupt, ("^Traceback", "^KeyboardInterrupt$")),
    "a package the image lacks": Row(
        miss_a_package, ("^ModuleNotFoundError: No module named 'a_package_nobody_has'",)
    ),
    "a program that is not in the image": Row(
        nothing,
        ("^ImageError: the container could not be started", "/not/there"),
        "",
        "",
        starting("/not/there"),
    ),
    "an image that is not farcall's": Row(
        nothing, ("^OutcomeMissingError: .*",), "", "", starting("true")
    ),
    "an image that fails": Row(
        nothing, ("Error: .*exit code 5",), "", "", starting("sh", "-c", "exit 5")
    ),
    "a role that cannot be assumed": Row(
        nothing,
        ("^ImageError: the job's role cannot be assumed",),
        "",
        "",
        {"batch_job_role_name": NOBODY},
    ),
    "an execution role that cannot be assumed": Row(
        nothing,
        ("^ImageError: the job's role cannot be assumed",),
        "",
        "",
        {"batch_execution_role_name": NOBODY},
    ),
    "no such queue": Row(
        nothing,
        ("^SettingsError: batch_queue is 'nowhere'",),
        "",
        "",
        {"batch_queue": "nowhere"},
    ),
    "no such bucket": Row(
        nothing,
        ("^SettingsError: s3_bucket_name is 'nowhere'.*create it",),
        "",
        "",
        {"s3_bucket_name": "nowhere"},
    ),
    "no such role": Row(
        nothing,
        ("^SettingsError: batch_job_role_name is 'nobody'",),
        "",
        "",
        {"batch_job_role_name": "nobody"},
    ),
    "no such log group": Row(
        nothing,
        ("^SettingsError: batch_job_log_group_name is 'nowhere'",),
        "",
        "",
        {"batch_job_log_group_name": "nowhere"},
    ),
    "no such profile": Row(
        nothing, ("^SettingsError: profile is 'nobodys'",), "", "", {"profile": "nobodys"}
    ),
    "no such file of credentials": Row(
        nothing,
        ("^SettingsError: credentials is '/not/there'",),
        "",
        "",
        {"credentials": "/not/there"},
    ),
    "half a vCPU on EC2": Row(
        nothing, ("^SettingsError: vcpu is 0.5.*whole number",), "", "", {"vcpu": 0.5}
    ),
    "nobody listening": Row(
        nothing, ("^ServiceError: .*127.0.0.1:9",), "", "", {"endpoint_url": "http://127.0.0.1:9"}
    ),
}


@pytest.fixture(scope="module")
def ended(embedded, server):
    """What became of every row, by its name."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in embedded.environment.items():
            monkeypatch.setenv(name, value)
        electrons = [
            ct.electron(row.function, executor=make_executor(**row.options))
            for row in ROWS.values()
        ]

    @ct.lattice
    def flow():
        return [function() for function in electrons]

    dispatch_id = ct.dispatch(flow, dispatcher_addr=server.address)()
    address = {"dispatcher_addr": server.address}

    def has_ended():
        answer = ct.get_result(dispatch_id, status_only=True, **address)
        return str(answer["status"]) not in ("NEW_OBJECT", "RUNNING", "STARTING")

    until(has_ended)
    result = ct.get_result(dispatch_id, **address)
    return {name: result.get_node_result(number) for number, name in enumerate(ROWS)}


@pytest.mark.parametrize("name", ROWS)
def test_a_failure_is_told(ended, name):
    row, found = ROWS[name], ended[name]
    assert "FAILED" == str(found["status"])
    assert row.function.__name__ == found["node_name"]
    error = found["error"]
    assert is_told(error), error
    for pattern in row.error:
        assert re.search(pattern, error, re.MULTILINE), error
    if name != "a crash":  # what faulthandler writes is part of stderr, and is quoted
        assert "farcall_runtime" not in error
    assert row.stdout == (found["stdout"] or "")
    assert row.stderr in (found["stderr"] or "")


# --- what happens to a job -----------------------------------------------------------------------


def test_a_job_whose_host_was_taken_away_says_so(embedded, dispatch, wait, node, batch, tmp_path):
    started = tmp_path / "job"

    @ct.electron(executor=batch())
    def work():
        print("started", flush=True)
        started.write_text(os.environ["AWS_BATCH_JOB_ID"])
        time.sleep(600)  # until the test ends it

    running = dispatch(only(work))
    embedded.reclaim(until(lambda: started.exists() and started.read_text()))
    failed = node(wait(running), 0)
    assert "FAILED" == failed.status
    assert "HostLostError: the instance under the job was terminated" in failed.error
    assert "Host EC2" in failed.error
    assert "retry_attempts" in failed.error


def test_a_job_whose_host_was_taken_away_is_tried_again(embedded, dispatch, wait, batch, tmp_path):
    started = tmp_path / "job"

    @ct.electron(executor=batch(retry_attempts=2, retry_on="infrastructure"))
    def work():
        attempt = int(os.environ["AWS_BATCH_JOB_ATTEMPT"])
        if attempt == 1:
            started.write_text(os.environ["AWS_BATCH_JOB_ID"])
            time.sleep(600)  # until the test ends it
        return attempt

    running = dispatch(only(work))
    embedded.reclaim(until(lambda: started.exists() and started.read_text()))
    assert 2 == wait(running).result


def test_a_job_that_takes_too_long_says_so_and_keeps_its_output(embedded, run, node, batch):
    @ct.electron(executor=batch(time_limit=60))
    def work():
        print("started", flush=True)
        time.sleep(600)  # until the test ends it

    embedded.configure(timeout_scale=0.04)
    try:
        failed = node(run(only(work)), 0)
    finally:
        embedded.configure(timeout_scale=1)
    assert "FAILED" == failed.status
    assert "JobTimeoutError: the job ran longer than time_limit" in failed.error
    assert "raise time_limit" in failed.error


@pytest.fixture
def late(tmp_path):
    """Options of a container whose time is up when its function says so, and how it says so."""
    said = tmp_path / "late"
    return {**starting(sys.executable, "-c", LATE, str(said)), "time_limit": 600}, said


def test_an_electron_that_is_told_that_its_time_is_up_is_out_of_time(run, node, batch, late):
    options, said = late

    @ct.electron(executor=batch(**options))
    def work():
        print("started", flush=True)
        said.touch()
        time.sleep(600)  # until its time is up

    failed = node(run(only(work)), 0)
    assert "FAILED" == failed.status
    assert failed.error.startswith("JobTimeoutError: the task ran longer than time_limit: job ")
    assert "raise time_limit" in failed.error
    assert "Traceback" not in failed.error
    assert "started\n" == failed.stdout


def test_in_a_task_group_it_is_told_whose_time_was_up(run, node, batch, late, packing):
    options, said = late

    @ct.electron(executor=batch(**options))
    def make():
        class Slow(dict):
            def __getitem__(self, key):
                print("asked for", key, flush=True)
                if key == "slow":
                    said.touch()
                    time.sleep(600)  # until its time is up
                return super().__getitem__(key)

            def __reduce__(self):
                return Slow, (dict(self),)

        print("made")
        return Slow(quick=1, slow=2, last=3)

    @ct.lattice
    def flow():
        made = make()
        return made["quick"], made["slow"], made["last"]

    result = run(flow)
    numbers = sorted(result.lattice.transport_graph._graph.nodes)
    found = [node(result, number) for number in numbers]
    made, quick, slow, last = (
        one for one in found if "make" in one.name or "get_item" in one.name
    )
    assert ["COMPLETED"] * 2 + ["FAILED"] * 2 == [one.status for one in (made, quick, slow, last)]
    assert ("made\n", 1, "asked for slow\n", "") == (
        made.stdout,
        quick.output,
        slow.stdout,
        last.stdout,
    )
    assert slow.error.startswith("JobTimeoutError: the task ran longer than time_limit: job ")
    assert re.match("JobTimeoutError: .*was not run.*the task ran longer than time_l", last.error)


def test_a_job_that_cannot_be_placed_fails_with_batchs_reason(
    embedded, run, node, batch, counting
):
    reason = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - the job asks for too much"

    def say_why(answer):
        for job in answer["jobs"]:
            if job["status"] == "RUNNABLE":
                job["statusReason"] = reason

    counting.changes["describejobs"] = say_why

    @ct.electron(executor=batch(endpoint_url=counting.url, stuck_timeout_s=0))
    def work():
        return 1

    embedded.configure(delays={"RUNNABLE": 600})
    try:
        failed = node(run(only(work)), 0)
    finally:
        embedded.configure(delays={})
    assert "FAILED" == failed.status
    assert "JobStuckError: the job could not be placed for stuck_timeout_s" in failed.error
    assert reason in failed.error


def say(**words):
    """Have Batch say this of a job that has ended."""
    words = {"status": "FAILED", "statusReason": "", **words}
    container = words.pop("container", {})

    def change(answer):
        for job in answer["jobs"]:
            if job["status"] in ("SUCCEEDED", "FAILED"):
                job.update(words)
                job["container"].update(container)

    return lambda proxy: proxy.changes.update(describejobs=change)


def answer(operation, fault):
    return lambda proxy: proxy.lasting.update({operation: fault})


def deny_the_outcome(proxy):
    def rule(request):
        its_own = request.operation == "s3 GET outcomes" and request.path.endswith("/0")
        return "denied" if its_own else ""

    proxy.rule = rule


QUIET = starting("true")
VERDICTS = {
    "a container that ran out of memory": (
        say(container={"reason": "OutOfMemoryError: Container killed", "exitCode": 137}),
        QUIET,
        "OutOfMemoryError: the container ran out of memory",
        "raise memory",
    ),
    "a lost host": (
        say(statusReason="Host EC2 (instance i-1) terminated."),
        QUIET,
        "HostLostError: the instance under the job was terminated",
        "retry_attempts",
    ),
    "Batch's own time limit": (
        say(statusReason="Job attempt duration exceeded timeout"),
        QUIET,
        "JobTimeoutError: the job ran longer than time_limit",
        "raise time_limit",
    ),
    "an image that cannot be pulled": (
        say(statusReason="Task failed to start", container={"reason": "CannotPullContainerError"}),
        QUIET,
        "ImageError: ",
        "container_image_uri",
    ),
    "no outcome": (say(status="SUCCEEDED"), QUIET, "OutcomeMissingError: ", "Dockerfile"),
    "an outcome somebody else wrote": (
        answer("s3 GET outcomes", (200, {"no": "outcome"})),
        {},
        "IntegrityError: the outcome is not what the job wrote",
        "find out who else writes",
    ),
    "an outcome that may not be read": (
        deny_the_outcome,
        {},
        "ServiceError: GetObject of s3://",
        "permission",
    ),
    "a job that Batch refuses": (
        answer("batch submitjob", (400, "ClientException")),
        {},
        "SubmissionError: job ",
        "was not accepted",
    ),
    "a call that is not allowed": (
        answer("batch submitjob", "denied"),
        {},
        "ServiceError: SubmitJob ",
        "permission",
    ),
    "a page in the place of AWS": (
        answer("batch *", "page"),
        {},
        "ServiceError: ",
        "log in",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_is_told_with_its_name_and_what_to_do(run, node, batch, counting, name):
    spoil, options, verdict, remedy = VERDICTS[name]
    spoil(counting)

    @ct.electron(executor=batch(endpoint_url=counting.url, **options))
    def work():
        return 1

    failed = node(run(only(work)), 0)
    assert "FAILED" == failed.status
    assert failed.error.startswith(verdict), failed.error
    assert remedy in failed.error, failed.error
    if "outcome" in name and verdict.startswith("ServiceError"):
        job_id = re.search("; what job (.*) has stored is kept", failed.error)[1]
        assert 36 == len(job_id)


# --- credentials that have ended -----------------------------------------------------------------


class Credentials:
    """Those of Covalent's server, which end and are renewed."""

    def __init__(self, proxy):
        self.have_ended = False
        self.operations = ("s3 LIST outcomes", "s3 GET outcomes", "batch describejobs")
        proxy.rule = self._meet

    def _meet(self, request):
        return "expired" if self.have_ended and request.operation in self.operations else ""


@pytest.fixture
def credentials(counting):
    return Credentials(counting)


@pytest.fixture
def held(batch, counting, tmp_path):
    """An electron that has begun when ``begun-<number>`` is there, and ends when ``go`` is."""

    @ct.electron(executor=batch(endpoint_url=counting.url))
    def work(number=0):
        (tmp_path / f"begun-{number}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.05)
        print("done", number)
        return number

    yield work
    (tmp_path / "go").touch()


def test_a_running_task_shows_that_its_end_cannot_be_known(
    dispatch, wait, node, held, credentials, tmp_path
):
    @ct.lattice
    def flow():
        return [held(0), held(1)]

    def found():
        result = ct.get_result(running)
        numbers = result.lattice.transport_graph._graph.nodes
        return [one for n in sorted(numbers) if (one := node(result, n)).name == "work"]

    running = dispatch(flow)
    until(lambda: all((tmp_path / f"begun-{number}").exists() for number in range(2)))
    credentials.have_ended = True
    told = until(lambda: all(one.error for one in found()) and found())
    for one in told:
        assert "RUNNING" == one.status
        assert re.match("ListObjects.*; renew the credentials.*; jobs go on", one.error), one.error
    credentials.have_ended = False
    until(lambda: not any(one.error for one in found()))
    (tmp_path / "go").touch()
    assert [0, 1] == wait(running).result
    assert [("COMPLETED", "", "done 0\n"), ("COMPLETED", "", "done 1\n")] == [
        (one.status, one.error, one.stdout) for one in found()
    ]


def test_a_value_is_fetched_when_the_credentials_are_renewed(
    dispatch, wait, node, held, credentials, tmp_path
):
    credentials.operations = ("s3 GET outcomes",)
    running = dispatch(only(held))
    until((tmp_path / "begun-0").exists)
    credentials.have_ended = True
    (tmp_path / "go").touch()
    error = until(lambda: node(ct.get_result(running), 0).error)
    assert re.match("GetObject .*; renew the credentials.*; jobs go on", error), error
    credentials.have_ended = False
    result = wait(running)
    assert (0, "") == (result.result, node(result, 0).error)


# --- attempts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "attempts"),
    [({}, 3), ({"retry_attempts": 2}, 2), ({"retry_on": "infrastructure"}, 1)],
)
def test_an_exception_is_tried_again_as_the_options_say(run, node, batch, options, attempts):
    @ct.electron(executor=batch(**{"retry_attempts": 3, **options}))
    def work():
        print(os.environ["AWS_BATCH_JOB_ATTEMPT"])
        raise ValueError("no good")

    failed = node(run(only(work)), 0)
    assert "ValueError: no good" in failed.error
    assert f"attempt {attempts}." in failed.error
    assert f"{attempts}\n" == failed.stdout


def test_describe_shows_the_traceback_and_the_node_of_an_electron(run, node, batch):
    @ct.electron(executor=batch(workflow="told"))
    def make():
        return 3

    @ct.electron(executor=batch(workflow="told"))
    def work(number):
        raise ValueError(f"no good: {number}")

    @ct.lattice
    def flow():
        return work(make())

    result = run(flow)
    names = result.lattice.transport_graph.get_node_value
    numbers = sorted(result.lattice.transport_graph._graph.nodes)
    (number,) = (each for each in numbers if names(each, "name") == "work")
    job_id = re.search(r"AWS Batch job (\S+) ", node(result, number).error)[1]
    command = [FARCALL, "describe", "--json", job_id]
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert told["electron"] == number
    why = told["explanation"]
    assert why["sentence"] == f"node {number} failed: the function raised ValueError: no good: 3"
    assert "in work" in why["traceback"]
    assert "ValueError: no good: 3" in why["traceback"]


def test_retry_attempts_are_three_at_first(batch):
    executor = ct.executor.AWSBatchExecutor()
    assert (3, "failure") == (executor.retry_attempts, executor.retry_on)


# --- requests that fail --------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "count"), [("throttle", 6), ("error", 1), ("lost", 1)])
def test_a_submission_that_fails_for_a_while_is_one_job(run, batch, faults, kind, count):
    @ct.electron(executor=batch())
    def work():
        return os.environ["AWS_BATCH_JOB_ID"]

    faults("SubmitJob", kind, count)
    job_id = run(only(work)).result
    client = boto3.client("batch")
    (job,) = client.describe_jobs(jobs=[job_id])["jobs"]
    alike = client.list_jobs(
        jobQueue="farcall-local", filters=[{"name": "JOB_NAME", "values": [job["jobName"]]}]
    )
    assert [job_id] == [each["jobId"] for each in alike["jobSummaryList"]]


@pytest.mark.parametrize("kind", ["throttle", "error"])
def test_a_stored_value_does_not_wait_for_requests_that_fail(dispatch, wait, batch, faults, kind):
    @ct.electron(executor=batch(poll_freq=0))
    def work():
        time.sleep(2)
        return 1

    faults("DescribeJobs", kind, 30)
    assert 1 == wait(dispatch(only(work)), timeout_s=15).result


# --- versions ------------------------------------------------------------------------------------


def test_another_python_in_the_image_is_named_before_anything_is_unpickled(
    run, node, batch, monkeypatch
):
    @ct.electron(executor=batch())
    def work():
        return 1

    here = ".".join(platform.python_version_tuple()[:2])
    monkeypatch.setattr(platform, "python_version", lambda: "3.9.18")
    failed = node(run(only(work)), 0)
    assert "FAILED" == failed.status
    assert "VersionMismatchError: workflow and image run different versions" in failed.error
    assert "3.9" in failed.error
    assert here in failed.error


def test_another_cloudpickle_in_the_image_is_named(run, node, batch, monkeypatch):
    @ct.electron(executor=batch())
    def work():
        return 1

    here = cloudpickle.__version__
    monkeypatch.setattr(cloudpickle, "__version__", "2.9.1")
    failed = node(run(only(work)), 0)
    assert "FAILED" == failed.status
    assert "VersionMismatchError: " in failed.error
    assert f"pickled by cloudpickle 2.9.1 and this image has {here}" in failed.error
