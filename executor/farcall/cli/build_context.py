"""Build context of the jobs' image: farcall's Dockerfile, and the files that it copies."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import farcall_runtime
from farcall import deploy
from farcall.model.errors import FarcallError

DOCKERFILE = Path(deploy.__file__).with_name("Dockerfile")
"""The repository's Dockerfile through a link; a file in an installed farcall."""

REQUIREMENTS = "/opt/farcall/requirements.txt"
"""Path in the image of the requirements file that it is built with."""

_FOLDER = "runtime_image"

_ELSEWHERE = re.compile(
    r"(-r|--requirement|-c|--constraint|-e|--editable)\b|file:|.*@\s*file:|\.{0,2}/|\.\.?$"
)

_SECRET = re.compile(r"https?://[^/\s]*@")


@contextlib.contextmanager
def build_context(requirements: Path | None = None) -> Iterator[Path]:
    """Create the folder that docker builds from.

    Args:
        requirements: Requirements file, copied to `REQUIREMENTS` in the image.

    Raises:
        FarcallError: The file cannot be read, or it cannot be used to build an image.
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
            # Any user may run the image, so the file modes must not depend on this user's umask.
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield context


def _read(path: Path) -> bytes:
    """Read a requirements file; reject secrets and local paths."""
    try:
        content = path.read_bytes()
        lines = content.decode().splitlines()
    except (OSError, UnicodeError) as error:
        raise FarcallError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if _SECRET.search(line):
            raise FarcallError(
                f"{path}, line {number}: this URL contains a username or a password, which "
                "every user of the image could read. Use a build secret instead: "
                "`docker build --secret`, in your own image on top of this one."
            )
        if _ELSEWHERE.match(line.strip()):
            raise FarcallError(
                f"{path}, line {number}: {line.strip()!r} names a file on this machine, which "
                "is not available when the image is built. Copy its content into the "
                "requirements file, or build your own image on top of this one."
            )
    return content
