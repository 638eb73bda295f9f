"""Environment of a task: distributions that are sent to its job or left out.

Installed distributions are packed from disk if the jobs' platform is this one, or if they are the
same on every platform. uv fetches the wheels of all others, in exactly the installed version.
Nothing is resolved, so an inconsistent local environment is sent unchanged.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import sys
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from farcall.config.settings import Settings
from farcall.model.errors import FarcallError, SettingsError
from farcall.packages import archives, cache, imported, installed, runtime_archive, uv, wanted
from farcall.packages.archives import Archive, BuildError
from farcall.packages.installed import About, Found
from farcall.packages.target import Target
from farcall.packages.uv import Pin, Source, UvError

_OURS = {"farcall", "covalent"}
"""Packages that only the client needs, because a job has the runtime."""

_TOOLS = {"pip", "setuptools", "uv", "wheel"}
"""Installers, which jobs do not need unless a sent distribution requires them."""

_ANYWHERE = Source()
_ARCHIVES = "zip"
_READ_AT_ONCE = 8
_NAME_IN = re.compile(r"[\s\[(<>=!~;@]")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_FORMAT = ("1", *sys.version_info[:2], zlib.ZLIB_RUNTIME_VERSION, archives.LEVEL)
_BUILDER = ":".join(map(str, _FORMAT))
"""Inputs that determine the bytes of an archive, in addition to its files."""


class Packed(NamedTuple):
    """Synced distribution.

    Attributes:
        name: Name of the distribution.
        version: Version of the distribution.
        sha256: Digest of the archive, hexadecimal.
        size: Size of the archive in bytes.
        unpacked_bytes: Total size of the files in bytes.
    """

    name: str
    version: str
    sha256: str
    size: int
    unpacked_bytes: int


class Manifest(NamedTuple):
    """Manifest of an environment.

    Attributes:
        data: Content, JSON.
        sha256: Digest of the content, hexadecimal.
    """

    data: bytes
    sha256: str

    @property
    def fact(self) -> list[str | int]:
        """Reference to the manifest in a bundle: digest and size."""
        return [self.sha256, len(self.data)]


class Stays(NamedTuple):
    """Distribution or file that is not sent.

    Attributes:
        name: Name of the distribution or file.
        why: Reason, for display.
    """

    name: str
    why: str


@dataclass(frozen=True)
class Item:
    """Distribution that is sent.

    Attributes:
        name: Name of the distribution.
        version: Version; empty if it is only known after fetching.
        key: Key of the cache entry.
        found: Local installation; None if the distribution is fetched.
        about: Metadata of the local installation.
        pin: Requirement to fetch; None if the distribution is installed locally.
        source: Source for uv to fetch from.
        packed: Archive; None if it was not packed yet.
    """

    name: str
    version: str
    key: str
    found: Found | None = None
    about: About | None = None
    pin: Pin | None = None
    source: Source = _ANYWHERE
    packed: Packed | None = None


@dataclass(frozen=True)
class Environment:
    """Distributions that are sent, and those that are not.

    Attributes:
        target: Platform of the jobs.
        items: Distributions that are sent, sorted by name.
        stays: Distributions and files that are not.
    """

    target: Target
    items: Sequence[Item]
    stays: Sequence[Stays] = field(default=())

    @property
    def manifest(self) -> Manifest:
        """Manifest of the packed distributions."""
        return seal(self.target, (item.packed for item in self.items if item.packed))


def seal(target: Target, packed: Iterable[Packed]) -> Manifest:
    """Return the manifest of an environment; equal environments have equal manifests."""
    document = {
        "format": _ARCHIVES,
        "python": target.python,
        "architecture": target.architecture,
        "distributions": sorted(packed),
    }
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return Manifest(data, hashlib.sha256(data).hexdigest())


def is_wanted(settings: Settings) -> bool:
    """Return whether packages are sent at all."""
    return settings.packages is not None or bool(settings.extra_packages)


def is_by_import(settings: Settings) -> bool:
    """Return whether the imports of the caller's code determine the packages."""
    return settings.packages == wanted.AUTO


