"""Job definitions of the local AWS emulator with ``--docker``, seen from inside the container.

Starts containers, because limits, mounts, users and their removal are docker's.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import boto3
import pytest

import farcall_local
from farcall.filesystem import identity
from farcall_local.runners.docker import SERVER_LABEL
from tests.local.account import Account


def job(batch, *command, **container):
    """Run a command in the base image; return the job's description."""
    return batch.run(*command, document={"container": container})


def python(batch, script, **container):
    """Run a script that prints one line of JSON; return the parsed value."""
    detail = job(batch, "python3", "-c", script, **container)
    assert detail["status"] == "SUCCEEDED", batch.output(detail)
    return json.loads(batch.output(detail)[-1])


CREDENTIALS = """
import json, os, urllib.error, urllib.request
url = os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
token = open(os.environ["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]).read()
def ask(url, token):
    try:
        return json.load(urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": token})))
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([ask(url, token), ask(url, "guess"), ask(url + "x", token), sorted(os.environ)]))
"""  # noqa: E501


@pytest.mark.path
def test_container_gets_credentials_from_endpoint(batch):
    """The endpoint requires the token; the environment contains no keys."""
    role = batch.local.environment["FARCALL_BATCH_JOB_ROLE_NAME"]
    arn = f"arn:aws:iam::123456789012:role/{role}"
    keys, stranger, elsewhere, variables = python(batch, CREDENTIALS, jobRoleArn=arn)
    assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} & set(variables)
    assert (stranger, elsewhere) == (401, 400)
    assert keys["RoleArn"] == arn
    sts = boto3.client(
        "sts",
        endpoint_url=batch.local.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["Token"],
    )
    assert f":assumed-role/{role}/" in sts.get_caller_identity()["Arn"]
    sts.close()


def test_resource_requirements_are_limits(batch):
    """MEMORY limits memory without swap, and VCPU limits processors."""
    script = """
import json, os
def first(*paths):
    return next(open(path).read().split() for path in paths if os.path.exists(path))
root = "/sys/fs/cgroup"
memory = first(f"{root}/memory.max", f"{root}/memory/memory.limit_in_bytes")[0]
quota = first(f"{root}/cpu.max", f"{root}/cpu/cpu.cfs_quota_us")[0]
print(json.dumps([int(memory), int(quota)]))
"""
    requirements = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "96"}]
    memory, quota = python(batch, script, resourceRequirements=requirements)
    assert memory == 96 * 1024 * 1024
    assert quota == 100_000  # per period of 100,000 microseconds


def test_out_of_memory_has_ecs_reason(batch):
    """The container's reason names the memory, and the exit code is for SIGKILL."""
    requirements = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    detail = job(batch, "python3", "-c", "x = b'x' * 10**9", resourceRequirements=requirements)
    assert detail["status"] == "FAILED"
    assert detail["statusReason"] == "Essential container in task exited"
    assert detail["container"]["exitCode"] == 137
    assert detail["container"]["reason"] == (
        "OutOfMemoryError: Container killed due to memory usage"
    )
    assert detail["attempts"][0]["container"]["reason"] == detail["container"]["reason"]


def test_container_properties_are_applied(batch, tmp_path):
    """The properties are read-only root, user, ulimits, and host and anonymous volumes."""
    script = """
import json, os, resource
def writable(path):
    try:
        open(path, "w").write("x")
    except OSError as error:
        return error.strerror
    return True
print(json.dumps([
    os.getuid(), writable("/file"), writable("/host/file"), writable("/own/file"),
    resource.getrlimit(resource.RLIMIT_NOFILE),
]))
"""
    uid, root, host, own, files = python(
        batch,
        script,
        user="0:0",
        readonlyRootFilesystem=True,
        ulimits=[{"name": "nofile", "softLimit": 77, "hardLimit": 99}],
        volumes=[{"name": "host", "host": {"sourcePath": str(tmp_path)}}, {"name": "own"}],
        mountPoints=[
            {"sourceVolume": "host", "containerPath": "/host", "readOnly": True},
            {"sourceVolume": "own", "containerPath": "/own"},
        ],
    )
    assert (uid, root, host, own) == (0, "Read-only file system", "Read-only file system", True)
    assert files == [77, 99]
    uid, *_ = python(batch, "import json, os; print(json.dumps([os.getuid()]))", user="4242")
    assert uid == 4242


@pytest.mark.parametrize(
    ("container", "reason"),
    [
        pytest.param(
            {"image": "127.0.0.1:1/nothing:here"}, "CannotPullContainerError: ", id="image"
        ),
        pytest.param(
            {
                "resourceRequirements": [
                    {"type": "VCPU", "value": "1"},
                    {"type": "MEMORY", "value": "64"},
                    {"type": "GPU", "value": "1"},
                ]
            },
            "CannotStartContainerError: Error response from daemon: could not select device",
            id="GPU",
        ),
        pytest.param(
            {
                "secrets": [{"name": "A", "valueFrom": "arn:aws:ssm:us-east-1:1:parameter/a"}],
                "executionRoleArn": "arn:aws:iam::123456789012:role/farcall-local-execution",
            },
            "ResourceInitializationError: unable to pull secrets",
            id="secrets",
        ),
        pytest.param(
            {
                "volumes": [{"name": "v", "host": {"sourcePath": "/does/not/exist"}}],
                "mountPoints": [{"sourceVolume": "v", "containerPath": "/v"}],
            },
            "CannotCreateContainerError: ",
            id="volume",
        ),
    ],
)
def test_failed_start_has_reason(batch, container, reason):
    """The reason begins like ECS's reason; there is no exit code and no start time."""
    detail = job(batch, "true", **container)
    assert detail["status"] == "FAILED"
    assert detail["statusReason"] == "Task failed to start"
    assert detail["container"]["reason"].startswith(reason)
    assert "exitCode" not in detail["container"]
    assert "startedAt" not in detail


def containers(docker, server):
    """Return a local AWS emulator's containers in any state."""
    return docker("ps", "--all", "--quiet", "--filter", f"label={SERVER_LABEL}={server}").split()


def folders(server):
    return list(Path(tempfile.gettempdir()).glob(f"farcall-docker-{server}-*"))


def test_no_container_outlives_the_emulator(docker, base_image):
    """The next emulator removes the containers of a killed emulator."""
    for killed in (False, True):
        with farcall_local.start(cpus=2, docker=True) as aws:
            account = Account(aws, base_image)
            account.start("trap '' TERM; sleep 1000")
            pid = aws._process.pid
            server = identity(pid)
            assert len(containers(docker, server)) == 1
            if killed:
                os.kill(pid, signal.SIGKILL)
            account.close()
        if not killed:
            assert containers(docker, server) == []
            assert folders(server) == []
    assert len(containers(docker, server)) == 1
    assert len(folders(server)) == 1
    with farcall_local.start(cpus=2, docker=True) as aws:
        account = Account(aws, base_image)
        account.run("true")
        account.close()
        assert containers(docker, server) == []
        assert folders(server) == []


def test_missing_engine_is_explained(tmp_path):
    """The message contains the remedy but no traceback."""
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none"}
    done = subprocess.run(
        [sys.executable, "-m", "farcall", "local", "--docker", "--", "true"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no docker engine responds" in done.stderr
    assert "set DOCKER_HOST" in done.stderr
    assert "Traceback" not in done.stderr
