"""Schemas of Kubernetes releases, which reject unknown fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kubernetes_validate

RELEASES = ("1.33", "1.34", "1.35", "1.36", "1.37")
"""Releases from the first one in which backoffLimitPerIndex of Jobs is stable."""


def check(document: dict[str, Any], releases: Sequence[str] = RELEASES[-1:]) -> None:
    """Validate a document with the schemas of several releases.

    Raises:
        kubernetes_validate.ValidationError: The document is invalid.
    """
    for release in releases:
        kubernetes_validate.validate(document, release, strict=True)