def pins(settings: Settings) -> list[str]:
    """Return the installed distributions that the options name, with their exact versions.

    ``extra_packages`` are left out: only the machine that packs them has to find their versions.

    Raises:
        SettingsError: A distribution cannot be sent.
    """
    installed = find(settings.with_options(extra_packages=())).items
    return [f"{item.name}=={item.version}" for item in installed]


def with_pins(settings: Settings, pinned: Sequence[str]) -> Settings:
    """Return options that send the distributions of another machine's `pins`.

    Those that are installed here in the same version are packed from disk, and the others are
    fetched.
    """
    here = {name: f"{name}=={item.version}" for name, item in _installed().items()}
    names = {text.partition("==")[0] for text in pinned}
    return settings.with_options(
        packages=wanted.LOCAL,
        exclude_packages=(*settings.exclude_packages, *sorted(here.keys() - names)),
        extra_packages=(*settings.extra_packages, *sorted({*pinned} - {*here.values()})),
    )


def find(settings: Settings) -> Environment:
    """Return the environment that the options name, without packing it.

    Raises:
        SettingsError: Distributions cannot be sent; the message names them and the remedy.
        FarcallError: No package index could be reached.
    """
    target = Target(settings.architecture)
    excluded = {canonicalize_name(name) for name in settings.exclude_packages}
    packages, extra = settings.packages, settings.extra_packages
    if packages in (wanted.LOCAL, wanted.AUTO):
        names = imported.modules(settings) if packages == wanted.AUTO else None
        items, stays = _local(target, excluded, names)
        if extra:
            versions = {item.name: item.version for item in items}
            more = _fetched(wanted.resolve(extra, versions, target), target)
            kept = {(item.name, item.version) for item in items}
            # Distributions that are installed here in the same version are kept.
            new = {each.name: each for each in more if (each.name, each.version) not in kept}
            items = [*{**{item.name: item for item in items}, **new}.values()]
    elif isinstance(packages, str):
        pins = wanted.resolve_file(Path(packages), extra, target)
        items, stays = _fetched(pins, target), _own(pins.sources)
    else:
        pins = wanted.resolve([*(packages or ()), *extra], {}, target)
        items, stays = _fetched(pins, target), _own(pins.sources)
    stays += [Stays(i.name, "in exclude_packages") for i in items if i.name in excluded]
    items = [item for item in items if item.name not in excluded]
    return Environment(target, sorted(items, key=lambda item: item.name), stays)


def lacking(
    settings: Settings, environment: Environment | None, requirements: Iterable[str]
) -> list[str]:
    """Return the requirements that an environment does not meet yet.

    Args:
        settings: The options.
        environment: The environment, in addition to the runtime; None for none.
        requirements: Requirements such as ``numpy>=2``.

    Raises:
        SettingsError: The options exclude a requirement.
    """
    target = Target(settings.architecture)
    here = runtime_archive.versions()
    here |= {item.name: item.version for item in environment.items} if environment else {}
    excluded = {canonicalize_name(name) for name in settings.exclude_packages}
    more = []
    for text in requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        version = here.get(name, "")
        if not target.needs(requirement):
            continue
        if name in excluded:
            raise SettingsError(f"{name} is in exclude_packages", option="exclude_packages")
        if not version or not requirement.specifier.contains(version, prereleases=True):
            more.append(text)
        elif requirement.extras:  # the requirements of the extras may be missing
            more.append(f"{name}[{','.join(sorted(requirement.extras))}]=={version}")
    return more


def _own(folders: Iterable[str]) -> list[Stays]:
    return [Stays(folder, "your own project: its source files are sent") for folder in folders]


def _fetched(pins: wanted.Pins, target: Target) -> list[Item]:
    return [_to_fetch(pin, target, pins.source) for pin in pins.pins]


def _to_fetch(pin: Pin, target: Target, source: Source = _ANYWHERE) -> Item:
    key = cache.key_of("fetched", pin.line, *target, _BUILDER)
    packed = _packed(cache.read(key))
    version = packed.version if packed else pin.version
    return Item(pin.name, version, key, pin=pin, source=source, packed=packed)


def _packed(noted: Mapping[str, Any] | None) -> Packed | None:
    return Packed(*noted["packed"]) if noted and noted.get("packed") else None


# --- installed distributions -----------------------------------------------------------------


