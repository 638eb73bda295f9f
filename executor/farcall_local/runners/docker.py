"""Attempts as containers of a Docker engine, with the images that users deploy.

Containers use the host's network, as on Batch with EC2, so the engine must run on this machine;
the local AWS emulator only listens on the loopback interface.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ContainerProperties.html
    https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp
from aiodocker.containers import DockerContainer

from farcall import filesystem
from farcall_local import names
from farcall_local.runners import host_config
from farcall_local.runners.credentials import RoleCredentials
from farcall_local.runners.runner import AttemptSpec, Exit, Running, StartError

#: Labels of every container: the emulator that started it (`filesystem.identity`), and its job.
SERVER_LABEL, JOB_LABEL = "farcall.server", "farcall.client.job"
#: Path of the credential endpoint's token in a container.
TOKEN_FILE = "/run/farcall/authorization-token"  # noqa: S105 - a path

OUT_OF_MEMORY = "OutOfMemoryError: Container killed due to memory usage"

#: Prefix of the name of a server's folder for temporary files.
_FOLDER = "farcall-docker-"

#: Exceptions of a request to the engine.
_ERRORS = (aiodocker.DockerError, aiohttp.ClientError, OSError)


async def check_engine() -> None:
    """Check that containers can be run.

    Raises:
        CannotStartError: The engine does not respond; the message has the remedy.
    """
    try:
        # aiodocker raises an AssertionError if it finds no address.
        docker = aiodocker.Docker()
    except (AssertionError, ImportError, ValueError, aiodocker.DockerError) as error:
        raise names.CannotStartError(_no_engine(str(error) or "it has no socket")) from error
    try:
        await docker.version()
    except _ERRORS as error:
        raise names.CannotStartError(_no_engine(_message(error))) from error
    finally:
        await docker.close()


def _no_engine(what: str) -> str:
    return (
        f"no docker engine responds ({what}). Start docker or set DOCKER_HOST to the engine of "
        "this machine, or omit --docker to run jobs as processes"
    )


class DockerRunner:
    """Runner that runs an attempt as a container.

    An image of this machine is used as it is; others are pulled first, without a login. The first
    job of an emulator removes the containers of emulators that were killed.

    Args:
        endpoint_url: URL of the local AWS emulator, each job's ``AWS_ENDPOINT_URL``.
        credentials: Creates the credentials of each job's role.
    """

    def __init__(self, endpoint_url: str, credentials: RoleCredentials) -> None:
        self._endpoint_url = endpoint_url
        self._credentials = credentials
        self._docker: aiodocker.Docker | None = None
        # A client has 100 connections, and a running container holds one of them. A separate
        # client keeps connections available for short requests.
        self._streams: aiodocker.Docker | None = None
        self._cpus = os.cpu_count() or 1
        self._opening = asyncio.Lock()
        # Other users of this machine cannot access the folder. Containers get only the file,
        # which the users of all images may read.
        prefix = f"{_FOLDER}{filesystem.identity(os.getpid())}-"
        self._folder = tempfile.TemporaryDirectory(prefix=prefix)
        self._token_file = Path(self._folder.name, "authorization-token")
        self._token_file.write_text(credentials.token)
        self._token_file.chmod(0o444)

    async def prepare(self, spec: AttemptSpec) -> None:
        """Pull the image if this machine lacks it."""
        image = spec.image
        with _as_start_error("CannotPullContainerError: Error response from daemon: "):
            docker, _ = await self._open()
            try:
                await docker.images.inspect(image)
            except aiodocker.DockerError as error:
                if error.status != 404:
                    raise
                await docker.images.pull(image)

    async def start(self, spec: AttemptSpec) -> Running:
        """Start a container."""
        path = None
        if spec.role_arn:
            path = self._credentials.grant(spec.role_arn, spec.task_id)
        try:
            with _as_start_error("CannotCreateContainerError: "):
                docker, streams = await self._open()
                document = self._document(spec, path)
                container = await docker.containers.create(document)
                output = streams.containers.container(container.id)
                return await _start(container, output, spec.output, lambda: self._revoke(path))
        except BaseException:
            self._revoke(path)
            raise

    async def close(self) -> None:
        """Close the connections to the engine."""
        for docker in (self._docker, self._streams):
            if docker is not None:
                await docker.close()
        self._folder.cleanup()

    def _revoke(self, path: str | None) -> None:
        if path is not None:
            self._credentials.revoke(path)

    async def _open(self) -> tuple[aiodocker.Docker, aiodocker.Docker]:
        async with self._opening:
            if self._docker is None or self._streams is None:
                self._docker = self._docker or aiodocker.Docker()
                self._cpus = int((await self._docker.system.info())["NCPU"])
                await _remove_leftovers(self._docker)
                self._streams = aiodocker.Docker()
        return self._docker, self._streams

    def _document(self, spec: AttemptSpec, credentials_path: str | None) -> dict[str, Any]:
        environment = {}
        if spec.in_aws:
            environment = {
                "AWS_ENDPOINT_URL": self._endpoint_url,
                "AWS_REGION": names.REGION,
                "AWS_DEFAULT_REGION": names.REGION,
                # There is no instance whose role a job without a job role could use.
                "AWS_EC2_METADATA_DISABLED": "true",
            }
        host = spec.host(self._cpus)
        if credentials_path is not None:
            # ECS itself sets AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, whose host is 169.254.170.2
            # port 80; only root could assign that address to this machine.
            environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = (
                f"{self._endpoint_url}{credentials_path}"
            )
            environment["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = TOKEN_FILE
            host["Mounts"].append(host_config.bind(str(self._token_file), TOKEN_FILE))
        environment.update(spec.environment)
        document: dict[str, Any] = {
            "Image": spec.image,
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Labels": {SERVER_LABEL: filesystem.identity(os.getpid()), JOB_LABEL: spec.job_id},
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": host,
        }
        overrides: dict[str, Any] = {
            "Entrypoint": list(spec.entrypoint),
            "Cmd": list(spec.command),
            "User": spec.user,
            "WorkingDir": spec.folder,
        }
        return {**document, **{key: value for key, value in overrides.items() if value}}


@contextlib.contextmanager
def _as_start_error(reason: str) -> Iterator[None]:
    """Convert the engine's error to ECS's message."""
    try:
        yield
    except _ERRORS as error:
        raise StartError(f"{reason}{_message(error)}") from error


async def _start(
    container: DockerContainer,
    watched: DockerContainer,
    output: Callable[[bytes], None],
    ended: Callable[[], None],
) -> _Container:
    # Attached before it starts, so that no output is missed.
    stream = watched.attach(stdout=True, stderr=True)
    try:
        await stream.__aenter__()
        with _as_start_error("CannotStartContainerError: Error response from daemon: "):
            await container.start()
    except BaseException:
        await stream.close()
        await asyncio.shield(_remove(container))
        raise
    return _Container(container, watched, stream, output, ended)


class _Container:
    """Running attempt: the container and the connection for its output.

    Args:
        container: The container, on the client for short requests.
        watched: The container, on the client for long requests.
        stream: The open connection.
        output: Receives the output.
        ended: Called at the end.
    """

    def __init__(
        self,
        container: DockerContainer,
        watched: DockerContainer,
        stream: Any,
        output: Callable[[bytes], None],
        ended: Callable[[], None],
    ) -> None:
        self._container = container
        self._watched = watched
        self._stream = stream
        self._output = output
        self._ended = ended
        self._signals: set[asyncio.Task[None]] = set()

    async def wait(self) -> Exit:
        try:
            # The output usually ends with the container, unless the program closes it earlier.
            while (message := await self._stream.read_out()) is not None:
                self._output(message.data)
            await self._stream.close()
            await self._watched.wait()
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
            with contextlib.suppress(*_ERRORS):  # it may have exited already
                await request

        task = asyncio.get_running_loop().create_task(send())
        self._signals.add(task)
        task.add_done_callback(self._signals.discard)


async def _remove(container: DockerContainer) -> None:
    """Kill and remove a container with its anonymous volumes."""
    with contextlib.suppress(*_ERRORS):
        await container.delete(force=True, v=True)


async def _remove_leftovers(docker: aiodocker.Docker) -> None:
    """Remove the containers of killed local AWS emulators of this machine."""
    containers = await docker.containers.list(all=True, filters={"label": [SERVER_LABEL]})
    for container in containers:
        if filesystem.is_gone(container["Labels"].get(SERVER_LABEL, "")):
            await _remove(container)
    await asyncio.to_thread(filesystem.remove_folders, _FOLDER)


def _message(error: BaseException) -> str:
    return error.message if isinstance(error, aiodocker.DockerError) else str(error)
