import json
import re
import subprocess
import sys

import pytest

from farcall import Settings
from farcall.backends.base import JobSpec
from farcall.backends.batch.documents import (
    OVERRIDE_CHARACTERS,
    REQUEST_BYTES,
    definition,
    job_request,
    resource_requirements,
    retry_strategy,
)
from farcall.model.errors import SettingsError, TaskTooLargeError
from farcall_runtime.contract import ExitCode

FARGATE = {"platformCapabilities": ["FARGATE"]}
MATRIX = {
    0.25: [512, 1024, 2048],
    0.5: [1024 * n for n in range(1, 5)],
    1: [1024 * n for n in range(2, 9)],
    2: [1024 * n for n in range(4, 17)],
    4: [1024 * n for n in range(8, 31)],
    8: [4096 * n for n in range(4, 16)],
    16: [8192 * n for n in range(4, 16)],
    32: [61440, 122880, 249856],
}


LOGS = {"batch_job_log_group_name": "logs"}


def made(
    *,
    image="repo/image:1",
    region="us-east-1",
    job_role="",
    execution_role="",
    groups=(),
    **options,
):
    return definition(
        JobSpec("simulate-1", 1, {}, Settings(**{**LOGS, **options}), groups),
        image=image,
        region=region,
        job_role=job_role,
        execution_role=execution_role,
    )


def request(*, environment=None, size=1, name="simulate-1", groups=(), variables=None, **options):
    options["environment"] = variables or {}
    environment = environment or {"B": "2", "A": "1"}
    job = JobSpec(name, size, environment, Settings(**options), groups)
    return job_request(job, "arn:aws:batch:us-east-1:1:job-definition/farcall-0:1")


def resources(**options):
    return {item["type"]: item["value"] for item in resource_requirements(Settings(**options))}


# --- definition -------------------------------------------------------------------------------


def container(**options):
    return made(**options).document["containerProperties"]


def test_definition_name_ignores_order():
    one = {"tags": {"a": "1", "b": "2"}, "containerProperties": {"user": "me", "privileged": True}}
    other = {
        "containerProperties": {"privileged": True, "user": "me"},
        "tags": {"b": "2", "a": "1"},
    }
    assert made(job_definition_extra=one).name == made(job_definition_extra=other).name


def test_definition_name_is_stable_across_processes():
    code = (
        "from farcall import Settings\n"
        "from farcall.backends.base import JobSpec\n"
        "from farcall.backends.batch.documents import definition\n"
        "job = JobSpec('job', 1, {}, Settings(batch_job_log_group_name='logs'))\n"
        "print(definition(job, image='i', region='r', job_role='', execution_role='').name)"
    )
    run = [sys.executable, "-W", "ignore", "-c", code]
    path = {"PYTHONPATH": ":".join(p for p in sys.path if p), "PYTHONHASHSEED": "77"}
    name = subprocess.run(run, capture_output=True, check=True, text=True, env=path).stdout.strip()
    assert name == made(image="i", region="r").name


def test_variables_are_overridden():
    found = request(environment={"FARCALL_DIGEST": "d"}, variables={"B": "2"})
    assert found["containerOverrides"]["environment"] == [
        {"name": "B", "value": "2"},
        {"name": "FARCALL_DIGEST", "value": "d"},
    ]


def test_long_variablesis_rejected():
    with pytest.raises(SettingsError, match="environment has 9031 characters") as caught:
        request(variables={"LONG": "x" * 9000})
    assert caught.value.option == "environment"


def test_secrets_are_in_definition():
    place = "arn:aws:ssm:eu-west-1:111122223333:parameter/a"
    with pytest.raises(SettingsError, match="Set batch_execution_role_name"):
        made(secrets={"A": place})
    found = container(secrets={"A": place}, batch_execution_role_name="role")
    assert found["secrets"] == [{"name": "A", "valueFrom": place}]


def test_definition_name_is_legal():
    assert re.fullmatch(r"farcall-[0-9a-f]{32}", made().name)


@pytest.mark.parametrize(
    "change",
    [
        {"image": "repo/image:2"},
        {"region": "eu-west-1"},
        {"job_role": "arn:aws:iam::1:role/a"},
        {"execution_role": "arn:aws:iam::1:role/a"},
        {"batch_job_log_group_name": "other"},
        {"job_definition_extra": FARGATE},
    ],
)
def test_definition_name_covers_fixed_fields(change):
    assert made(**change).name != made().name


