"""Intervals between refreshes of temporary credentials."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from botocore.credentials import RefreshableCredentials

_INTERVAL = timedelta(minutes=1)
"""Minimum interval between two refreshes, while the keys are valid for longer."""


def limit_refreshes(credentials: Any) -> None:
    """Refresh credentials at most once a minute while their keys are valid for longer.

    botocore refreshes keys that expire within 15 minutes before each request. For keys that are
    never valid for longer, it would start the user's ``credential_process`` or call STS each time.

    Source:
        https://github.com/boto/botocore/issues/2189
    """
    if not isinstance(credentials, RefreshableCredentials):
        return
    is_due, refresh, now = (
        credentials.refresh_needed,
        credentials._refresh_using,
        credentials._time_fetcher,
    )
    last = now()

    def refresh_needed(refresh_in: int | None = None) -> bool:
        if not is_due(refresh_in):
            return False
        expires = credentials._expiry_time
        return expires is None or expires - now() < _INTERVAL or now() - last >= _INTERVAL

    def refresh_using() -> Any:
        nonlocal last
        last = now()
        return refresh()

    credentials.refresh_needed, credentials._refresh_using = refresh_needed, refresh_using
