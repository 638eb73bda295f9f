"""Custom images: ``farcall image build`` and ``farcall image push``."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any

import click

from farcall.cli import docker, options_file, registry, stacks
from farcall.cli.build_context import REQUIREMENTS, build_context
from farcall.cli.common import confirm
from farcall.cli.printing import echo
from farcall.config.settings import Settings
from farcall.model.errors import FarcallError
from farcall.model.terminal import in_a_line
from farcall_runtime.contract import PROTOCOL_VERSION

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
    place = asyncio.run(registry.destination(settings, repository))
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
        asyncio.run(registry.create(settings, repository))
    docker.tag_image(program, tag, name)
    with docker.signed_in(place.host, place.token) as variables:
        code = docker.run([program, "push", name], variables)
    if code:
        raise FarcallError(
            f"docker push failed with exit code {code}; see the output above. {path} is "
            f"unchanged. If a permission is missing, {registry.POLICY}."
        )
    options_file.put(path, before, {option: _uri(program, name)}, settings.backend)
    echo("next: farcall doctor, or your script: python my_workflow.py", err=True)


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
