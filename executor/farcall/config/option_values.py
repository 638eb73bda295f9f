"""Validators of option values, one for each kind of value.

A validator takes the value from an argument, a file or the environment, and returns the parsed
value, or raises a `ValueError` with the accepted values; `farcall.config.settings` adds the name
of the option.
"""

from __future__ import annotations

import numbers
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Required
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BeforeValidator, ConfigDict, StrictBool, StrictInt
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from farcall.model import quantities, terminal

HALVES = re.compile("[\ud800-\udfff]")
"""Surrogates, which UTF-8 cannot encode."""

CONTROLS = re.compile(f"[\t{terminal.CONTROLS}]")


def has(pattern: re.Pattern[str], value: object) -> bool:
    """Return whether a pattern matches in a text, or in any text of a nested document."""
    if isinstance(value, dict):
        return any(has(pattern, part) for item in value.items() for part in item)
    if isinstance(value, (list, tuple)):
        return any(has(pattern, part) for part in value)
    value = _path(value)
    return isinstance(value, str) and pattern.search(value) is not None


def _number(value: object) -> object:
    """Convert a number of another library, such as numpy, to a Python number."""
    if isinstance(value, bool):
        raise ValueError("a Boolean is not a number")  # noqa: TRY004  # pydantic collects these
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def _path(value: object) -> object:
    """Convert a path object to text, and return other values unchanged."""
    return os.fsdecode(value) if isinstance(value, os.PathLike) else value


def _is_bare(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _gib(value: object) -> object:
    """Convert a size to GiB, the unit of plain numbers: "4GiB" is 4, "4GB" is less."""
    if isinstance(value, str) and not _is_bare(value):
        return quantities.size_bytes(value) / 2**30
    return _number(value)


def _seconds(value: object) -> object:
    """Convert a duration to seconds: a number, "1h30m" or a `datetime.timedelta`."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str) and not _is_bare(value):
        return quantities.span_s(value)
    return _number(value)


def _upper_case(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _requirements(value: Any) -> list[str]:
    """Check a list of requirements.

    https://packaging.python.org/en/latest/specifications/dependency-specifiers/
    """
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise ValueError("use a list of requirements, such as ['numpy>=2']")
    for text in value:
        try:
            url = Requirement(text).url or ""
        except InvalidRequirement as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"{text!r} is not a requirement ({reason}); use one such as numpy>=2. Your own "
                "folders are sent automatically"
            ) from None
        if "@" in urlsplit(url).netloc:
            raise ValueError(
                "a URL must not contain a password; put it into netrc or uv's settings"
            )
    return list(value)


def _packages(value: Any) -> str | list[str] | None:
    value = _path(value)
    if value in (None, ""):
        return None
    if isinstance(value, str):
        if value not in ("auto", "local") and not value.endswith(_REQUIREMENT_FILES):
            raise ValueError(
                'use "auto", "local", a list of requirements, the path to a requirements.txt, '
                "pyproject.toml or uv.lock, or None"
            )
        return value
    return _requirements(value)


def _cache(value: Any) -> bool | str:
    """Convert a Boolean, also as text, or check the name of a version."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value):
        raise ValueError(
            "use True, False, or the name of a version such as v2: up to 64 letters, digits, "
            "dots, underscores and hyphens"
        )
    return value


_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0", ""), False),
}

_REQUIREMENT_FILES = (".txt", ".in", "pyproject.toml", "uv.lock")


def _sources(value: Any) -> str | list[str] | None:
    if value in (None, "", "auto"):
        return value or None
    if not isinstance(value, list | tuple) or not all(
        isinstance(each, str | os.PathLike) for each in value
    ):
        raise ValueError('use "auto", a list of folders, such as ["src"], or None')
    return [os.fsdecode(each) for each in value]


MAX_TAGS = 45
"""Maximum tags of a job. AWS accepts 50, including the job definition's."""

MAX_TAG_KEY, MAX_TAG_VALUE = 128, 256
"""Maximum characters of a tag's key and value.

https://docs.aws.amazon.com/batch/latest/userguide/using-tags.html
"""

NO_TAG = re.compile(r"[^\w .:/=+@-]")


def check_tag(key: str, value: str) -> None:
    """Check a tag as AWS does.

    Raises:
        ValueError: AWS does not accept it; the message names the reason.
    """
    if not 1 <= len(key) <= MAX_TAG_KEY:
        raise ValueError(f"the key {key!r} has {len(key)} characters; use 1 to {MAX_TAG_KEY}")
    if len(value) > MAX_TAG_VALUE:
        raise ValueError(
            f"the value of {key!r} has {len(value)} characters; use at most {MAX_TAG_VALUE}"
        )
    if key.lower().startswith("aws:"):
        raise ValueError(f"the key {key!r} begins with aws:, which AWS reserves; use another key")
    for what, text in ((f"the key {key!r}", key), (f"the value {value!r} of {key!r}", value)):
        if match := NO_TAG.search(text):
            raise ValueError(
                f"{what} contains the character {match[0]!r}; use letters, digits, spaces and "
                "_ . : / = + - @"
            )


def _tags(value: dict[str, str]) -> dict[str, str]:
    for each in value.items():
        check_tag(*each)
    return value


_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
"""Name of an environment variable that every platform and shell accepts."""

_RESERVED = {"FARCALL_": "farcall", "AWS_BATCH": "AWS Batch"}
"""Prefixes of variables, and who sets them.

https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
"""


