"""Attempts as containers of a docker engine: the image users deploy, on their own machine.

Containers use the host's network, as those of Batch on EC2 do, so the engine must run on this
machine; the embedded AWS listens on its loopback alone.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerProperties.html
    https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp
from aiodocker.containers import DockerContainer

from farcall.local import host_config, names
from farcall.local.credentials import RoleCredentials
from farcall.local.runner import AttemptSpec, Exit, Running, StartError

#: On every container: which embedded AWS has started it, and for which job.
SERVER_LABEL, JOB_LABEL = "farcall.server", "farcall.job"
#: Where a container finds what it shows the credential endpoint.
TOKEN_FILE = "/run/farcall/authorization-token"  # noqa: S105 - a path

OUT_OF_MEMORY = "OutOfMemoryError: Container killed due to memory usage"

#: What a request to the engine can end with.
_ERRORS = (aiodocker.DockerError, aiohttp.ClientError, OSError)


class NoEngineError(Exception):
    """No docker engine answers."""


async def check_engine() -> None:
    """Check that containers can be run.

    Raises:
        NoEngineError: The engine does not answer; the message says what to do.
    """
    try:
        # aiodocker asserts that it has found an address.
        docker = aiodocker.Docker()
    except (AssertionError, ValueError) as error:
        raise NoEngineError(_no_engine(str(error) or "there is no socket of one")) from error
    try:
        await docker.version()
    except _ERRORS as error:
        raise NoEngineError(_no_engine(_message(error))) from error
    finally:
        await docker.close()


def _no_engine(what: str) -> str:
    return (
        f"no docker engine answers ({what}). Start docker or set DOCKER_HOST to the engine of "
        "this machine; without --docker jobs run as processes and need none"
    )


class DockerRunner:
    """Runs an attempt as a container.

    An image the machine has is used as it is, another one is pulled first. What an embedded AWS
    that was killed has left running is removed when the next one starts.

    Args:
        endpoint_url: Of the embedded AWS, given to each job as ``AWS_ENDPOINT_URL``.
        credentials: Gives each job the credentials of its role.
    """

    def __init__(self, endpoint_url: str, credentials: RoleCredentials) -> None:
        self._endpoint_url = endpoint_url
        self._credentials = credentials
        self._docker: aiodocker.Docker | None = None
        self._cpus = os.cpu_count() or 1
        self._opening = asyncio.Lock()
        # Read by the users of all images, so not in a folder that is this user's alone.
        self._folder = tempfile.TemporaryDirectory(prefix="farcall-docker-")
        Path(self._folder.name).chmod(0o755)
        self._token_file = Path(self._folder.name, "authorization-token")
        self._token_file.write_text(credentials.token)
        self._token_file.chmod(0o444)

    async def start(self, spec: AttemptSpec) -> Running:
        """Pull the image if the machine lacks it, and start a container."""
        path = None
        if spec.role_arn:
            path = self._credentials.grant(spec.role_arn, spec.task_id)
        try:
            docker = await self._open()
            container = await self._create(docker, self._document(spec, path))
            return await _start(container, spec.output, lambda: self._revoke(path))
        except BaseException as error:
            self._revoke(path)
            if isinstance(error, _ERRORS):
                raise StartError(f"CannotCreateContainerError: {_message(error)}") from error
            raise

    async def close(self) -> None:
        """Close the connections to the engine."""
        if self._docker is not None:
            await self._docker.close()
        self._folder.cleanup()

    def _revoke(self, path: str | None) -> None:
        if path is not None:
            self._credentials.revoke(path)

    async def _open(self) -> aiodocker.Docker:
        async with self._opening:
            if self._docker is None:
                docker = aiodocker.Docker()
                self._cpus = int((await docker.system.info())["NCPU"])
                await _remove_orphans(docker)
                self._docker = docker
        return self._docker

    async def _create(self, docker: aiodocker.Docker, document: dict[str, Any]) -> DockerContainer:
        try:
            return await docker.containers.create(document)
        except aiodocker.DockerError as error:
            if error.status != 404:
                raise
        try:
            await docker.images.pull(document["Image"])
        except _ERRORS as error:
            raise StartError(
                f"CannotPullContainerError: Error response from daemon: {_message(error)}"
            ) from error
        return await docker.containers.create(document)

    def _document(self, spec: AttemptSpec, credentials_path: str | None) -> dict[str, Any]:
        """Write the request that creates the container."""
        environment = {
            "AWS_ENDPOINT_URL": self._endpoint_url,
            "AWS_REGION": names.REGION,
            "AWS_DEFAULT_REGION": names.REGION,
            "AWS_EXECUTION_ENV": "AWS_ECS_FARGATE" if spec.fargate else "AWS_ECS_EC2",
            # There is no instance whose role a job without one of its own could use.
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        host = host_config.host_config(spec.container, spec.resources, self._cpus)
        if credentials_path is not None:
            # ECS itself gives AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, whose host is 169.254.170.2
            # port 80; only root could give this machine that address.
            environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = (
                f"{self._endpoint_url}{credentials_path}"
            )
            environment["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = TOKEN_FILE
            host["Mounts"].append(host_config.bind(str(self._token_file), TOKEN_FILE))
        environment.update(spec.environment)
        document: dict[str, Any] = {
            "Image": spec.container["image"],
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Labels": {SERVER_LABEL: _server(os.getpid()), JOB_LABEL: spec.job_id},
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": host,
        }
        if spec.command:
            document["Cmd"] = list(spec.command)
        if spec.container.get("user"):
            document["User"] = spec.container["user"]
        return document


async def _start(
    container: DockerContainer, output: Callable[[bytes], None], ended: Callable[[], None]
) -> _Container:
    # Attached before it starts, so that no output is missed.
    stream = container.attach(stdout=True, stderr=True)
    try:
        await stream.__aenter__()
        try:
            await container.start()
        except aiodocker.DockerError as error:
            raise StartError(
                f"CannotStartContainerError: Error response from daemon: {_message(error)}"
            ) from error
    except BaseException:
        await stream.close()
        await asyncio.shield(_remove(container))
        raise
    return _Container(container, stream, output, ended)


class _Container:
    """A running attempt: the container and the connection that brings its output."""

    def __init__(
        self,
        container: DockerContainer,
        stream: Any,
        output: Callable[[bytes], None],
        ended: Callable[[], None],
    ) -> None:
        self._container = container
        self._stream = stream
        self._output = output
        self._ended = ended
        self._signals: set[asyncio.Task[None]] = set()

    async def wait(self) -> Exit:
        try:
            # The end of the output comes first, unless the program has closed it long before.
            while (message := await self._stream.read_out()) is not None:
                self._output(message.data)
            await self._container.wait()
            state = (await self._container.show())["State"]
            return Exit(state["ExitCode"], OUT_OF_MEMORY if state["OOMKilled"] else None)
        except _ERRORS as error:
            return Exit(None, f"CannotInspectContainerError: {_message(error)}")
        finally:
            self._ended()
            await self._stream.close()
            await asyncio.shield(_remove(self._container))

    def terminate(self) -> None:
        self._do(self._container.kill(signal="SIGTERM"))

    def kill(self) -> None:
        self._do(self._container.kill(signal="SIGKILL"))

    def _do(self, request: Coroutine[Any, Any, None]) -> None:
        async def send() -> None:
            with contextlib.suppress(*_ERRORS):  # it has ended meanwhile
                await request

        task = asyncio.get_running_loop().create_task(send())
        self._signals.add(task)
        task.add_done_callback(self._signals.discard)


async def _remove(container: DockerContainer) -> None:
    """Kill and remove a container with its anonymous volumes."""
    with contextlib.suppress(*_ERRORS):
        await container.delete(force=True, v=True)


async def _remove_orphans(docker: aiodocker.Docker) -> None:
    """Remove what an embedded AWS of this machine has left that was killed."""
    found = await docker.containers.list(all=True, filters={"label": [SERVER_LABEL]})
    for container in found:
        server = container["Labels"].get(SERVER_LABEL, "")
        hostname, _, pid = server.rpartition("/")
        if hostname == socket.gethostname() and pid.isdecimal() and not _alive(int(pid)):
            await _remove(container)


def _server(pid: int) -> str:
    return f"{socket.gethostname()}/{pid}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _message(error: BaseException) -> str:
    return error.message if isinstance(error, aiodocker.DockerError) else str(error)
