"""ECR of the local AWS emulator: moto's repositories, and a registry's password.

The repositories contain no images. Docker uses the registry that `TestAWS.set_registry` sets, and
never the address of a real account's registry.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.core.responses import ActionResult

from farcall_local import names

_LIFETIME = timedelta(hours=12)


class _Registry:
    """The only registry, because moto's state is global."""

    host = ""


def serve(host: str) -> None:
    """Set the registry to which images are pushed.

    Args:
        host: Host and port of a registry with HTTP, the user ``AWS`` and the password
            ``<account>-auth-token``; empty for none.
    """
    _Registry.host = host


def install() -> None:
    """Replace moto's method with `get_authorization_token`. This imports moto's ECR."""
    from moto.ecr.responses import ECRResponse

    responses: Any = ECRResponse
    responses.get_authorization_token = get_authorization_token


def get_authorization_token(_: Any) -> ActionResult:
    """Handle GetAuthorizationToken instead of moto."""
    if not _Registry.host:
        from moto.ecr.exceptions import InvalidParameterException

        raise InvalidParameterException(
            "The local AWS emulator has no registry; its jobs run in images that docker has here."
        )
    password = f"AWS:{names.ACCOUNT_ID}-auth-token"
    data = {
        "authorizationToken": base64.b64encode(password.encode()).decode(),
        "expiresAt": datetime.now(UTC) + _LIFETIME,
        "proxyEndpoint": f"http://{_Registry.host}",
    }
    return ActionResult({"authorizationData": [data]})
