"""Images of the embedded Kubernetes that cannot be had, and texts about those that can.

Sources:
    https://kubernetes.io/docs/concepts/containers/images/
    https://github.com/distribution/reference/blob/main/reference.go
"""

from __future__ import annotations

import re
import time

_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::\d+)?/)?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"{_HOST}{_PART}(?:/{_PART})*(?::[\w][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)


def is_name(image: str) -> bool:
    """Say whether an image's name is well-formed."""
    return bool(_NAME.fullmatch(image))


class Images:
    """Images that tests have made unavailable."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def withhold(self, image: str, heals_after: float | None) -> None:
        """Let an image not be pulled, for so many seconds; for ever where it is None."""
        self._until[image] = time.monotonic() + (
            float("inf") if heals_after is None else heals_after
        )

    def objection(self, image: str) -> str:
        """Return why an image cannot be pulled; nothing where it can."""
        if time.monotonic() >= self._until.get(image, 0.0):
            return ""
        return (
            f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": '
            "pull access denied, repository does not exist or may require authorization: server "
            "message: insufficient_scope: authorization failed"
        )