def _local(
    target: Target,
    excluded: AbstractSet[str],
    names: tuple[AbstractSet[str], AbstractSet[str]] | None,
) -> tuple[list[Item], list[Stays]]:
    """Return the distributions of this interpreter that are sent.

    Args:
        target: Platform of the jobs.
        excluded: Names of excluded distributions.
        names: Result of `imported.modules`; None for all installed distributions.

    Raises:
        SettingsError: A distribution cannot be sent and is not excluded.
    """
    every = _installed()
    if names is not None:
        every = _used(every, *names)
    needed = _needed(every, target)
    items: list[Item] = []
    stays: list[Stays] = []
    refused: list[str] = []
    for item in every.values():
        if item.name in excluded:
            stays.append(Stays(item.name, "in exclude_packages"))
        elif why := _left_out(item, needed, target):
            stays.append(Stays(item.name, why))
        elif problem := _problem(item, target):
            refused.append(f"{item.name} {item.version} {problem}".replace("  ", " "))
        else:
            items.append(_of_target(item, target))
    if refused:
        raise SettingsError(
            f"packages: {len(refused)} local packages cannot be sent to jobs:\n"
            + "\n".join(refused)
            + "\nLeave out packages that the tasks do not need with exclude_packages",
            option="packages",
        )
    return items, stays


def _installed() -> dict[str, Item]:
    """Return the metadata of the installed distributions by name."""
    distributions = installed.scan()
    with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
        items = threads.map(_note, distributions)
        return dict(zip((each.key for each in distributions), items, strict=True))


def _used(
    every: Mapping[str, Item], named: AbstractSet[str], loaded: AbstractSet[str]
) -> dict[str, Item]:
    """Return the distributions that code imports or has loaded, with requirements."""
    owners = importlib.metadata.packages_distributions()

    def distributions(modules: Iterable[str]) -> set[str]:
        return {canonicalize_name(each) for name in modules for each in owners.get(name, ())}

    imported_names = distributions(loaded) - _required(every, imported.PROGRAMS)
    wanted_here = _required(every, imported_names | (distributions(named) - _OURS))
    return {name: item for name, item in every.items() if name in wanted_here}


