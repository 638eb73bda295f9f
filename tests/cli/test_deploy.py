"""``farcall deploy`` and ``farcall destroy`` on an empty account.

Starts an empty local AWS emulator, because both commands create and delete a whole stack. Slow,
because each test waits for several stack operations.
"""

import asyncio
import os
import signal
import subprocess
import sys

import pytest
import tomlkit

from farcall.config.settings import read
from farcall.deploy import stack
from tests import emulators
from tests.cli.account import NO_PACKAGES, Account
from tests.support.commands import FARCALL

pytestmark = pytest.mark.slow

SCRIPT = """\
import time

from farcall import BatchPoolExecutor


def simulate(x):
    return x * x


with BatchPoolExecutor(vcpu=1, memory=1) as pool:
    print(pool.submit(simulate, 3).result(), sum(pool.map(simulate, range(10))))
"""


@pytest.fixture(scope="module")
def whole():
    with emulators.start(empty=True) as aws:
        yield Account(aws)


def options(folder):
    return read(folder / ".config" / "farcall" / "farcall.toml")["batch"]


async def test_deploy_without_changes_changes_nothing(account, farcall_command, tmp_path):
    first = await farcall_command("deploy", "--yes")
    assert 0 == first.returncode, first.stderr
    written = options(tmp_path)
    outputs = account.outputs()
    assert written == {
        "region": "us-east-1",
        "s3_bucket_name": outputs["Bucket"],
        "queue": "farcall-ec2",
        "batch_job_role_name": outputs["JobRole"],
        "batch_execution_role_name": outputs["ExecutionRole"],
        "batch_job_log_group_name": "/farcall/farcall",
        "packages": "auto",
    }
    again = await farcall_command("deploy", "--yes")
    assert 0 == again.returncode, again.stderr
    assert "stack farcall is unchanged" in again.stdout
    assert written == options(tmp_path)

    more = await farcall_command("deploy", "--yes", "--max-vcpus", 16, "--warm", "30m")
    assert 0 == more.returncode, more.stderr
    assert "MaxVcpus: 256 -> 16" in more.stdout
    [environment] = account.client("batch").describe_compute_environments()["computeEnvironments"]
    assert 16 == environment["computeResources"]["maxvCpus"]
    parameters = {p["ParameterKey"]: p["ParameterValue"] for p in account.stack()["Parameters"]}
    assert ("16", "30") == (parameters["MaxVcpus"], parameters["WarmMinutes"])


async def test_configure_copies_options_from_stack(account, farcall_command, tmp_path):
    """A second user gets the options that deploy wrote for the first one."""
    await farcall_command("deploy", "--yes", "--compute", "fargate")
    words = ("--file", str(tmp_path / "second.toml"), "--from-stack", "farcall")
    done = await farcall_command("configure", *words)
    assert 0 == done.returncode, done.stderr
    assert options(tmp_path) == read(tmp_path / "second.toml")["batch"]

    done = await farcall_command("configure", "--from-stack", "another")
    assert "has no stack 'another' of farcall deploy" in done.stderr


async def test_destroy_restores_options_file(account, farcall_command, tmp_path):
    path = tmp_path / "mine.toml"
    text = '# mine\n[executors.awsbatch]\nvcpu = 1  # few\n# queue = "one"\n\n[other]\na = 1\n'
    path.write_text(text)
    done = await farcall_command("deploy", "--yes", "--file", path, "--compute", "fargate")
    assert 0 == done.returncode, done.stderr
    written = tomlkit.parse(path.read_text())["executors"]["awsbatch"]
    assert (1, "farcall-fargate") == (written["vcpu"], written["queue"])
    assert ["FARGATE"] == written["job_definition_extra"]["platformCapabilities"]
    assert "vcpu = 1  # few" in path.read_text()
    done = await farcall_command("destroy", "--yes", "--file", path)
    assert 0 == done.returncode, done.stderr
    assert tomlkit.parse(text) == tomlkit.parse(path.read_text())
    assert "vcpu = 1  # few" in path.read_text()
    assert account.aws.resources() == {}


