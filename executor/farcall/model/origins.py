"""Origins of options: where those in force come from, for whoever has to change one."""

from __future__ import annotations

import contextlib

from farcall.model.errors import SettingsError
from farcall.model.settings import ENVIRONMENT_PREFIX, files, from_environment, from_file


def origin(option: str) -> str:
    """Return where an option's value comes from."""
    if option in from_environment():
        return f"{ENVIRONMENT_PREFIX}{option.upper()}"
    with contextlib.suppress(SettingsError):
        if option in from_file():
            return str(files()[0])
    return "the defaults"


def summary() -> str:
    """Return where options are read from, in a line."""
    there = files()
    parts = [str(path) for path in there[:1]]
    variables = sorted(f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in from_environment())
    if variables:
        parts.append(f"the environment ({', '.join(variables)})")
    text = " and ".join(parts) or "the defaults alone: there is no farcall.toml"
    return text + "".join(f"; {path} is not read" for path in there[1:])
