"""Credentials: their source, and intervals between refreshes of temporary ones."""

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


_SOURCES = {
    "env": "the environment (AWS_ACCESS_KEY_ID)",
    "shared-credentials-file": "profile {profile!r} in {credentials_file}",
    "config-file": "profile {profile!r} in {config_file}",
    "custom-process": "credential_process of profile {profile!r}",
    "assume-role": "the role of profile {profile!r}",
    "assume-role-with-web-identity": "the role of the web identity token",
    "sso": "IAM Identity Center (profile {profile!r})",
    "container-role": "the container's role",
    "iam-role": "the instance's role",
}
"""botocore's names for sources of credentials, and their descriptions."""


def described(credentials: Any, core: Any) -> str:
    """Return the end of an access key's ID and its source, for errors.

    Args:
        credentials: The credentials in use.
        core: Their botocore session.
    """
    names = {
        name: core.get_config_variable(name)
        for name in ("profile", "credentials_file", "config_file")
    }
    names["profile"] = names["profile"] or "default"
    method = str(credentials.method)
    source = _SOURCES.get(method, method).format(**names)
    return f"access key ending in {credentials.access_key[-4:]} from {source}"
