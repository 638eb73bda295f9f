"""Account, region, names and ARNs of the local AWS emulator."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import sys
import time

from farcall.model.names import EMULATOR_IMAGE, ENV_EMULATOR_PYTHON
from farcall_local.services.signatures import AccessKey

#: ID of moto's account.
ACCOUNT_ID = "123456789012"
REGION = "us-east-1"

#: Server header of Batch responses, by which `farcall doctor` recognizes the emulator.
SERVER = "farcall-local"
BUCKET = "farcall-local"
QUEUE = "farcall-local"
COMPUTE_ENVIRONMENT = "farcall-local"
CLUSTER = "farcall-local"
JOB_ROLE = "farcall-local-job"
EXECUTION_ROLE = "farcall-local-execution"
LOG_GROUP = "farcall-local"
#: Default log group of Batch.
DEFAULT_LOG_GROUP = "/aws/batch/job"
#: Image of jobs that are processes of this machine; it is never pulled.
IMAGE = EMULATOR_IMAGE

#: Address of each node of a multi-node parallel job; all nodes share this machine's network.
NODE_ADDRESS = "127.0.0.1"

#: Variables that name the initial resources.
RESOURCES = {
    "FARCALL_REGION": REGION,  # other variables' region
    "FARCALL_S3_BUCKET_NAME": BUCKET,
    "FARCALL_QUEUE": QUEUE,
    "FARCALL_BATCH_JOB_ROLE_NAME": JOB_ROLE,
    "FARCALL_BATCH_EXECUTION_ROLE_NAME": EXECUTION_ROLE,
    "FARCALL_BATCH_JOB_LOG_GROUP_NAME": LOG_GROUP,
}


class CannotStartError(Exception):
    """The emulator cannot start; the message is for the user."""


def batch_arn(resource: str) -> str:
    """Return the ARN of a Batch resource such as ``job/<id>`` or ``job-queue/<name>``."""
    return f"arn:aws:batch:{REGION}:{ACCOUNT_ID}:{resource}"


def ecs_arn(kind: str) -> str:
    """Return a new ARN of an ECS ``task`` or ``container-instance`` of the cluster."""
    return f"arn:aws:ecs:{REGION}:{ACCOUNT_ID}:{kind}/{CLUSTER}/{secrets.token_hex(16)}"


def now_ms() -> int:
    """Return the current time in Batch's format: milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Open a port, 0 for a free one. Connections wait until they are accepted.

    Raises:
        CannotStartError: The port is not available.
    """
    try:
        return socket.create_server((host, port), backlog=1024)
    except OSError as error:
        number = error.errno or 0  # negative if a name has no address
        reason = os.strerror(number) if number > 0 else error.strerror
        raise CannotStartError(
            f"cannot listen on {host}:{port}: {reason}; choose another port, or use `--port 0` "
            "to pick a free one, and use an address of this machine"
        ) from error


def _with_host(hosts: str, host: str) -> str:
    """Add a host to a list of hosts that need no proxy."""
    return ",".join(filter(None, (hosts, host)))


#: Whether this machine's processor is called ``arm64`` by AWS and Kubernetes.
IS_ARM = platform.machine().lower() in ("aarch64", "arm64")


def client_environment(
    host: str, port: int, key: AccessKey, *, docker: bool = False, empty: bool = False
) -> dict[str, str]:
    """Return variables that configure AWS clients and farcall for the emulator.

    If jobs are containers, the user sets their image. For an empty account, no resources are set.
    """
    image = {} if docker else {"FARCALL_IMAGE": IMAGE, ENV_EMULATOR_PYTHON: sys.executable}
    return {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        **key.environment,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        **{name: _with_host(os.environ.get(name, ""), host) for name in ("NO_PROXY", "no_proxy")},
        "FARCALL_PROFILE": "default",  # a profile in farcall.toml may not exist here
        "FARCALL_ENDPOINT_URL": "",  # an endpoint in farcall.toml is another account's
        "FARCALL_ARCHITECTURE": "arm64" if IS_ARM else "x86_64",
        **({} if empty else {**RESOURCES, **image}),
    }
