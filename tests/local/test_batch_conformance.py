"""Rules of AWS Batch that farcall depends on, with boto3.

Each docstring states a rule and its source. Starts jobs as real processes on the local AWS
emulator, because signals, exit codes and logs come from processes; with ``--aws``, on a real
account.
"""

from __future__ import annotations

import re
import time

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

pytestmark = pytest.mark.core


def refusal(call, *args, **kwargs):
    """Return the message of the ClientException that a call raises."""
    with pytest.raises(ClientError) as caught:
        call(*args, **kwargs)
    assert caught.value.response["Error"]["Code"] == "ClientException"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    return caught.value.response["Error"]["Message"]


# States, attempts, logs -----------------------------------------------------------------------


def test_exit_code_decides_job_status(batch):
    """A nonzero exit code is a failure; the container and the attempt have the code.

    https://docs.aws.amazon.com/batch/latest/APIReference/API_AttemptContainerDetail.html
    """
    good, bad = batch.shell("exit 0"), batch.shell("exit 3")
    assert (good["status"], good["container"]["exitCode"]) == ("SUCCEEDED", 0)
    assert (bad["status"], bad["container"]["exitCode"]) == ("FAILED", 3)
    assert [a["container"]["exitCode"] for a in bad["attempts"]] == [3]
    assert bad["statusReason"] == "Essential container in task exited"
    assert bad["createdAt"] <= bad["startedAt"] <= bad["stoppedAt"]


def test_running_job_has_log_stream(batch):
    """Each attempt gets its log stream in RUNNING; `attempts` lists ended attempts only.

    https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerDetail.html
    """
    job_id = batch.start("echo err >&2; sleep 30")
    detail = batch.wait(job_id, "RUNNING")
    assert detail["attempts"] == []
    assert "exitCode" not in detail["container"]
    assert "stoppedAt" not in detail
    name, kind, task = detail["container"]["logStreamName"].split("/")
    assert kind == "default"
    assert detail["jobDefinition"].split("/")[1].startswith(name)
    assert detail["container"]["taskArn"].endswith(task)
    # The order of a container's two streams is undefined.
    batch.wait_for(lambda: sorted(batch.output(detail)) == ["err", "ready"])
    batch.batch.terminate_job(jobId=job_id, reason="enough")
    batch.wait(job_id)


def test_output_interval_is_passed_on_request(batch, knobs):
    told = []
    for stream_s in (None, 0.5, None):
        knobs.configure(stream_s=stream_s)
        detail = batch.run("sh", "-c", "echo told:$FARCALL_STREAM_S")
        batch.wait_for(lambda detail=detail: batch.output(detail))
        told += batch.output(detail)
    assert told == ["told:", "told:0.5", "told:"]


def test_missing_command_fails_the_start(batch):
    """A command that is not in the image gives CannotStartContainerError.

    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/stopped-task-error-codes.html
    """
    # With an init process, the start would succeed, and the init process would exit with 127.
    job = batch.run("no-such-command-anywhere", document={"container": {"linuxParameters": {}}})
    assert (job["status"], job["statusReason"]) == ("FAILED", "Task failed to start")
    assert job["container"]["reason"].startswith("CannotStartContainerError: ")
    assert "executable file not found" in job["container"]["reason"]


def test_unassumable_role_fails_the_start(batch, knobs):
    """A task whose role does not exist or does not trust ECS is not started.

    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-iam-roles.html
    """
    good = f"arn:aws:iam::123456789012:role/{knobs.environment['FARCALL_BATCH_JOB_ROLE_NAME']}"
    bad = "arn:aws:iam::123456789012:role/unknown"
    assert batch.run("true", document={"container": {"jobRoleArn": good}})["status"] == "SUCCEEDED"
    job = batch.run("true", document={"container": {"jobRoleArn": bad}})
    assert job["status"] == "FAILED"
    assert job["statusReason"].startswith(f"ECS was unable to assume the role '{bad}'")


# Environment, command, parameters -------------------------------------------------------------


