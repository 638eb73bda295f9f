"""Groups of nodes: common requirements, and errors that name a group. No I/O."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from farcall.backends.base import JobSpec
from farcall.config.settings import Settings
from farcall.model.commands import Device, Nodes
from farcall.model.errors import SettingsError

_PERMISSIONS = "rwm"
_VARIABLE = re.compile(r"[^=\0]+")

T = TypeVar("T")


@contextlib.contextmanager
def naming(job: JobSpec, place: int) -> Iterator[None]:
    """Name the group in errors, if the job has several or the group has a name."""
    try:
        yield
    except SettingsError as error:
        label = job.groups[place].name or (f"groups[{place}]" if len(job.groups) > 1 else "")
        if not label:
            raise
        raise SettingsError(f"{label}: {error}", option=error.option) from None


def each(job: JobSpec) -> Iterator[Settings]:
    """Yield the options with the resources of each group of a job's nodes.

    Raises:
        SettingsError: A resource is not a valid number.
    """
    if not job.groups:
        yield job.settings
    for place, group in enumerate(job.groups):
        with naming(job, place):
            wanted = resources(job.settings, group)
        yield wanted


def resources(settings: Settings, group: Nodes) -> Settings:
    """Return the options with the vCPUs, memory and GPUs of a group.

    Raises:
        SettingsError: A resource is not a valid number.
    """
    given = {"vcpu": group.vcpu, "memory": group.memory, "num_gpus": group.num_gpus}
    wanted = {name: value for name, value in given.items() if value is not None}
    for name, value in wanted.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise wrong(name, value, "use a number")
        if value < 0 or (value == 0 and name != "num_gpus"):
            raise wrong(name, value, "use a number above 0")
        if name == "num_gpus" and not is_whole(value):
            raise wrong(name, value, "use a whole number")
    return settings.model_copy(update=wanted)


def check(group: Nodes) -> None:
    """Check a group against the requirements of all platforms.

    Raises:
        SettingsError: The group is invalid.
    """
    if not is_whole(group.count) or group.count < 1:
        raise wrong("count", group.count, "use a whole number of at least 1")
    if not isinstance(group.image, str) or not group.image.strip():
        allowed = "name an image, for example public.ecr.aws/docker/library/python:3.12"
        raise wrong("image", group.image, allowed)
    if isinstance(group.command, str) or not all(isinstance(part, str) for part in group.command):
        allowed = 'use a list of strings, such as ["sh", "-c", "echo hi"]'
        raise wrong("command", group.command, allowed)
    _check_variables("env", group.env)
    _check_variables("secrets", group.secrets)
    check_each(_check_device, group.devices)
    paths = [mount.path for mount in group.mounts]
    for path in paths:
        if not path.startswith("/"):
            raise wrong("mounts", path, "use an absolute path in the container, beginning with /")
        if paths.count(path) > 1:
            raise wrong("mounts", path, "use each path in the container only once")
    if group.shm_size is not None and not _is_above_0(group.shm_size):
        raise wrong("shm_size", group.shm_size, "use a number of GiB above 0")


def check_each(check_one: Callable[[T], None], items: Iterable[T]) -> None:
    """Check all items."""
    for item in items:
        check_one(item)


def _check_device(device: Device) -> None:
    if not device.source.startswith("/") or not (device.path or "/").startswith("/"):
        raise wrong("devices", device, "use absolute paths, beginning with /")
    if not device.permissions or set(device.permissions) - set(_PERMISSIONS):
        raise wrong(
            "devices", device.permissions, "use some of the letters r, w and m as permissions"
        )


def _check_variables(what: str, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise wrong(what, name, "use a variable name without =")
        if not isinstance(value, str):
            # Its value may be a secret.
            raise SettingsError(
                f"{what}[{name!r}] is a {type(value).__name__}: use a string", option=what
            )


def wrong(option: str, value: object, allowed: str) -> SettingsError:
    """Return the error for an invalid value."""
    return SettingsError(f"{option} is {value!r}: {allowed}", option=option)


def is_whole(value: object) -> bool:
    """Return whether a value is an integer and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_above_0(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