@pytest.mark.parametrize(
    "change",
    [
        {"vcpu": 8},
        {"memory": 64},
        {"num_gpus": 1},
        {"time_limit": 3600},
        {"retry_attempts": 1},
        {"retry_on": "failure"},
        {"tags": {"a": "b"}},
        {"priority": 3},
        {"queue": "other"},
        {"s3_bucket_name": "other-bucket"},
    ],
)
def test_definition_name_ignores_overridable_fields(change):
    assert made(**change).name == made().name


def test_definition_has_required_fields():
    document = made(job_role="arn:job", execution_role="arn:exec").document
    assert document["type"] == "container"
    container = document["containerProperties"]
    assert (container["image"], container["jobRoleArn"]) == ("repo/image:1", "arn:job")
    assert container["executionRoleArn"] == "arn:exec"
    assert container["logConfiguration"] == {
        "logDriver": "awslogs",
        "options": {"awslogs-group": "logs", "awslogs-region": "us-east-1"},
    }


def test_empty_roles_and_logs_are_omitted():
    container = made(batch_job_log_group_name="").document["containerProperties"]
    assert {"jobRoleArn", "executionRoleArn", "logConfiguration"} & set(container) == set()


def test_job_definition_extra_adds_any_field():
    extra = {
        "platformCapabilities": ["FARGATE"],
        "containerProperties": {
            "linuxParameters": {"initProcessEnabled": True},
            "logConfiguration": {"options": {"awslogs-stream-prefix": "mine"}},
        },
    }
    document = made(job_definition_extra=extra).document
    container = document["containerProperties"]
    assert document["platformCapabilities"] == ["FARGATE"]
    assert container["linuxParameters"] == {"initProcessEnabled": True}
    assert container["logConfiguration"]["options"] == {
        "awslogs-group": "logs",
        "awslogs-region": "us-east-1",
        "awslogs-stream-prefix": "mine",
    }


# --- resources --------------------------------------------------------------------------------


def test_memory_is_rounded_up_to_mebibytes():
    assert resources(vcpu=2, memory=3.75) == {"VCPU": "2", "MEMORY": "3840"}
    assert resources(vcpu=1, memory=0.1)["MEMORY"] == "103"


def test_gpus_are_requested_only_if_set():
    assert resources(num_gpus=2)["GPU"] == "2"
    assert "GPU" not in resources(num_gpus=0)


@pytest.mark.parametrize("vcpu", [0.25, 0.5, 1.5])
def test_fractional_vcpu_is_rejected_on_ec2(vcpu):
    with pytest.raises(SettingsError, match=f"vcpu={vcpu:g} is not supported on EC2") as caught:
        resources(vcpu=vcpu)
    assert caught.value.option == "vcpu"


# --- retries ----------------------------------------------------------------------------------

