"""Findings of health checks."""

from __future__ import annotations

import re
from dataclasses import dataclass

OK = "ok"
WARNING = "warning"
FAILED = "failed"
NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        check: Its name, one or two words.
        verdict: ``ok``, ``warning``, ``failed`` or ``not checked``.
        found: The observation.
        remedy: The remedy; empty if none is needed.
    """

    check: str
    verdict: str
    found: str
    remedy: str = ""


_REMEDY = re.compile(r"; |\. (?=[A-Z])")


def parted(text: str) -> tuple[str, str]:
    """Split a message into the finding and the remedy."""
    finding, *rest = _REMEDY.split(text, maxsplit=1)
    return finding, "".join(rest)
