"""Parsers of sizes and durations: ``512MiB``, ``4GB``, ``90s``, ``1h30m``. No I/O.

GB is 10^9 bytes, and GiB is 2^30. Ambiguous units, such as ``4G``, which programs read as either,
are rejected, and so are ``1:30`` and ``5 months``.
"""

from __future__ import annotations

import re

_BYTES: dict[str, int] = {
    f"{prefix}{middle}B": base**power
    for power, prefix in enumerate("KMGT", 1)
    for middle, base in (("", 1000), ("i", 1024))
} | {"kB": 1000, "B": 1}
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}

_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)"
_SIZE = re.compile(rf"({_NUMBER}) ?([A-Za-z]+)")
_SPAN = re.compile(" ?".join(rf"(?:({_NUMBER}) ?{unit})?" for unit in _SECONDS))
_IN_LOWER_CASE = {unit.lower(): unit for unit in _BYTES}


def size_bytes(text: str) -> float:
    """Parse a size with its unit, and return bytes.

    Args:
        text: Number and unit, in upper or lower case: B, kB, MB, GB or TB (powers of 1000), or
            KiB, MiB, GiB or TiB (powers of 1024).

    Raises:
        ValueError: The text is not a size, or its unit is missing or ambiguous.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match[2] if match else ""
    known = _IN_LOWER_CASE.get(unit, unit)
    if match and known in _BYTES:
        return float(match[1]) * _BYTES[known]
    if match and unit[0].upper() in "KMGT" and unit.lower()[1:] in ("", "i", "b", "ib"):
        prefix = unit[0].upper()
        raise ValueError(
            f"the unit {unit} is ambiguous: use {match[1]}{prefix}iB ({_power(prefix, 1024)} "
            f"bytes each) or {match[1]}{prefix}B ({_power(prefix, 1000)} bytes each)"
        )
    raise ValueError("use a unit, such as 512MiB, 4GiB (2^30 bytes) or 4GB (10^9 bytes)")


def span_s(text: str) -> float:
    """Parse a duration with its units, the largest first, and return seconds.

    Args:
        text: Numbers with the units w, d, h, m (minutes) and s, each at most once, such as
            ``1h30m``.

    Raises:
        ValueError: The text is not a duration.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise ValueError("use units, such as 90s, 30m, 1h30m, 2d or 1w (m is minutes)")
    numbers = zip(match.groups(), _SECONDS.values(), strict=True)
    return sum(float(number) * unit for number, unit in numbers if number)


def _power(prefix: str, base: int) -> str:
    power = "KMGT".index(prefix) + 1
    return f"10^{3 * power}" if base == 1000 else f"2^{10 * power}"
