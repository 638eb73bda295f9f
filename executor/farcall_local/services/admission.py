"""Access control of the local AWS emulator: AWS clients with a key, no web pages.

A job is a command that runs as the user who started the server, and every program on the machine
and every page in a browser there can send it requests. So the server accepts only requests that
are signed with a key that it knows: the key that it creates at its start and gives only to its
parent, keys of users in its IAM, and keys of assumed roles.

Other sites can make a browser send requests. The server rejects requests from web pages before any
other check, because it has no pages. A website may also let its own name resolve to this machine
(DNS rebinding), so requests for a host other than the server's address are rejected.

Sources:
    https://fetch.spec.whatwg.org/#origin-header
    https://www.w3.org/TR/fetch-metadata/
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from email.message import Message
from typing import Any, NamedTuple

from moto.iam.access_control import CreateAccessKeyFailure, create_access_key
from moto.iam.models import get_account_id_from

from farcall_local.services import signatures
from farcall_local.services.error_responses import Reason, RefusedError
from farcall_local.services.signatures import AccessKey, Request, Signature

_SHOWN = 100


class Caller(NamedTuple):
    """Claimed sender of a request.

    Attributes:
        signature: The request's signature.
        secret: Secret key that a valid signature was made with.
        identity: moto's access key object, which knows its owner; None for the account itself.
    """

    signature: Signature
    secret: str
    identity: Any


class Admission:
    """Admission control of incoming requests. Safe to use from several threads.

    Args:
        key: The account's own key, created at the start.
        host: The address that the server listens on.
        locks: Held, in this order, while moto's IAM and STS are read.
    """

    def __init__(self, key: AccessKey, host: str, *locks: AbstractContextManager[Any]) -> None:
        self._key = key
        self._host = host
        self._iam, self._sts = locks

    def reject_pages(self, headers: Message, address: str) -> None:
        """Reject requests that a web page may have sent.

        The port is not compared: a tunnel may use another one, and a browser cannot choose it.

        Raises:
            RefusedError: The request may come from a page, or names another server.
        """
        hosts = headers.get_all("Host") or []
        if len(hosts) != 1 or _name(hosts[0]) not in (self._host, address):
            sender = ", ".join(hosts)[:_SHOWN] or "none"
            text = f"The request is for another host ({sender}); this one is {self._host}."
            raise RefusedError(Reason.DENIED, text)
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
        if origin is not None or site not in (None, "none"):
            sender = f"Origin: {origin}" if origin is not None else f"Sec-Fetch-Site: {site}"
            text = f"The local AWS emulator answers no web pages ({sender[:_SHOWN]})."
            raise RefusedError(Reason.DENIED, text)

    def find(self, request: Request) -> Caller:
        """Return the claimed sender of a request; `signatures.verify` checks the claim.

        Raises:
            RefusedError: The request has no signature, or one with an unknown key.
        """
        signature = signatures.read(request)
        if signature is None:
            text = (
                "The request is not signed. The local AWS emulator answers requests signed with "
                "the access key that it made at its start, which farcall local hands on."
            )
            raise RefusedError(Reason.UNSIGNED, text)
        if signature.key_id == self._key.key_id:
            if signature.token is not None:
                raise _bad_token()
            return Caller(signature, self._key.secret, None)
        given = {} if signature.token is None else {"X-Amz-Security-Token": signature.token}
        with self._iam, self._sts:
            try:
                account = get_account_id_from(signature.key_id)
                access_key = create_access_key(account, "aws", signature.key_id, given)
            except CreateAccessKeyFailure as error:
                raise _unknown_key() if error.reason == "InvalidId" else _bad_token() from None
        return Caller(signature, access_key.create_credentials().secret_key, access_key)


def _name(host: str) -> str:
    """Return a Host header without its port."""
    return host.rpartition(":")[0] if ":" in host else host


def _unknown_key() -> RefusedError:
    text = (
        "The security token included in the request is invalid. The local emulator makes another "
        "access key at each start: take the one that farcall local prints now."
    )
    return RefusedError(Reason.UNKNOWN_KEY, text)


def _bad_token() -> RefusedError:
    return RefusedError(Reason.BAD_TOKEN, "The session token is not the one of the access key.")