async def test_failed_deploy_names_cause_and_restarts(account, farcall_command, tmp_path):
    logs = account.client("logs")
    logs.create_log_group(logGroupName="/farcall/farcall")
    done = await farcall_command("deploy", "--yes")
    assert 1 == done.returncode
    assert "stack farcall was not created: LogGroup (AWS::Logs::LogGroup) CREATE_F" in done.stderr
    assert "cancelled" not in done.stderr.splitlines()[-1]
    assert "ROLLBACK_COMPLETE" == account.stack()["StackStatus"]
    assert not (tmp_path / ".config" / "farcall" / "farcall.toml").exists()
    logs.delete_log_group(logGroupName="/farcall/farcall")
    done = await farcall_command("deploy", "--yes")
    assert 0 == done.returncode, done.stderr
    assert "farcall is ROLLBACK_COMPLETE: deleting it and creating it again" in done.stderr


@pytest.mark.parametrize("command", ["deploy", "destroy"])
async def test_killed_command_can_be_repeated(account, farcall_command, command):
    if command == "destroy":
        assert 0 == (await farcall_command("deploy", "--yes")).returncode
    begun = "CREATE_IN_PROGRESS" if command == "deploy" else "DELETE_IN_PROGRESS"
    running = await asyncio.create_subprocess_exec(
        *(FARCALL, command, "--yes"),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    async for line in running.stderr:
        if begun in line.decode():
            running.kill()
            break
    await running.communicate()
    assert -signal.SIGKILL == running.returncode
    done = await farcall_command(command, "--yes")
    assert 0 == done.returncode, done.stderr
    there = account.aws.resources().get("stacks", [])
    assert there == (["farcall"] if command == "deploy" else [])


async def test_nonempty_bucket_is_kept_by_default(account, farcall_command):
    done = await farcall_command("deploy", "--yes")
    assert 0 == done.returncode, done.stderr
    s3, bucket = account.client("s3"), account.outputs()["Bucket"]
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for text in (b"one", b"two"):
        s3.put_object(Bucket=bucket, Key="farcall/v1/run", Body=text)
    s3.delete_object(Bucket=bucket, Key="farcall/v1/run")
    s3.create_multipart_upload(Bucket=bucket, Key="farcall/v1/upload")
    done = await farcall_command("destroy", "--yes")
    assert 0 == done.returncode, done.stderr
    assert f"bucket {bucket} is kept. Run `farcall destroy --empty-bucket`" in done.stdout
    assert {"buckets": [bucket]} == account.aws.resources()
    none = await farcall_command("destroy", "--yes")
    assert 0 == none.returncode, none.stderr
    assert f"bucket {bucket} of a former stack has 3 objects" in none.stdout
    # Another stack of the same name has its own bucket and keeps the old one.
    assert 0 == (await farcall_command("deploy", "--yes")).returncode
    assert 2 == len(account.aws.resources()["buckets"])
    done = await farcall_command("destroy", "--yes", "--empty-bucket")
    assert (0, {}) == (done.returncode, account.aws.resources()), done.stderr


async def test_destroy_deregisters_only_own_job_definitions(account, farcall_command, tmp_path):
    assert 0 == (await farcall_command("deploy", "--yes")).returncode
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "script.py"],
        env={**os.environ, **NO_PACKAGES},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "9 285\n" == ran.stdout, ran.stderr
    batch = account.client("batch")
    others = batch.register_job_definition(
        jobDefinitionName="farcall-others",
        type="container",
        containerProperties={
            "image": "any",
            "jobRoleArn": "arn:aws:iam::123456789012:role/others",
            "resourceRequirements": [
                {"type": "VCPU", "value": "1"},
                {"type": "MEMORY", "value": "64"},
            ],
        },
    )["jobDefinitionArn"]
    done = await farcall_command("destroy", "--yes", "--empty-bucket")
    assert 0 == done.returncode, done.stderr
    assert "its 1 job definition" in done.stdout
    [left] = batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    assert others == left["jobDefinitionArn"]
    batch.deregister_job_definition(jobDefinition=others)


