"""What the pictures show: the workflows of ``farcall demo --page``, run by somebody called Ada."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from farcall import local
from farcall.cli.demos import common, workflows

#: The only folder that the pictures know of. Tracebacks have its name.
HOME = Path("/tmp/ada")
#: What belongs to whoever makes the pictures.
_OWN = (str(Path.home()), sys.prefix, socket.gethostname())
_ACTS_S = 20
"""Seconds after which some of the tasks have ended, in each way there is."""


@dataclass(frozen=True)
class Stage:
    """An embedded AWS, and the environment of whoever uses it.

    Attributes:
        aws: The embedded AWS.
        environment: All variables that a command gets.
    """

    aws: local.LocalAWS
    environment: dict[str, str]

    @contextlib.asynccontextmanager
    async def running_workflows(self) -> AsyncIterator[None]:
        """Have the workflows under way for as long as the block lasts."""
        work = asyncio.create_task(_workflows().run(self.aws))
        await asyncio.sleep(_ACTS_S)
        if work.done():
            raise RuntimeError("the workflows have ended already") from work.exception()
        yield
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """Start an embedded AWS, and be Ada.

    Raises:
        FileExistsError: Ada's folder is there already.
    """
    HOME.mkdir(mode=0o700)
    try:
        who = {"HOME": str(HOME), "LOGNAME": "ada", "USER": "ada"}
        with (
            local.start(cpus=workflows.CPUS) as aws,
            common.environment({**who, **aws.environment}),
        ):
            programs = os.pathsep.join((str(Path(sys.executable).parent), os.defpath))
            terminal = {"PATH": programs, "LANG": "C.UTF-8", "TERM": "xterm-256color"}
            yield Stage(aws, {**who, **aws.environment, **terminal})
    finally:
        shutil.rmtree(HOME)


def refuse_private(shown: str) -> None:
    """Raise if a picture would tell where it was made.

    Raises:
        RuntimeError: It would.
    """
    for private in (str(Path(__file__).parents[2]), *_OWN):
        if private.strip("/") and private in shown:
            raise RuntimeError(f"a picture would show {private!r}: {shown}")


def _workflows() -> ModuleType:
    """Import the workflows from Ada's folder."""
    path = HOME / "workflows.py"
    shutil.copyfile(workflows.__file__, path)
    spec = importlib.util.spec_from_file_location("workflows", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
