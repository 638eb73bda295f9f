"""ECR of the local AWS emulator: moto's repositories, and a registry's password.

There are no images in them. Docker is sent to the registry that `Controls.configure` names, and
never to the address that a real account's has.
"""

from __future__ import annotations

import base64
from datetime import datetime, timedelta, timezone
from typing import Any

from moto.core.responses import ActionResult

from farcall_local import names

_LIFETIME = timedelta(hours=12)


class _Registry:
    """The one there is, as moto's state is the module's."""

    host = ""


def serve(host: str) -> None:
    """Name the registry that images are pushed to.

    Args:
        host: Its host and port, where it speaks HTTP and takes the user ``AWS`` with the password
            ``<account>-auth-token``; empty for none.
    """
    _Registry.host = host


def install() -> None:
    """Have moto answer so. This loads what moto has of ECR."""
    from moto.ecr.responses import ECRResponse

    responses: Any = ECRResponse
    responses.get_authorization_token = get_authorization_token


def get_authorization_token(_: Any) -> ActionResult:
    """Answer GetAuthorizationToken, instead of the method of moto's."""
    if not _Registry.host:
        from moto.ecr.exceptions import InvalidParameterException

        raise InvalidParameterException(
            "The local AWS emulator has no registry; its jobs run in images that docker has here."
        )
    password = f"AWS:{names.ACCOUNT_ID}-auth-token"
    data = {
        "authorizationToken": base64.b64encode(password.encode()).decode(),
        "expiresAt": datetime.now(timezone.utc) + _LIFETIME,
        "proxyEndpoint": f"http://{_Registry.host}",
    }
    return ActionResult({"authorizationData": [data]})