def test_job_has_batch_environment(batch, knobs, monkeypatch):
    """Batch sets its AWS_BATCH variables; the user's own environment is not passed.

    https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
    """
    job = batch.shell("env; pwd; ls -A; readlink /proc/self/fd/0 || true")
    lines = batch.output(job)
    env = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
    assert env["AWS_BATCH_JOB_ID"] == job["jobId"]
    assert env["AWS_BATCH_JOB_ATTEMPT"] == "1"
    assert env["AWS_BATCH_JQ_NAME"] == batch.queue
    assert env["AWS_BATCH_CE_NAME"] == "farcall-local"
    assert env["AWS_ENDPOINT_URL"] == knobs.endpoint_url
    assert "AWS_BATCH_JOB_ARRAY_INDEX" not in env
    assert not [name for name in env if name.startswith(("PYTEST", "VIRTUAL_ENV", "SSH"))]
    assert "/dev/null" in lines


def test_command_and_resources_are_overridden(batch):
    """`command` and `resourceRequirements` of the submission win, the latter by type.

    https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerOverrides.html
    """
    job = batch.run(
        "false",
        containerOverrides={
            "command": ["sh", "-c", "echo mine"],
            "resourceRequirements": [{"type": "MEMORY", "value": "256"}],
        },
    )
    assert batch.output(job) == ["mine"]
    shown = {item["type"]: item["value"] for item in job["container"]["resourceRequirements"]}
    assert shown == {"VCPU": "1", "MEMORY": "256"}


# Retries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "attempts"),
    [
        pytest.param([{"onExitCode": "3", "action": "EXIT"}], 1, id="exit"),
        pytest.param([{"onExitCode": "4", "action": "EXIT"}], 3, id="no match means retry"),
        pytest.param(
            [
                {"onExitCode": "3*", "action": "retry"},
                {"onReason": "*", "action": "exit"},
            ],
            3,
            id="first match wins",
        ),
        pytest.param(
            [{"onExitCode": "3", "onReason": "Out*", "action": "EXIT"}], 3, id="all must match"
        ),
        pytest.param([{"onReason": "*", "action": "EXIT"}], 1, id="* matches an absent reason"),
        pytest.param(
            [{"onStatusReason": "Essential container*", "action": "EXIT"}], 1, id="status reason"
        ),
    ],
)
def test_first_matching_exit_rule_decides(batch, rules, attempts):
    """The first rule whose conditions all match decides; if none matches, Batch retries.

    https://docs.aws.amazon.com/batch/latest/APIReference/API_EvaluateOnExit.html
    """
    retry = {"attempts": 3, "evaluateOnExit": rules}
    job = batch.shell("exit 3", retryStrategy=retry)
    assert len(job["attempts"]) == attempts
    shown = job["retryStrategy"]["evaluateOnExit"]
    assert [rule["action"] for rule in shown] == [rule["action"].lower() for rule in rules]


def test_reclaimed_host_is_retried(batch, knobs):
    """A lost EC2 host gives the reason `Host EC2 …` and no exit code; a rule can match it.

    https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html
    """
    rules = [
        {"onStatusReason": "Host EC2*", "action": "RETRY"},
        {"onReason": "*", "action": "EXIT"},
    ]
    job_id = batch.start(
        "[ $AWS_BATCH_JOB_ATTEMPT = 2 ] || sleep 30",
        retryStrategy={"attempts": 3, "evaluateOnExit": rules},
    )
    knobs.reclaim(job_id)
    job = batch.wait(job_id)
    first = job["attempts"][0]
    assert (job["status"], len(job["attempts"])) == ("SUCCEEDED", 2)
    assert re.fullmatch(
        r"Host EC2 \(instance i-[0-9a-f]{17}\) terminated\.", first["statusReason"]
    )
    assert "exitCode" not in first["container"]


# Timeouts -------------------------------------------------------------------------------------


