"""Custom images: ``farcall image build`` and ``farcall image push``."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

import farcall_runtime
from farcall import deploy
from farcall.aws.clients import Aws
from farcall.cli import docker, options_file, stacks
from farcall.cli.common import confirm
from farcall.cli.printing import echo
from farcall.config.settings import Settings
from farcall.deploy.aws_calls import call_aws
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.terminal import in_a_line
from farcall_runtime.contract import PROTOCOL_VERSION

# --- Build context of the jobs' image: farcall's Dockerfile, and the files that it copies -------


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


# --- Container registry of an account, ECR ------------------------------------------------------


POLICY = "`farcall policy pusher` prints the policy for pushing images"


async def has_repository(access: Aws, name: str) -> bool:
    """Return whether a repository exists.

    Raises:
        ServiceError: An ECR call failed.
    """
    try:
        await call_aws(
            access, "ecr", "describe_repositories", policy=POLICY, repositoryNames=[name]
        )
    except ServiceError as error:
        if error.code != "RepositoryNotFoundException":
            raise
        return False
    return True


_TAG = "farcall"
_LABEL = "farcall.protocol-version"
_PLATFORMS = {"x86_64": "linux/amd64", "arm64": "linux/arm64"}


@click.group("image")
def image() -> None:
    """Build an image for jobs, and push it to ECR."""


def _packages(context: click.Context, parameter: click.Parameter, text: str) -> str:
    """Split a list as a shell does; the Dockerfile splits only at blanks."""
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", context, parameter) from None
    for part in parts:
        if len(part.split()) != 1:
            raise click.BadParameter(
                f"{part!r} contains whitespace. Name it in a requirements file, with -r.",
                context,
                parameter,
            )
    return " ".join(parts)


@image.command("build")
@click.option(
    "--tag", metavar="NAME", default=_TAG, show_default=True, help="Local name of the image."
)
@click.option(
    "--base",
    metavar="IMAGE",
    default="",
    help="Linux image with pip and the Python minor version of your workflow; by default "
    "the image that jobs use without a custom image.",
)
@click.option(
    "--packages",
    metavar="LIST",
    default="",
    callback=_packages,
    help="Requirements for pip install, separated by spaces.",
)
@click.option(
    "-r",
    "--requirements",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Requirements file.",
)
@click.option(
    "--platform",
    metavar="PLATFORM",
    default="",
    help="Platform, such as linux/arm64; by default from the option architecture.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS...]")
def build(
    tag: str,
    base: str,
    packages: str,
    requirements: Path | None,
    platform: str,
    arguments: tuple[str, ...],
) -> None:
    """Build a custom image with docker.

    \b
    Examples:
      farcall image build --packages 'numpy scikit-learn==1.5.2'
      farcall image build --tag my-jobs -r requirements.txt --platform linux/arm64
      farcall image build -- --no-cache --network host

    The image is built from farcall's Dockerfile. Arguments after -- are passed to
    docker build.
    """  # noqa: D301  # click's marker for preformatted lines
    if arguments and not arguments[0].startswith("-"):
        raise click.UsageError(
            f"{arguments[0]!r} is not an option of docker build. Use --packages to name packages."
        )
    settings = Settings()
    program = docker.find_engine("farcall image build")
    wanted = " ".join(filter(None, [packages, f"-r {REQUIREMENTS}" if requirements else ""]))
    with build_context(requirements) as folder:
        code = docker.run(
            [
                *(program, "build", f"--tag={tag}"),
                f"--platform={platform or _PLATFORMS[settings.architecture]}",
                f"--build-arg=BASE_IMAGE={base or settings.stock_image}",
                f"--build-arg=PIP_PACKAGES={wanted}",
                *arguments,
                str(folder),
            ]
        )
    if code:
        raise FarcallError(
            f"docker build failed with exit code {code}; see the output above. Image {tag} was "
            "not created."
        )
    echo(f"built image {tag}")
    named = "" if tag == _TAG else f" {shlex.quote(tag)}"
    echo(f"next: farcall image push{named}", err=True)


@image.command("push")
@click.argument("tag", default=_TAG)
@click.option(
    "--repository",
    metavar="NAME",
    default="farcall",
    show_default=True,
    help="ECR repository; created if it does not exist.",
)
@stacks.stack_region
@stacks.options_path
@click.option("-y", "--yes", is_flag=True, help="Push without a prompt.")
def push(tag: str, repository: str, region: str | None, path: Path | None, *, yes: bool) -> None:
    """Push an image to ECR, and use it for jobs.

    \b
    Examples:
      farcall image push
      farcall image push my-jobs --repository team/jobs

    TAG is the local name of the image, by default farcall. The docker login is
    only used for this push. farcall prompts before it creates a repository, and
    sets the option image.
    """  # noqa: D301  # click's marker for preformatted lines
    settings = Settings(region=region) if region else Settings()
    option = "image"
    path = path or options_file.in_force()
    before = options_file.text_of(path)
    stacks.options_of(path, before)
    program = docker.find_engine("farcall image push")
    inspected = _inspect(program, tag)
    place = asyncio.run(_destination(settings, repository))
    # The tag is unique per content, so that no image is replaced.
    name = f"{place.host}/{repository}:{inspected['Id'].rpartition(':')[2][:12]}"
    echo(
        f"image {tag} ({inspected['Os']}/{inspected['Architecture']}) will be pushed to "
        f"{in_a_line(name)}"
    )
    if not place.has_repository:
        echo(
            f"repository {repository} will be created in {place.region} of account {place.account}"
        )
    echo(f"{option} will be set in {path}")
    if not place.has_repository:
        if not yes:
            confirm("Proceed?", refused="nothing was built or pushed")
        asyncio.run(_create(settings, repository))
    docker.tag_image(program, tag, name)
    with docker.signed_in(place.host, place.token) as variables:
        code = docker.run([program, "push", name], variables)
    if code:
        raise FarcallError(
            f"docker push failed with exit code {code}; see the output above. {path} is "
            f"unchanged. If a permission is missing, {POLICY}."
        )
    options_file.put(path, before, {option: _uri(program, name)}, settings.backend)
    echo("next: farcall doctor, or your script: python my_workflow.py", err=True)


@dataclass(frozen=True)
class _Destination:
    """Destination of an image, with the registry's login data.

    Attributes:
        host: The registry's host, with a port if needed; image names begin with it.
        token: ``user:password`` in base64, valid for 12 hours.
        region: The registry's region.
        account: The account's ID, 12 digits.
        has_repository: Whether the repository exists.

    Source:
        https://docs.aws.amazon.com/AmazonECR/latest/userguide/registry_auth.html
    """

    host: str
    token: str = field(repr=False)
    region: str
    account: str
    has_repository: bool


async def _destination(settings: Settings, repository: str) -> _Destination:
    async with stacks.opened(settings) as access:
        reply = await call_aws(access, "ecr", "get_authorization_token", policy=POLICY)
        data = reply["authorizationData"][0]
        return _Destination(
            urlsplit(data["proxyEndpoint"]).netloc,
            data["authorizationToken"],
            access.region,
            await access.account(),
            await has_repository(access, repository),
        )


async def _create(settings: Settings, repository: str) -> None:
    async with stacks.opened(settings) as access:
        await call_aws(
            access, "ecr", "create_repository", policy=POLICY, repositoryName=repository
        )


def _inspect(program: str, tag: str) -> dict[str, Any]:
    """Return docker's data of an image that can run jobs of this farcall version."""
    inspected = docker.inspect_image(program, tag)
    if inspected is None:
        raise FarcallError(
            f"docker has no image {tag!r}. Run `farcall image build --tag {shlex.quote(tag)}` "
            "to build it, or `docker image ls` to list the existing images."
        )
    protocol = (inspected["Config"].get("Labels") or {}).get(_LABEL, "")
    if protocol != str(PROTOCOL_VERSION):
        raise FarcallError(
            f"image {tag!r} has protocol {protocol or 'none'} (label {_LABEL}), but this "
            f"farcall requires {PROTOCOL_VERSION}. Build the image with `farcall image build`, "
            "or base your own image on such an image (FROM)."
        )
    return inspected


def _uri(program: str, name: str) -> str:
    """Return the image by its immutable digest, for the option ``image``."""
    repository = name.rpartition(":")[0]
    digests = (docker.inspect_image(program, name) or {}).get("RepoDigests") or []
    own = [each for each in digests if each.startswith(f"{repository}@sha256:")]
    # Docker has several digests of an image that was pushed there before in another format.
    return str(own[0]) if len(own) == 1 else name
