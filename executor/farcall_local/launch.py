"""Start of the local AWS emulator in its own process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from farcall.model.names import install

#: Timeout in seconds for a stopping server to kill its jobs and exit.
STOP_TIMEOUT_S = 10.0

_BOOT = """
import json, sys
from farcall_local.__main__ import main
main(**json.loads(sys.argv[1]))
"""

#: User variables that would divert a client from the emulator, in addition to service endpoints.
_MISLEADING = (
    *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"),
    *("AWS_CREDENTIAL_EXPIRATION", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_CA_BUNDLE"),
    *("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT", "FARCALL_CREDENTIALS"),
)


class LocalAWS:
    """Running local AWS emulator, and a context manager that stops it.

    It runs in a child process that ends when this process does, for any reason, and kills its
    jobs. Nothing outlives it. Its state is in memory; large objects are in a temporary folder.

    `configure`, `fault`, `reclaim` and `break_starts` are development calls, which exist only in
    the emulator: ``POST /_farcall/<name>`` with a JSON document.

    Attributes:
        endpoint_url: URL of every service.
        environment: Variables that point AWS clients, farcall and their child processes at the
            emulator: endpoint, region, the access key of this start, and farcall's bucket, queue,
            roles, log group and image. They are not set in this process; set them where they are
            needed. The key permits running commands as this user.
    """

    def __init__(self, process: subprocess.Popen[bytes], environment: dict[str, str]) -> None:
        self._process = process
        self.environment = environment
        self.endpoint_url = environment["AWS_ENDPOINT_URL"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether the process exists."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Kill the emulator's jobs and stop it. May be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def configure(self, **options: Any) -> None:
        """Change durations and rates.

        Args:
            **options: New values by name.

                * ``delays``: Seconds that a job stays in a state, by the state's name such as
                  ``STARTING``; in ``RUNNING`` they follow the end of its process. Replaces the
                  previous delays.
                * ``stop_grace_s``: Seconds from SIGTERM to SIGKILL; by default 30, as on AWS.
                * ``timeout_scale``: Factor on job timeouts, whose minimum is 60 s; by default 1.
                * ``credential_lifetime_s``: Lifetime in seconds of the keys that containers get
                  from now on; by default 6 hours.
                * ``stream_s``: Seconds after which a running task's output is stored for live
                  reading; by default None, as on AWS: after 2 s, and less often for much output.
                * ``submit_rate``: SubmitJob calls per second, None for no limit; by default 50,
                  as on AWS.
                * ``api_rate``: Calls per second of each other operation, None for no limit; by
                  default 50.
        """
        self._call("configure", options)

    def fault(self, operation: str, kind: str, count: int = 1) -> None:
        """Make the next calls of a Batch operation fail.

        Args:
            operation: Name of the operation, such as ``SubmitJob``.
            kind: ``throttle`` returns 429, ``error`` returns 500, ``lost`` does the work and
                closes the connection without a response.
            count: Number of calls.
        """
        self._call("fault", {"operation": operation, "kind": kind, "count": count})

    def reclaim(self, job_id: str) -> None:
        """Remove a running job's host, as a spot reclaim does.

        Args:
            job_id: ID of a job, child job or node that is ``STARTING`` or ``RUNNING``. For a
                multi-node parallel job, the main node's host is removed.
        """
        self._call("reclaim", {"job_id": job_id})

    def break_starts(self, *reasons: str) -> None:
        """Make the next attempts fail to start, for any jobs.

        Args:
            *reasons: Reason of each failed container, such as ``"CannotPullContainerError: pull
                image manifest has been retried"``. They replace unused reasons; without any, all
                containers start again.
        """
        self._call("break_starts", {"reasons": list(reasons)})

    def _call(self, name: str, document: dict[str, Any]) -> Any:
        # Imported here, because most local AWS emulators never get a development call.
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        url, body = f"{self.endpoint_url}/_farcall/{name}", json.dumps(document).encode()
        signed = AWSRequest("POST", url, data=body)
        key = Credentials(
            self.environment["AWS_ACCESS_KEY_ID"], self.environment["AWS_SECRET_ACCESS_KEY"]
        )
        SigV4Auth(key, "farcall", self.environment["AWS_REGION"]).add_auth(signed)
        request = urllib.request.Request(url, body, dict(signed.headers))  # noqa: S310 - our own
        # The user's proxy does not know this machine's loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(json.load(error)["message"]) from None


def start(
    *,
    cpus: int | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    docker: bool = False,
    strict: bool = False,
) -> LocalAWS:
    """Start the local AWS emulator.

    Its port is open on return; its first response takes about one more second.

    It starts with one bucket, one job queue, two roles and two log groups, whose names are in
    `LocalAWS.environment`.

    Example::

        with farcall_local.start() as aws: os.environ.update(aws.environment) ...

    Args:
        cpus: Number of processors that the jobs share; by default all of this machine's. A job
            uses as many as its VCPU requirement, up to all of them.
        host: Address to listen on. The emulator uses HTTP, so others on the network can read it.
        port: Port to listen on, 0 for a free one.
        docker: Whether jobs run as containers of their definition's image, with a docker engine of
            this machine, instead of as processes. In this case the environment sets no image.
        strict: Whether jobs lack what a container lacks: your folders, your variables, memory
            beyond their limit, and GPUs that this machine does not have. Jobs as containers lack
            these anyway.

    Raises:
        ValueError: ``strict`` is combined with ``docker``.
        ModuleNotFoundError: The ``local`` extra is not installed.
        RuntimeError: The server did not start; the message or its standard error has the reason.
    """
    if strict and docker:
        raise ValueError("strict is for jobs as processes; leave out docker")
    options = {"cpus": cpus, "host": host, "port": port, "strict": strict, "docker": docker}
    return LocalAWS(*spawn(options))


def spawn(
    options: Mapping[str, Any], paths: Sequence[str] = ()
) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """Start the server's process; return it with the environment for its clients.

    Args:
        options: Options of `farcall_local.__main__.main`.
        paths: Folders of modules that it needs in addition to farcall's.

    Raises:
        ModuleNotFoundError: The ``local`` extra is not installed.
        RuntimeError: The server did not start.
    """
    require_extra(docker=options.get("docker", False))
    # -P: the working directory may contain any module.
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-P", "-c", _BOOT, json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**own_environment(), "PYTHONPATH": os.pathsep.join([*paths, *_source_roots()])},
        # A Ctrl-C is for the user's program, which may still have jobs to terminate.
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101 - says so to the type checker
    try:
        line = process.stdout.readline()
    except BaseException:  # a signal; the child process would fail without its reader
        process.kill()  # it has no jobs yet
        process.wait()
        raise
    finally:
        process.stdout.close()
    if not line:
        process.communicate()
        raise RuntimeError(
            f"The local AWS emulator did not start (exit code {process.returncode}); see its "
            "standard error for the cause."
        )
    reply = json.loads(line)
    if "error" in reply:
        process.communicate()
        raise RuntimeError(f"The local AWS emulator did not start: {reply['error']}.")
    return process, reply


def own_environment() -> dict[str, str]:
    """Return this process's environment without misleading AWS variables."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _MISLEADING and not name.startswith("AWS_ENDPOINT_URL")
    }


def require_extra(*, docker: bool = False) -> None:
    """Check that the ``local`` extra is installed.

    Raises:
        ModuleNotFoundError: The extra is missing; the message has the command that installs it.
    """
    wanted = ["moto", "flask", "flask_cors"]
    wanted += ["aiodocker"] if docker else []
    for module in wanted:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(
                f"The local AWS emulator requires {module}. {install('local')}",
                name=module,
            )


def _source_roots() -> list[str]:
    """Return the PYTHONPATH that leads the server to this process's farcall."""
    specs = map(importlib.util.find_spec, ("farcall_local", "farcall_runtime"))
    roots = {str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin}
    return [*roots, *filter(None, [os.environ.get("PYTHONPATH")])]