def test_timeout_sends_sigterm(batch):
    """After attemptDurationSeconds the job gets SIGTERM; it fails and is not retried.

    https://docs.aws.amazon.com/batch/latest/userguide/job_timeouts.html
    """
    batch.tune(timeout_scale=0.05)
    job = batch.shell(
        "trap 'echo bye; exit 5' TERM; sleep 100 & wait",
        timeout={"attemptDurationSeconds": 60},
        retryStrategy={"attempts": 3},
    )
    assert (job["status"], len(job["attempts"])) == ("FAILED", 1)
    assert job["statusReason"] == "Job attempt duration exceeded timeout"
    assert job["timeout"] == {"attemptDurationSeconds": 60}
    assert batch.output(job) == ["bye"]


def test_timeout_kills_process_ignoring_sigterm(batch):
    """30 s after SIGTERM, Batch sends SIGKILL to every process of the container.

    https://docs.aws.amazon.com/batch/latest/userguide/job_timeouts.html
    """
    batch.tune(timeout_scale=0.05, stop_grace_s=3)
    job = batch.shell(
        "trap 'echo no' TERM; while :; do sleep 0.1; done", timeout={"attemptDurationSeconds": 60}
    )
    assert job["statusReason"] == "Job attempt duration exceeded timeout"
    assert job["container"]["exitCode"] == 137
    assert batch.output(job) == ["no"]


# Cancel and terminate -------------------------------------------------------------------------


def test_terminate_signals_only_main_process(batch, knobs):
    """docker sends SIGTERM only to PID 1; other processes are killed with the container.

    https://docs.docker.com/reference/cli/docker/container/stop/
    """
    knobs.configure(stop_grace_s=3)
    child = "trap 'echo child' TERM; while :; do sleep 0.05; done"
    job_id = batch.start(f"sh -c \"{child}\" & trap 'echo main' TERM; while :; do wait; done")
    time.sleep(0.2)
    batch.batch.terminate_job(jobId=job_id, reason="enough")
    job = batch.wait(job_id)
    assert job["container"]["exitCode"] == 137
    assert batch.output(job) == ["ready", "main"]


# Describing and listing -----------------------------------------------------------------------


def test_list_jobs_shows_one_state(batch):
    """ListJobs shows RUNNING jobs unless the request names another state.

    https://docs.aws.amazon.com/batch/latest/APIReference/API_ListJobs.html
    """
    done = batch.shell("exit 4")["jobId"]
    running = batch.start("sleep 30")

    def listed(**options):
        reply = batch.batch.list_jobs(jobQueue=batch.queue, **options)
        return {row["jobId"]: row for row in reply["jobSummaryList"]}

    assert running in listed()
    assert done not in listed()
    row = listed(jobStatus="FAILED")[done]
    assert row["container"] == {"exitCode": 4}
    assert {"isCancelled", "isTerminated"}.isdisjoint(row)
    batch.batch.terminate_job(jobId=running, reason="enough")
    batch.wait(running)


# Definitions ----------------------------------------------------------------------------------


def test_bare_name_runs_latest_revision(batch):
    """Each registration makes a revision; a bare name runs the latest ACTIVE one.

    https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html
    """
    name = f"farcall-test-revisions-{time.time_ns()}"
    arns = [batch.definition("true", name=name) for _ in range(3)]
    assert [arn.rpartition(":")[2] for arn in arns] == ["1", "2", "3"]
    batch.batch.deregister_job_definition(jobDefinition=arns[2])
    for reference, used in ((name, arns[1]), (f"{name}:1", arns[0]), (arns[0], arns[0])):
        assert batch.describe(batch.submit(reference))["jobDefinition"] == used
    assert "is not ACTIVE" in refusal(batch.submit, arns[2])
    assert "does not exist" in refusal(batch.submit, f"{name}:4")


def test_empty_variables_are_dropped_from_definitions(batch):
    """Batch drops environment variables with an empty value from a definition.

    https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html
    """
    variables = [{"name": "EMPTY", "value": ""}, {"name": "FULL", "value": "1"}]
    arn = batch.definition("true", container={"environment": variables})
    shown = batch.batch.describe_job_definitions(jobDefinitions=[arn])["jobDefinitions"][0]
    assert shown["containerProperties"]["environment"] == variables[1:]


