"""Run svm.py and fails.py on a temporary Covalent server and a local AWS emulator.

`make demo-covalent` runs this script. All files are in a temporary folder, so your own Covalent
server and its configuration are not changed.

    python examples/covalent_demo/run.py           stops the server at the end
    python examples/covalent_demo/run.py --keep    serves Covalent's web UI until Ctrl-C
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import boto3

import farcall_local
from farcall_local import names

HERE = Path(__file__).parent
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "ecs-tasks.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def create_resources(aws):
    """Create covalent.conf's bucket, log group, two roles, queue and job definition."""
    session = boto3.Session(
        aws.environment["AWS_ACCESS_KEY_ID"],
        aws.environment["AWS_SECRET_ACCESS_KEY"],
        region_name=aws.environment["AWS_REGION"],
    )

    def client(service):
        return session.client(service, endpoint_url=aws.endpoint_url)

    client("s3").create_bucket(Bucket="covalent-batch-qa-job-resources")
    client("logs").create_log_group(logGroupName="covalent-batch-qa-log-group")
    for role in ("ecsTaskExecutionRole", "covalent-batch-qa-job-role"):
        client("iam").create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(TRUST))
    batch = client("batch")
    batch.create_job_queue(
        jobQueueName="covalent-batch-qa-queue",
        priority=1,
        computeEnvironmentOrder=[{"order": 1, "computeEnvironment": names.COMPUTE_ENVIRONMENT}],
    )
    batch.register_job_definition(
        jobDefinitionName="covalent-batch-qa-job-definition",
        type="container",
        containerProperties={
            "image": names.IMAGE,
            "resourceRequirements": [
                {"type": "VCPU", "value": "1"},
                {"type": "MEMORY", "value": "2048"},
            ],
        },
    )


def make_environment(home, aws):
    """Return variables that point Covalent to `home` and AWS to the emulator."""
    others = ("AWS_", "COVALENT_", "FARCALL_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    # The executor's options are in svm.py and covalent.conf.
    points = {k: v for k, v in aws.environment.items() if not k.startswith("FARCALL_")}
    (home / "tmp").mkdir()
    return {
        **kept,
        **points,
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONWARNINGS": "ignore",  # hide warnings of Covalent's dependencies
    }


@contextlib.contextmanager
def covalent_server(environment):
    """Start Covalent's server, yield its address, and stop it."""
    configuration = Path(environment["HOME"], ".config", "covalent", "covalent.conf")
    configuration.parent.mkdir(parents=True)
    shutil.copy(HERE / "covalent.conf", configuration)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment.update(COVALENT_SVC_PORT=str(port), COVALENT_DISPATCHER_ADDR="127.0.0.1")
    start = ["covalent", "start", "--no-cluster", "--port", str(port)]
    try:
        subprocess.run(start, env=environment, check=True, stdout=subprocess.DEVNULL)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop = ["covalent", "stop"]
        subprocess.run(stop, env=environment, check=True, stdout=subprocess.DEVNULL)


def run_script(name, environment):
    """Run a script in this folder and show its output."""
    print(f"\n$ python examples/covalent_demo/{name}", flush=True)
    subprocess.run([sys.executable, HERE / name], env=environment, check=True)


def main():
    """Run the demo."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with (
        tempfile.TemporaryDirectory(prefix="farcall-", ignore_cleanup_errors=True) as home,
        farcall_local.start() as aws,
    ):
        print("Starting a local AWS emulator and a Covalent server ...", flush=True)
        create_resources(aws)
        environment = make_environment(Path(home), aws)
        with covalent_server(environment) as address:
            run_script("svm.py", environment)
            print("The model was trained by an AWS Batch job. This is its score.")
            run_script("fails.py", environment)
            print(f"\nCovalent's page: {address}")
            if "--keep" not in sys.argv:
                print("It ends now; with --keep (make demo-covalent KEEP=1) it stays open.")
                return
            print("Ctrl-C ends it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    time.sleep(1)


if __name__ == "__main__":
    main()
