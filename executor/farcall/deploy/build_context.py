"""Build context of the jobs' image: farcall's Dockerfile, and what it puts into the image."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import farcall_runtime
from farcall.model.errors import FarcallError

DOCKERFILE = Path(__file__).with_name("Dockerfile")
"""That of the repository, to which a link leads; an installed farcall has it here."""

REQUIREMENTS = "/opt/farcall/requirements.txt"
"""Where the image has a requirements file that it is built with."""

_FOLDER = "runtime_image"
_ELSEWHERE = re.compile(
    r"(-r|--requirement|-c|--constraint|-e|--editable)\b|file:|.*@\s*file:|\.{0,2}/|\.\.?$"
)
_SECRET = re.compile(r"https?://[^/\s]*@")


@contextlib.contextmanager
def build_context(requirements: Path | None = None) -> Iterator[Path]:
    """Make the folder that docker is given.

    Args:
        requirements: File of requirements, which the image has as `REQUIREMENTS`.

    Raises:
        FarcallError: That file cannot be read, or an image cannot be built by it.
    """
    wanted = None if requirements is None else _read(requirements)
    with tempfile.TemporaryDirectory(prefix="farcall-image-") as name:
        context = Path(name)
        runtime = context / _FOLDER / farcall_runtime.__name__
        runtime.mkdir(parents=True)
        shutil.copyfile(DOCKERFILE, context / "Dockerfile")
        for module in Path(farcall_runtime.__file__).parent.glob("*.py"):
            shutil.copyfile(module, runtime / module.name)
        if wanted is not None:
            (context / _FOLDER / Path(REQUIREMENTS).name).write_bytes(wanted)
        for path in context.rglob("*"):
            # As they are in the image, which any user may run, whatever this one's umask says.
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield context


def _read(path: Path) -> bytes:
    """Read a file of requirements, and refuse what would not be in the image, or not be secret."""
    try:
        content = path.read_bytes()
        lines = content.decode().splitlines()
    except (OSError, UnicodeError) as error:
        raise FarcallError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if _SECRET.search(line):
            raise FarcallError(
                f"{path}, line {number}: this URL holds a user or a password, and whoever has the "
                "image could read it; docs/image.md says how a build secret keeps it out"
            )
        if _ELSEWHERE.match(line.strip()):
            raise FarcallError(
                f"{path}, line {number}: {line.strip()!r} names a file of this machine, and the "
                "image is built without it; write what it holds into the file, or build an image "
                "of your own on this one (docs/image.md)"
            )
    return content
