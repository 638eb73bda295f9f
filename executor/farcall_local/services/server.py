"""Server of the local AWS emulator: threads, backends and initial resources.

One thread accepts connections, one thread per connection handles requests, and one thread runs
Batch's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

from moto.backends import get_backend
from werkzeug.serving import make_server
from werkzeug.test import Client

from farcall.model.jobs import JobStatus
from farcall_local import names
from farcall_local.batch.api import BatchApi, Request, Response
from farcall_local.batch.engine import Engine
from farcall_local.batch.errors import ApiError, ClientError
from farcall_local.batch.limits import Limits
from farcall_local.batch.queues import Queues
from farcall_local.runners.credentials import RoleCredentials
from farcall_local.runners.execution import Durations, World
from farcall_local.runners.logs import CloudWatchLogs
from farcall_local.runners.process import ProcessRunner
from farcall_local.runners.runner import Runner
from farcall_local.services import objects
from farcall_local.services.front import SERVICES, Extension, Front, Handler
from farcall_local.services.signatures import AccessKey

T = TypeVar("T")

_MAX_VCPUS = 256
"""Maximum vCPUs of the compute environment on machines with fewer processors."""

_single = threading.Lock()

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

# AWS's default for new buckets, and the setting of the bucket that farcall deploys.
_NOT_PUBLIC = (
    "<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls>"
    "<IgnorePublicAcls>true</IgnorePublicAcls><BlockPublicPolicy>true</BlockPublicPolicy>"
    "<RestrictPublicBuckets>true</RestrictPublicBuckets></PublicAccessBlockConfiguration>"
)
_LIFECYCLE = (
    "<LifecycleConfiguration><Rule><ID>old</ID><Filter><Prefix></Prefix></Filter>"
    "<Status>Enabled</Status><Expiration><Days>30</Days></Expiration></Rule>"
    "</LifecycleConfiguration>"
)


class LocalServer:
    """Local AWS emulator in this process, with all services on one port.

    Use it as a context manager in tests that need its internals. `farcall_local.start` runs it in
    a separate process, where it does not share the interpreter lock with its clients. Only one can
    be open at a time, because moto's state is global.

    Args:
        cpus: Number of processors that the jobs share; None for all of this machine's.
        listener: Socket to listen on; by default a free port of the loopback interface.
        runner: Creates the container runner, given the endpoint's URL and the provider of job
            roles' credentials. By default jobs are processes.
        key: The account's own access key, which is also in ``environment``; by default a new one.
        extension: Additional services of a test suite.

    Attributes:
        endpoint_url: URL of every service.
        front: Request handler.
        environment: Variables that configure AWS clients and farcall for the emulator.
    """

    def __init__(
        self,
        *,
        cpus: int | None = None,
        listener: socket.socket | None = None,
        runner: Callable[[str, RoleCredentials], Runner] = ProcessRunner,
        key: AccessKey | None = None,
        extension: Extension | None = None,
    ) -> None:
        self._socket = listener or names.listen()
        if not _single.acquire(blocking=False):
            self._socket.close()
            raise RuntimeError("moto keeps one state for all: one LocalServer in a process.")
        host, port = self._socket.getsockname()[:2]
        key = key or AccessKey.new()
        empty = extension is not None and extension.is_empty
        self.environment = names.client_environment(host, port, key, empty=empty)
        self.endpoint_url = self.environment["AWS_ENDPOINT_URL"]
        enforced = extension is not None and extension.enforces_permissions
        self._credentials = RoleCredentials(self.assume, key, enforced=enforced)
        self._extension = extension
        self.front = Front(
            self._batch, self._handle_control, self._credentials, key, host, extension
        )
        if extension is not None:
            extension.attach(self)
        _create_resources(self.front, empty=empty)
        self._loop = asyncio.new_event_loop()
        self._threads = [threading.Thread(target=self._loop.run_forever, daemon=True)]
        self._threads[0].start()
        cpus = cpus or os.cpu_count() or 1
        self._runner = self._on_loop(lambda: runner(self.endpoint_url, self._credentials))
        self._limits = Limits()
        self._engine, self._api = self._on_loop(lambda: self._make_batch(cpus, empty=empty))
        self._controls: dict[str, Callable[..., None]] = {
            "configure": self._configure,
            "fault": self._limits.add_fault,
            "reclaim": self._reclaim,
            "break_starts": self._break_starts,
        }
        if extension is not None:
            start = extension.start(self._runner, cpus)
            asyncio.run_coroutine_threadsafe(start, self._loop).result()
        self._http = make_server(
            host,
            port,
            self.front,
            threaded=True,
            request_handler=Handler,
            fd=self._socket.fileno(),
        )
        self._threads.append(
            threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        )
        self._threads[1].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the jobs, close the connections and drop all state. May be called twice."""
        if self._loop.is_closed():
            return
        self._http.shutdown()
        try:
            asyncio.run_coroutine_threadsafe(self._end_jobs(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            for connection in list(self.front.connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join()
            self._socket.close()
            self._loop.close()
            objects.forget()
            _single.release()

    async def _end_jobs(self) -> None:
        if self._extension is not None:
            await self._extension.close()
        await self._engine.close()
        await self._runner.close()
        await self._loop.shutdown_default_executor()

    def _make_batch(self, cpus: int, *, empty: bool) -> tuple[Engine, BatchApi]:
        queues = Queues()
        if not empty:
            _create_queue(queues, cpus)
        logs = CloudWatchLogs(
            _backend("logs", names.REGION), self.front.locks["logs"], self._extension
        )
        world = World(
            runner=self._runner,
            open_log=logs.open,
            assumable=self._assumable,
            environment_name=lambda job: queues.environment_name(job.submission.queue),
            durations=Durations(),
        )
        engine = Engine(world, cpus)
        return engine, BatchApi(engine, queues, self._limits)

    def _assumable(self, role_arn: str) -> bool:
        return self.trusts(role_arn, "ecs-tasks.amazonaws.com")

    def trusts(self, role_arn: str, service: str) -> bool:
        """Return whether moto's IAM has a role that trusts a service."""
        with self.front.locks["iam"]:
            roles = list(_backend("iam", "aws").roles.values())
        return any(
            role.arn == role_arn and service in str(role.assume_role_policy_document)
            for role in roles
        )

    def assume(self, role_arn: str, session: str, lifetime_s: int) -> Any:
        """Assume a role in moto's STS."""
        with self.front.locks["sts"]:
            return _backend("sts", "aws").assume_role(
                region_name=names.REGION,
                role_session_name=session,
                role_arn=role_arn,
                policy=None,
                duration=lifetime_s,
                external_id=None,
            )

    def _batch(self, request: Request) -> Response:
        return self._on_loop(lambda: self._api.handle(request))

    def _handle_control(self, name: str, document: dict[str, Any]) -> Response:
        try:
            return Response(200, self._carry_out(name, document))
        except (ApiError, ValueError) as error:
            return Response(400, {"message": str(error)}, "ClientException")

    def _carry_out(self, name: str, document: dict[str, Any]) -> dict[str, Any]:
        if self._extension is not None:
            answer = self._extension.control(name, document)
            if answer is not None:
                return answer
        if name in self._controls:
            self._on_loop(lambda: self._controls[name](**document))
            return {}
        raise ClientError(f"There is no development call {name!r}.")

    # Development calls on Batch's event loop, described in `farcall_local.LocalAWS`.

    def _configure(self, **options: Any) -> None:
        unknown = {*options.get("delays", ())} - {each.value for each in JobStatus}
        if unknown:
            raise ClientError(f"There is no delay in {', '.join(sorted(unknown))}.")
        durations = self._engine.world.durations
        for name, value in options.items():
            if name.endswith("_rate"):
                self._limits.set_rates({name: value})
            elif name == "credential_lifetime_s":
                self._credentials.lifetime_s = value
            elif hasattr(durations, name):
                setattr(durations, name, value)
            else:
                raise ClientError(f"There is no option {name!r}.")

    def _reclaim(self, job_id: str) -> None:
        job = self._engine.jobs.find(job_id)
        if job is None:
            raise ClientError(f"There is no job {job_id}.")
        self._engine.reclaim(job)

    def _break_starts(self, reasons: list[str]) -> None:
        self._engine.world.failing_starts.clear()
        self._engine.world.failing_starts.extend(reasons)

    def _on_loop(self, function: Callable[[], T]) -> T:
        """Run a function on Batch's event loop and wait for its result."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return future.result()


def _backend(service: Any, region: str) -> Any:
    return get_backend(service)[names.ACCOUNT_ID][region]


def _create_queue(queues: Queues, cpus: int) -> None:
    queues.create_environment(
        {
            "computeEnvironmentName": names.COMPUTE_ENVIRONMENT,
            "type": "MANAGED",
            # Maximum request of a job, although all share this machine's processors and memory.
            "computeResources": {
                "type": "EC2",
                "minvCpus": 0,
                "desiredvCpus": cpus,
                "maxvCpus": max(cpus, _MAX_VCPUS),
                "instanceTypes": ["optimal"],
                "instanceRole": "ecsInstanceRole",
                "subnets": ["subnet-local"],
            },
        }
    )
    order = [{"order": 1, "computeEnvironment": names.COMPUTE_ENVIRONMENT}]
    queues.create_queue(
        {"jobQueueName": names.QUEUE, "priority": 1, "computeEnvironmentOrder": order}
    )


def _create_resources(front: Front, *, empty: bool) -> None:
    """Create bucket, roles and log groups via requests, which also initializes moto."""
    for service in SERVICES:
        # moto keeps its state in the module; a second server in one process starts empty.
        get_backend(service).reset()
    if empty:
        return
    client = Client(front)

    def post(service: str, path: str, **request: Any) -> None:
        scope = f"Credential=local/20000101/{names.REGION}/{service}/aws4_request"
        headers = {"Authorization": f"AWS4-HMAC-SHA256 {scope}", **request.pop("headers", {})}
        response = client.open(path, headers=headers, **request)
        if response.status_code != 200:
            raise RuntimeError(f"moto's {service} answered {response.status}: {response.text}")

    post("s3", f"/{names.BUCKET}", method="PUT")
    post("s3", f"/{names.BUCKET}?publicAccessBlock", method="PUT", data=_NOT_PUBLIC)
    post("s3", f"/{names.BUCKET}?lifecycle", method="PUT", data=_LIFECYCLE)
    for group in (names.LOG_GROUP, names.DEFAULT_LOG_GROUP):
        target = {"X-Amz-Target": "Logs_20140328.CreateLogGroup"}
        body = json.dumps({"logGroupName": group})
        post("logs", "/", method="POST", headers=target, data=body)
    form = "application/x-www-form-urlencoded"
    for role in (names.JOB_ROLE, names.EXECUTION_ROLE):
        action = {"Action": "CreateRole", "Version": "2010-05-08", "RoleName": role}
        body = urlencode({**action, "AssumeRolePolicyDocument": json.dumps(TRUST)})
        post("iam", "/", method="POST", data=body, content_type=form)
    body = urlencode({"Action": "GetCallerIdentity", "Version": "2011-06-15"})
    post("sts", "/", method="POST", data=body, content_type=form)
