"""Schemas of Kubernetes's releases, in which no field is allowed that they do not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kubernetes_validate

RELEASES = ("1.33", "1.34", "1.35", "1.36", "1.37")
"""From the first in which each index of a Job has its own attempts for good."""


def check(document: dict[str, Any], releases: Sequence[str] = RELEASES[-1:]) -> None:
    """Validate a document with the schemas of several releases.

    Raises:
        kubernetes_validate.ValidationError: It is not.
    """
    for release in releases:
        kubernetes_validate.validate(document, release, strict=True)