def fargate(vcpu, memory, **container):
    """Return a Fargate definition's differences from the default definition."""
    requirements = [{"type": "VCPU", "value": vcpu}, {"type": "MEMORY", "value": memory}]
    role = "arn:aws:iam::123456789012:role/execution"
    return {
        "platformCapabilities": ["FARGATE"],
        "container": {
            "executionRoleArn": role,
            "resourceRequirements": requirements,
            **container,
        },
    }


def retry_rules(*rules):
    return {"retryStrategy": {"attempts": 2, "evaluateOnExit": list(rules)}}


EXIT = {"onExitCode": "3", "action": "EXIT"}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        pytest.param({"name": "a b"}, "name should match", id="name"),
        pytest.param({"vcpu": "0.5"}, "VCPU", id="half a vCPU on EC2"),
        pytest.param({"container": {"jobRoleArn": "just-a-name"}}, "ARN of a role", id="role"),
        pytest.param({"timeout": {"attemptDurationSeconds": 59}}, "60 seconds", id="timeout"),
        pytest.param({"retryStrategy": {"attempts": 11}}, "attempts", id="attempts"),
        pytest.param(retry_rules(*[EXIT] * 6), "5", id="six rules"),
        pytest.param(retry_rules({**EXIT, "onExitCode": "1*3"}), "restricted", id="asterisk"),
        pytest.param({"tags": {"k": "v" * 257}}, "Tag 'k'", id="tag"),
        pytest.param({"container": {"command": ["x" * 25_000]}}, "24 KiB", id="size"),
        pytest.param(fargate("1", "1024"), "1 vCPU and 1024 MiB", id="Fargate pair"),
        pytest.param(fargate("1", "2048", executionRoleArn=""), "RoleArn", id="Fargate role"),
        pytest.param(fargate("1", "2048", privileged=True), "privileged", id="Fargate option"),
        pytest.param({"ecsProperties": {"taskProperties": []}}, "not support", id="unsupported"),
    ],
)
def test_invalid_definition_is_rejected(batch, document, reason):
    """A registration that breaks a documented rule fails with a reason.

    https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ResourceRequirement.html
    """
    assert reason in refusal(batch.definition, "true", **document)


# Submissions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        pytest.param({"jobName": "a.b"}, "Job name", id="name"),
        pytest.param({"arrayProperties": {"size": 1}}, "Array size", id="array of one"),
        pytest.param({"arrayProperties": {"size": 10_001}}, "Array size", id="large array"),
        pytest.param({"jobQueue": "x"}, "JobQueue x not found.", id="queue"),
        pytest.param(
            {"dependsOn": [{"jobId": "x"}]}, "does not support dependsOn", id="dependency"
        ),
        pytest.param({"containerOverrides": {"command": [""]}}, "empty string", id="command"),
        pytest.param(
            {"containerOverrides": {"environment": [{"name": "AWS_BATCH_X", "value": "1"}]}},
            "AWS_BATCH",
            id="reserved variable",
        ),
        pytest.param({"shareIdentifier": "a"}, "scheduling policy", id="share"),
        pytest.param(
            {"containerOverrides": {"command": ["true", "x" * 31_000]}},
            "Job size must be less than 30 KiB, got 31 KiB",
            id="size",
        ),
    ],
)
def test_invalid_submission_is_rejected(batch, document, reason):
    """A SubmitJob request that breaks a documented rule fails with a reason.

    https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html
    https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html
    """
    definition = batch.definition("true")
    assert reason in refusal(batch.submit, **{"definition": definition, **document})


# Multi-node parallel jobs ---------------------------------------------------------------------


