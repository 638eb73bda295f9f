"""An image of one's own: ``farcall image build``, ``farcall image push``."""

from __future__ import annotations

import asyncio
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from farcall.cli import docker, options_file, stacks
from farcall.cli.printing import say
from farcall.deploy import registry
from farcall.deploy.build_context import REQUIREMENTS, build_context
from farcall.deploy.registry import Registry
from farcall.model.errors import FarcallError
from farcall.model.platforms import BATCH, KUBERNETES
from farcall.model.settings import Settings
from farcall.model.terminal import in_a_line
from farcall_runtime.contract import PROTOCOL_VERSION

_TAG = "farcall"
_LABEL = "farcall.protocol-version"
_PLATFORMS = {"x86_64": "linux/amd64", "arm64": "linux/arm64"}
_OPTIONS = {BATCH: "container_image_uri", KUBERNETES: "image"}
_MOST = 255
"""Characters that the option has room for, as Batch has in a job definition."""
_DIGEST = f"sha256:{64 * '0'}"

_REPOSITORY = re.compile(r"(?:[a-z0-9]+(?:[._-][a-z0-9]+)*/)*[a-z0-9]+(?:[._-][a-z0-9]+)*")
"""https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_CreateRepository.html"""


@click.group("image")
def image() -> None:
    """Build an image for jobs, and push it to ECR."""


def _packages(context: click.Context, parameter: click.Parameter, text: str) -> str:
    """Read a list as a shell does; the Dockerfile's parts it at blanks, and knows no quotes."""
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", context, parameter) from None
    for part in parts:
        if len(part.split()) != 1:
            raise click.BadParameter(
                f"{part!r} has a blank in it; name it in a file of requirements, by -r",
                context,
                parameter,
            )
    return " ".join(parts)