STRATEGIES = [
    retry_strategy(Settings(retry_attempts=attempts, retry_on=retry_on))
    for attempts in (2, 10)
    for retry_on in ("failure", "infrastructure")
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_retry_rules_are_few_and_legal(strategy):
    rules = strategy["evaluateOnExit"]
    assert 1 <= len(rules) <= 5
    patterns = [(key, text) for rule in rules for key, text in rule.items() if key != "action"]
    for key, text in patterns:
        allowed = r"[0-9]*\*?" if key == "onExitCode" else r"[A-Za-z0-9.: ]*\*?"
        assert re.fullmatch(allowed, text)
    assert {rule["action"] for rule in rules} <= {"RETRY", "EXIT"}


def action(strategy, *, status_reason="", reason="", exit_code=None):
    """Return Batch's action for a failed attempt; without a matching rule, it retries."""
    values = {
        "onStatusReason": status_reason,
        "onReason": reason,
        "onExitCode": "" if exit_code is None else str(exit_code),
    }
    for rule in strategy["evaluateOnExit"]:
        patterns = [(values[key], text) for key, text in rule.items() if key != "action"]
        if all(text.startswith(p[:-1]) if p.endswith("*") else text == p for text, p in patterns):
            return rule["action"]
    return "RETRY"


def test_infrastructure_retries_only_platform_failures():
    strategy = retry_strategy(Settings())
    assert [
        action(strategy, status_reason="Host EC2 (instance i-1) terminated."),
        action(strategy, status_reason="Your Spot Task was interrupted.", exit_code=143),
        action(strategy, reason="CannotPullContainerError: no route to host"),
        action(strategy, reason="CannotPullECRContainerError: AccessDeniedException"),
        action(strategy, reason="DockerTimeoutError: Could not transition to created"),
    ] == ["RETRY"] * 5
    assert [action(strategy, exit_code=code) for code in (1, 60, 71, 137, None)] == ["EXIT"] * 5


def test_failure_retries_all_except_final_exits():
    strategy = retry_strategy(Settings(retry_on="failure"))
    final = [code for code in ExitCode if 60 <= code < 70]
    others = [code for code in ExitCode if code not in (*final, ExitCode.RETURNED)]
    assert {action(strategy, exit_code=int(code)) for code in final} == {"EXIT"}
    assert {action(strategy, exit_code=int(code)) for code in others} == {"RETRY"}
    assert action(strategy, status_reason="Host EC2 (instance i-1) terminated.") == "RETRY"


@pytest.mark.parametrize("retry_on", ["failure", "infrastructure"])
@pytest.mark.parametrize("is_command", [False, True])
def test_out_of_memory_is_not_retried(retry_on, is_command):
    strategy = retry_strategy(Settings(retry_on=retry_on), is_command=is_command)
    reason = "OutOfMemoryError: Container killed due to memory usage"
    assert action(strategy, exit_code=137) == "EXIT"
    assert {action(strategy, reason=reason, exit_code=code) for code in (137, 1, None)} == {"EXIT"}
    for lost in ("Host EC2 (instance i-1) terminated.", "Your Spot Task was interrupted."):
        assert action(strategy, status_reason=lost, exit_code=137) == "RETRY"


def test_out_of_memory_code_ends_functions():
    for retry_on in ("failure", "infrastructure"):
        strategy = retry_strategy(Settings(retry_on=retry_on))
        assert action(strategy, exit_code=int(ExitCode.OUT_OF_MEMORY)) == "EXIT"
    strategy = retry_strategy(Settings(retry_on="failure"), is_command=True)
    assert action(strategy, exit_code=60) == "RETRY"  # a command's exit codes are its own


def test_single_attempt_needs_no_rules():
    assert retry_strategy(Settings(retry_attempts=1)) == {"attempts": 1}


# --- request ----------------------------------------------------------------------------------


def test_plain_job_overrides_everything_possible():
    made = request(vcpu=1, memory=1, num_gpus=1, time_limit=60, retry_attempts=1)
    assert made == {
        "jobName": "simulate-1",
        "jobQueue": "farcall-ec2",
        "jobDefinition": "arn:aws:batch:us-east-1:1:job-definition/farcall-0:1",
        "containerOverrides": {
            "environment": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "resourceRequirements": [
                {"type": "VCPU", "value": "1"},
                {"type": "MEMORY", "value": "1024"},
                {"type": "GPU", "value": "1"},
            ],
        },
        "timeout": {"attemptDurationSeconds": 60},
        "retryStrategy": {"attempts": 1},
    }


def test_single_task_is_no_array():
    assert "arrayProperties" not in request(size=1)
    assert request(size=2)["arrayProperties"] == {"size": 2}


def test_tags_priority_and_share_are_optional():
    made = request(tags={"a": "b"}, priority=0, share_identifier="lab")
    assert (made["tags"], made["propagateTags"]) == ({"a": "b"}, True)
    assert (made["schedulingPriorityOverride"], made["shareIdentifier"]) == (0, "lab")
    assert {"tags", "schedulingPriorityOverride", "shareIdentifier"} & set(request()) == set()


def test_oversized_overrides_are_rejected():
    overrides = request(environment={"A": ""})["containerOverrides"]
    room = OVERRIDE_CHARACTERS - len(json.dumps(overrides))
    request(environment={"A": "x" * room})
    with pytest.raises(TaskTooLargeError, match="container overrides would have 8193 characters"):
        request(environment={"A": "x" * (room + 1)})


def test_oversized_request_is_rejected():
    tags = {f"{n:0128d}": "v" * 256 for n in range(45)}
    full = request(tags=tags)
    room = REQUEST_BYTES - len(json.dumps(full))
    request(tags=tags, name="simulate-1" + "x" * room)
    with pytest.raises(TaskTooLargeError, match=f"would have {REQUEST_BYTES + 1} characters"):
        request(tags=tags, name="simulate-1" + "x" * (room + 1))