async def test_removed_queue_lists_cancelled_jobs(account, farcall_command, tmp_path):
    done = await farcall_command("deploy", "--yes", "--compute", "spot", "--compute", "ec2")
    assert 0 == done.returncode, done.stderr
    assert "queue='farcall-ec2'" in done.stdout
    assert "farcall-spot" == options(tmp_path)["queue"]
    batch = account.client("batch")
    waiting = ("run", "--detach", "-o", "queue=farcall-spot", "time:sleep", 600)
    started = await farcall_command(*waiting, **NO_PACKAGES)
    assert 0 == started.returncode, started.stderr
    job_id = started.stdout.strip()
    refused = await farcall_command("deploy", "--compute", "ec2")
    assert 2 == refused.returncode
    assert "queue farcall-spot, which cancels 1 job (" in refused.stdout
    assert job_id in refused.stdout
    done = await farcall_command("deploy", "--yes", "--compute", "ec2")
    assert 0 == done.returncode, done.stderr
    assert "farcall-ec2" == options(tmp_path)["queue"]
    assert ["farcall-ec2"] == account.aws.resources()["job queues"]
    [job] = batch.describe_jobs(jobs=[job_id])["jobs"]
    assert "FAILED" == job["status"]


async def test_destroy_lists_and_cancels_running_jobs(account, farcall_command):
    assert 0 == (await farcall_command("deploy", "--yes")).returncode
    started = await farcall_command("run", "--detach", "time:sleep", 600, **NO_PACKAGES)
    assert 0 == started.returncode, started.stderr
    refused = await farcall_command("destroy")
    assert 2 == refused.returncode
    assert "cancels     1 job (sleep" in refused.stdout
    assert "stdin is not a terminal" in refused.stderr
    done = await farcall_command("destroy", "--yes", "--empty-bucket")
    assert (0, {}) == (done.returncode, account.aws.resources()), done.stderr
    [job] = account.client("batch").describe_jobs(jobs=[started.stdout.strip()])["jobs"]
    assert "FAILED" == job["status"]


def test_deploy_and_destroy_require_confirmation(account, commands):
    shown = commands.run_on_terminal("deploy", answer="n\n")
    assert "Proceed?" in shown.text
    assert "nothing was created" in shown.text
    assert commands.run("deploy", "--dry-run").stdout in shown.text.replace("\r", "")
    assert account.aws.resources() == {}
    assert 0 == commands.run("deploy", "--yes").returncode
    assert "Queue" in commands.run("destroy", "--dry-run").stdout
    assert 2 == commands.run("destroy").returncode
    shown = commands.run_on_terminal("destroy", answer="n\n")
    assert "nothing was deleted" in shown.text
    assert ["farcall"] == account.aws.resources()["stacks"]


async def test_template_is_printed_without_requests(farcall_command):
    done = await farcall_command("deploy", "--template", AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert (0, stack.template(), "") == (done.returncode, done.stdout, done.stderr)


async def test_missing_region_is_rejected(account, farcall_command, monkeypatch):
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    for command in ("deploy", "destroy"):
        done = await farcall_command(command, "--yes")
        assert 2 == done.returncode
        assert "no region is set. Use --region" in done.stderr
    done = await farcall_command("deploy", "--yes", "--region", "us-east-1")
    assert 0 == done.returncode, done.stderr


async def test_invalid_network_creates_nothing(account, farcall_command):
    ec2 = account.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
    default = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])
    ours = default["Subnets"][0]["SubnetId"]
    wrong = {
        ("--subnets", f"{ours},{subnet}"): f"{subnet} is in {vpc}, but {ours} is in vpc-",
        ("--subnets", subnet, "--vpc", "vpc-1"): f"{subnet} is in {vpc}, but --vpc is vpc-1",
        ("--subnets", "subnet-0"): "--subnets: DescribeSubnets was refused",
        ("--vpc", "vpc-0"): "VPC vpc-0 does not exist, or has no default subnets in us-east-1",
        ("--vpc", vpc): f"VPC {vpc} does not exist, or has no default subnets",
    }
    for arguments, said in wrong.items():
        done = await farcall_command("deploy", "--yes", *arguments)
        assert 1 == done.returncode
        assert said in done.stderr
    assert account.aws.resources() == {}
    done = await farcall_command("deploy", "--yes", "--subnets", subnet, "--compute", "fargate")
    assert 0 == done.returncode, done.stderr
    assert "without public addresses" in done.stdout
    # Without --subnets, a later deployment keeps the subnet.
    again = await farcall_command("deploy", "--yes")
    assert "stack farcall is unchanged" in again.stdout
    assert 0 == (await farcall_command("destroy", "--yes")).returncode
    ec2.delete_subnet(SubnetId=subnet)
    ec2.delete_vpc(VpcId=vpc)