@image.command("build")
@click.option(
    "--tag", metavar="NAME", default=_TAG, show_default=True, help="Name of the image here."
)
@click.option(
    "--base",
    metavar="IMAGE",
    default="",
    help="Any Linux image with Python and pip; by default the one that jobs run in without an "
    "image of yours. Its Python has the minor version of your workflow's.",
)
@click.option(
    "--packages",
    metavar="LIST",
    default="",
    callback=_packages,
    help="As they stand after pip install, with blanks between them.",
)
@click.option(
    "-r",
    "--requirements",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="File of requirements.",
)
@click.option(
    "--platform",
    metavar="PLATFORM",
    default="",
    help="Such as linux/arm64; by default that of the option architecture.",
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
    """Build an image of your own, by docker.

    \b
    farcall image build --packages 'numpy scikit-learn==1.5.2'
    farcall image build --tag my-jobs -r requirements.txt --platform linux/arm64
    farcall image build -- --no-cache --network host

    It is built from farcall's Dockerfile. What stands behind -- are arguments of docker build.
    """  # noqa: D301  # click's mark for lines to be left as they are
    if arguments and not arguments[0].startswith("-"):
        raise click.UsageError(
            f"{arguments[0]!r} is no option of docker build; packages are named by --packages"
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
            f"docker build failed with exit code {code}, for the reason above; no image was named "
            f"{tag}"
        )
    say(f"image {tag} was built")
    named = "" if tag == _TAG else f" {shlex.quote(tag)}"
    say(f"next: farcall image push{named}", err=True)


def _repository(context: click.Context, parameter: click.Parameter, name: str) -> str:
    if not _REPOSITORY.fullmatch(name) or not 2 <= len(name) <= 256:
        raise click.BadParameter(
            f"{name!r}: 2 to 256 lower-case letters and digits are allowed, with single '.', '_', "
            "'-' and '/' between them",
            context,
            parameter,
        )
    return name


@image.command("push")
@click.argument("tag", default=_TAG)
@click.option(
    "--repository",
    metavar="NAME",
    default="farcall",
    show_default=True,
    callback=_repository,
    help="Of ECR; it is made where there is none.",
)
@stacks.stack_region
@stacks.options_path
@click.option("--yes", is_flag=True, help="Do not ask.")
def push(tag: str, repository: str, region: str | None, path: Path | None, *, yes: bool) -> None:
    """Push an image to ECR, and have jobs run in it.

    \b
    farcall image push                               the image farcall, to the repository farcall
    farcall image push my-jobs --repository team/jobs

    TAG is the image's name here, by default farcall. It signs docker in for the push alone, asks
    before a repository is made, and writes the option container_image_uri, on Kubernetes image.
    """  # noqa: D301  # click's mark for lines to be left as they are
    settings = stacks.settings_for(region)
    option = _OPTIONS[settings.backend]
    path = path or options_file.in_force()
    before = options_file.text_of(path)
    stacks.options_of(path, before)
    program = docker.find_engine("farcall image push")
    found = _look_at(program, tag)
    place = asyncio.run(_look_around(settings, repository))
    target = f"{place.registry.host}/{repository}"
    if len(f"{target}@{_DIGEST}") > _MOST:
        raise FarcallError(
            f"--repository: the image would be named {target}@{_DIGEST[:7]}..., which is longer "
            f"than the {_MOST} characters of {option}; choose a shorter one"
        )
    name = f"{target}:{_short(found)}"
    say(f"image {tag} ({found['Os']}/{found['Architecture']}) goes to {in_a_line(name)}")
    if not place.has_repository:
        say(f"repository {repository} will be made in {place.region} of account {place.account}")
    say(f"written is {path}: {option}")
    if not place.has_repository:
        if not yes:
            stacks.confirm("Shall it be so?", refused="nothing was made or pushed")
        asyncio.run(_create(settings, repository))
    docker.tag_image(program, tag, name)
    with docker.signed_in(place.registry.host, place.registry.token) as variables:
        code = docker.run([program, "push", name], variables)
    if code:
        raise FarcallError(
            f"docker push failed with exit code {code}, for the reason above; {path} is as it "
            f"was. Where an action is missing, {registry.POLICY}"
        )
    options_file.put(path, before, {option: _uri(program, name)}, settings.backend)
    say("next: farcall doctor, or your script: python my_workflow.py", err=True)


@dataclass(frozen=True)
class _Place:
    """Where an image goes."""

    registry: Registry
    region: str
    account: str
    has_repository: bool


async def _look_around(settings: Settings, repository: str) -> _Place:
    async with stacks.opened(settings) as access:
        return _Place(
            await registry.sign_in(access),
            access.region,
            await access.account(),
            await registry.has_repository(access, repository),
        )


async def _create(settings: Settings, repository: str) -> None:
    async with stacks.opened(settings) as access:
        await registry.create_repository(access, repository)


def _look_at(program: str, tag: str) -> dict[str, Any]:
    """Return what docker knows of an image in which jobs of this farcall run."""
    found = docker.inspect_image(program, tag)
    if found is None:
        raise FarcallError(
            f"docker has no image {tag!r}; `farcall image build --tag {shlex.quote(tag)}` builds "
            "one, and `docker image ls` lists those that there are"
        )
    protocol = (found["Config"].get("Labels") or {}).get(_LABEL, "")
    if protocol != str(PROTOCOL_VERSION):
        raise FarcallError(
            f"image {tag!r} is of protocol {protocol or 'none'} by its label {_LABEL}, and this "
            f"farcall's is {PROTOCOL_VERSION}; `farcall image build` builds one, and another can "
            "be built on that (FROM)"
        )
    return found


def _short(found: dict[str, Any]) -> str:
    """Return the tag in the repository: another one for each content, so none is replaced."""
    return str(found["Id"]).rpartition(":")[2][:12]


def _uri(program: str, name: str) -> str:
    """Return what jobs are to run in: the image by its digest, which stays what it is."""
    repository = name.rpartition(":")[0]
    digests = (docker.inspect_image(program, name) or {}).get("RepoDigests") or []
    own = [each for each in digests if each.startswith(f"{repository}@sha256:")]
    # Of an image that was pushed there before in another form docker knows several.
    return str(own[0]) if len(own) == 1 else name