def _environment(value: Any) -> dict[str, str | None]:
    """Convert a list of ``NAME`` and ``NAME=value``, or check a table."""
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        pairs = (each.partition("=") for each in value)
        value = {name: text if equals else None for name, equals, text in pairs}
    if not isinstance(value, Mapping):
        raise ValueError(  # noqa: TRY004  # pydantic collects these
            'use a table such as {NAME = "value"}, or a list such as ["NAME", "OTHER=value"] '
            "(JSON in the environment and on the command line)"
        )
    for name, text in value.items():
        check_variable(name)
        if text is not None and not isinstance(text, str):
            raise ValueError(f"the value of {name} is a {type(text).__name__}; use a string")
        if text is not None and "\0" in text:
            raise ValueError(f"the value of {name} contains a null character; remove it")
    return dict(value)


def check_variable(name: object) -> None:
    """Check the name of a variable of a job.

    Raises:
        ValueError: A job cannot set it; the message names the reason.
    """
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        raise ValueError(
            f"the name {name!r} is not valid for a variable; use letters, digits and _, and no "
            "digit at the beginning"
        )
    for prefix, owner in _RESERVED.items():
        if name.startswith(prefix):
            raise ValueError(
                f"the name {name} is reserved: {owner} sets the variables whose names begin with "
                f"{prefix}; use another name"
            )


_SECRET_ARN = re.compile(
    r"arn:aws[a-z-]*:(secretsmanager:[a-z0-9-]+:\d{12}:secret:|ssm:[a-z0-9-]+:\d{12}:parameter/)\S+"
)
"""https://docs.aws.amazon.com/batch/latest/APIReference/API_Secret.html"""

_KEY_OF_SECRET = re.compile("[-._a-zA-Z0-9]{1,253}")


def check_secret(name: str, place: str, *, is_batch: bool) -> None:
    """Check the place of a secret on AWS Batch or on Kubernetes.

    Raises:
        ValueError: The platform does not accept it; the message names the accepted form.
    """
    check_variable(name)
    secret, _, key = place.partition("/")
    if is_batch and not _SECRET_ARN.fullmatch(place):
        raise ValueError(
            f"the place of {name} is {place!r}; on AWS Batch, use the ARN of a secret "
            "(arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME) or of a parameter "
            "(arn:aws:ssm:REGION:ACCOUNT:parameter/NAME)"
        )
    if not is_batch and not (_is_name(secret) and _KEY_OF_SECRET.fullmatch(key)):
        raise ValueError(
            f"the place of {name} is {place!r}; on Kubernetes, name a Secret in the jobs' "
            'namespace and one of its keys, for example "db/password"'
        )


DISTRIBUTION = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
"""Name of a distribution on the package index."""

Cache = BeforeValidator(_cache)
Packages = BeforeValidator(_packages)
Environment = BeforeValidator(_environment)
Requirements = BeforeValidator(_requirements)
Sources = BeforeValidator(_sources)
Number = BeforeValidator(_number)
PathText = BeforeValidator(_path)
Tags = AfterValidator(_tags)
UpperCase = BeforeValidator(_upper_case)
Gib = BeforeValidator(_gib)
Seconds = BeforeValidator(_seconds)


# --- Kubernetes ----------------------------------------------------------------------------------

LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
"""DNS label as in RFC 1123, the format of a namespace's name.

https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
"""DNS subdomain of up to `LONGEST_NAME` characters, the format of most names."""

LONGEST_NAME = 253
_SUBDOMAIN = re.compile(rf"{SUBDOMAIN}\Z")
_NEVER = "never"


def _is_name(value: Any) -> bool:
    is_short = isinstance(value, str) and len(value) <= LONGEST_NAME
    return is_short and _SUBDOMAIN.match(value) is not None


def _ttl(value: Any) -> Any:
    """Convert a time to live; ``never`` stands for None, which TOML lacks."""
    return None if value == _NEVER else _seconds(value)


class Mount(TypedDict, total=False):
    """Mount of the option ``mounts``; without its defaults only before the validation."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    type: Required[Literal["volume", "bind", "device"]]
    src: Required[Annotated[str, PathText]]
    dst: Annotated[str, PathText]
    readonly: StrictBool
    perm: str


def _complete(given: Mount) -> Mount:
    """Check the paths and permissions of a mount, and add its defaults."""
    kind, source = given["type"], given["src"]
    is_device = kind == "device"
    target = given.get("dst") or (source if is_device else "")
    if kind == "volume" and not _is_name(source):
        raise ValueError(f"src of a volume must be the name of a claim, not {source!r}")
    for name, path in (("dst", target), ("src", "/" if kind == "volume" else source)):
        if not path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{name} of a mount must be an absolute path without ..: {path!r}")
    if ":" in target:
        raise ValueError(f"dst of a mount must not contain a colon: {target!r}")
    perm = given.get("perm") or ("rwm" if is_device else "")
    if perm and not (is_device and re.fullmatch("r?w?m?", perm)):
        raise ValueError(f"perm is for devices, letters of rwm in this order, not {perm!r}")
    readonly = given.get("readonly", False)
    return {"type": kind, "src": source, "dst": target, "readonly": readonly, "perm": perm}


class Toleration(TypedDict, total=False):
    """Toleration of the option ``tolerations``; the cluster checks its values.

    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    key: str
    operator: str
    value: str
    effect: str
    tolerationSeconds: StrictInt  # Kubernetes's name


Ttl = BeforeValidator(_ttl)
CompleteMount = AfterValidator(_complete)