def _required(every: Mapping[str, Item], names: Iterable[str]) -> set[str]:
    seen: set[tuple[str, str]] = set()
    left = [(name, "") for name in names]
    while left:
        name, extra = left.pop()
        item = every.get(name)
        if item is None or item.about is None or (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in item.about.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": extra}):
                other = canonicalize_name(requirement.name)
                left += [(other, each) for each in ("", *requirement.extras)]
    return {name for name, _ in seen}


def _note(distribution: Found) -> Item:
    """Return the metadata of an installed distribution, and cache it."""
    key = cache.key_of("installed", distribution.stamp, _BUILDER)
    noted = cache.read(key) if not distribution.stamp.endswith(":") else None
    if noted is None:
        about = installed.describe(distribution)
        if not distribution.stamp.endswith(":"):
            cache.write(key, {"about": asdict(about)})
    else:
        about = About(**{**noted["about"], "requires": tuple(noted["about"]["requires"])})
    return Item(distribution.key, about.version, key, distribution, about, packed=_packed(noted))


def _left_out(item: Item, needed: Mapping[str, bool], target: Target) -> str:
    """Return why a distribution is not sent although it could be; otherwise empty."""
    about = item.about
    if about is not None and about.is_editable:
        return "editable: its source files are sent"
    if item.name in _OURS:
        return "needed only by the client"
    if item.name in _TOOLS and not needed.get(item.name):
        return "an installer"
    if not target.is_here and needed.get(item.name) is False:
        return "only for other platforms"
    return ""


def _problem(item: Item, target: Target) -> str:
    about = item.about
    if about is None or about.problem:
        return about.problem if about else ""
    if _is_foreign(about, target) and about.source:
        return (
            f"was installed from {about.source} and is compiled for this platform, so no index "
            f"has it for {target}; build it into an image"
        )
    return ""


def _is_foreign(about: About, target: Target) -> bool:
    """Return whether the local files do not work on the target platform."""
    return not about.is_pure and (not target.is_here or about.is_conda)


def _of_target(item: Item, target: Target) -> Item:
    if item.about is None or not _is_foreign(item.about, target):
        return item
    line = f"{item.name}=={item.version}"
    return _to_fetch(Pin(item.name, item.version, line), target)


def _needed(items: Mapping[str, Item], target: Target) -> dict[str, bool]:
    """Return whether the target platform needs each distribution that others require.

    Distributions that no other one requires, or that are sent anyway, are not included.
    """
    needed: dict[str, bool] = {}
    installed_for = _TOOLS if target.is_here else items.keys()  # the others are sent in any case
    for item in items.values():
        if item.about is None or item.name in _OURS or item.name in _TOOLS:
            continue
        for text in item.about.requires:
            if canonicalize_name(_NAME_IN.split(text, maxsplit=1)[0]) not in installed_for:
                continue
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            name = canonicalize_name(requirement.name)
            if name in items and not needed.get(name):
                extras = _EXTRA.findall(str(requirement.marker or ""))
                over_there = any(target.needs(requirement, each) for each in ("", *extras))
                if over_there or _is_needed_here(requirement, extras):
                    needed[name] = over_there
    return needed


def _is_needed_here(requirement: Requirement, extras: Sequence[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": each}) for each in ("", *extras))


# --- packing ---------------------------------------------------------------------------------


def fetch(items: Sequence[Item], target: Target, folder: Path) -> list[Item]:
    """Fetch the distributions that are not installed; return all with their files.

    Raises:
        SettingsError: Some have no wheel for the platform; the message lists all of them.
        FarcallError: No package index could be reached.
    """
    done = [item for item in items if item.pin is None]
    by_source: dict[Source, list[Item]] = {}
    for item in items:
        if item.pin is not None:
            by_source.setdefault(item.source, []).append(item)
    for source, some in by_source.items():
        prefix = Path(tempfile.mkdtemp(prefix="wheels-", dir=folder))
        pins = [item.pin for item in some if item.pin is not None]
        try:
            uv.fetch(pins, target, source, prefix)
        except UvError as error:
            raise _explain(error, pins, target, source) from error
        there = {each.key: each for each in installed.scan([str(prefix / installed.SITE)])}
        for item in some:
            distribution = there.get(item.name)
            if distribution is None:
                raise FarcallError(f"uv fetched something other than {item.pin}")
            about = installed.describe(distribution)
            done.append(replace(item, found=distribution, about=about, version=about.version))
    return done


def _explain(error: UvError, pins: Sequence[Pin], target: Target, source: Source) -> FarcallError:
    if error.is_unreached:
        return wanted.explain(error, target)
    lacking = uv.missing(pins, target, source)
    unreached = next((each for each in lacking.values() if each.is_unreached), None)
    if unreached is not None or not lacking:
        return wanted.explain(unreached or error, target)
    lines = "\n".join(f"{pin}: {_shortly(each)}" for pin, each in sorted(lacking.items()))
    return SettingsError(
        f"packages: {len(lacking)} have no wheel for {target}, and farcall does not build any:\n"
        f"{lines}\nUse versions that have a wheel, leave them out with "
        f"exclude_packages={sorted(pin.name for pin in lacking)}, or build an image with them "
        "(option image)",
        option="packages",
    )


def _shortly(error: UvError) -> str:
    """Return the cause that uv names."""
    message = " ".join(str(error).split())
    cause = re.search(r"Because (.+?)(?:,? and you require| we can conclude|$)", message)
    return cause[1] if cause else message.removeprefix("error: ")


def pack(item: Item, folder: Path) -> tuple[Packed, Archive]:
    """Create a distribution's archive, and cache its metadata.

    Raises:
        SettingsError: A file is missing, or belongs to a folder that jobs do not have.
        FarcallError: The archive cannot be created.
    """
    if item.found is None or item.about is None:
        raise ValueError(f"{item.name} is not installed here")
    try:
        files = installed.content(item.found, item.about)
        archive = archives.build(files, folder)
    except BuildError as error:
        raise FarcallError(
            f"cannot create the archive of {item.name} {item.version} in {folder}: {error}"
        ) from error
    packed = Packed(item.name, item.version, archive.sha256, archive.size, archive.unpacked_bytes)
    noted = cache.read(item.key) or {}
    cache.write(item.key, {**noted, "packed": packed})
    return packed, archive