def test_nodes_have_index_and_main_address(batch):
    """Each node knows its index; all but the main node know the main node's address.

    https://docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html
    """
    # The main node must exit last, because its exit stops the other nodes.
    main = "env; until [ -e /nowhere ]; do sleep 0.05; done"
    job_id = batch.submit(batch.nodes({"0": "env", "1": main}, 2, main=1))
    batch.wait(f"{job_id}#0")
    found = {}
    for detail in (batch.describe(f"{job_id}#{index}") for index in (0, 1)):
        lines = batch.output(detail)
        found[detail["jobId"]] = dict(line.split("=", 1) for line in lines if "=" in line)
    batch.batch.terminate_job(jobId=job_id, reason="enough")
    batch.wait(job_id)
    child, main = found[f"{job_id}#0"], found[f"{job_id}#1"]
    prefix = "AWS_BATCH_JOB"
    assert (child[f"{prefix}_ID"], main[f"{prefix}_ID"]) == (f"{job_id}#0", f"{job_id}#1")
    assert (child[f"{prefix}_NODE_INDEX"], main[f"{prefix}_NODE_INDEX"]) == ("0", "1")
    for env in (child, main):
        assert env[f"{prefix}_NUM_NODES"] == "2"
        assert env[f"{prefix}_MAIN_NODE_INDEX"] == "1"
        assert env[f"{prefix}_ATTEMPT"] == "1"
        assert f"{prefix}_ARRAY_INDEX" not in env
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", child[f"{prefix}_MAIN_NODE_PRIVATE_IPV4_ADDRESS"])
    assert f"{prefix}_MAIN_NODE_PRIVATE_IPV4_ADDRESS" not in main


def test_timeout_stops_all_nodes(batch):
    """attemptDurationSeconds applies to the job: all nodes are stopped and none is retried.

    https://docs.aws.amazon.com/batch/latest/userguide/job-lifecycle.html
    """
    batch.tune(timeout_scale=0.05)
    job_id = batch.submit(
        batch.nodes({"0:": "sleep 600"}, 2),
        timeout={"attemptDurationSeconds": 60},
        retryStrategy={"attempts": 3},
    )
    whole = batch.wait(job_id)
    assert (whole["status"], len(whole["attempts"])) == ("FAILED", 1)
    assert whole["statusReason"] == "Job attempt duration exceeded timeout"
    for index in (0, 1):
        node = batch.wait(f"{job_id}#{index}")
        assert node["statusReason"] == "Job attempt duration exceeded timeout"


# Throttling and faults ------------------------------------------------------------------------


def test_submit_rate_is_throttled(batch, knobs):
    """Above its rate SubmitJob returns 429 TooManyRequestsException, which is not modelled.

    https://repost.aws/knowledge-center/aws-batch-requests-error
    """
    definition = batch.definition("true")
    knobs.configure(submit_rate=0.001)
    batch.submit(definition)
    with pytest.raises(ClientError) as caught:
        batch.submit(definition)
    assert caught.value.response["Error"]["Code"] == "TooManyRequestsException"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
    knobs.configure(submit_rate=1)
    batch.submit(definition)
    batch.wait_for(lambda: _is_submitted(batch, definition))


def _is_submitted(batch, definition):
    try:
        batch.submit(definition)
    except ClientError:  # still throttled
        return False
    return True


def test_requested_faults_are_injected(batch, knobs):
    """A test can request a 429, a 500 and a lost response, whose job exists."""
    definition = batch.definition("true")
    knobs.fault("SubmitJob", "throttle")
    knobs.fault("SubmitJob", "error")
    knobs.fault("SubmitJob", "lost")
    name = f"lost-{time.time_ns()}"
    for code in ("TooManyRequestsException", "ServerException"):
        with pytest.raises(ClientError, match=code):
            batch.submit(definition, jobName=name)
    with pytest.raises(ConnectionClosedError):
        batch.submit(definition, jobName=name)
    filters = [{"name": "JOB_NAME", "values": [name]}]
    found = batch.batch.list_jobs(jobQueue=batch.queue, filters=filters)["jobSummaryList"]
    assert len(found) == 1
