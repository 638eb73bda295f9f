"""Verification of Signature Version 4 for requests of AWS clients.

botocore signs the received request again, so a changed request does not match. A request is signed
in its header or, if presigned, in its query. A body is signed completely, or not at all if S3
accepts that; bodies in chunks (``aws-chunked``), which boto3 and obstore send only over TLS, are
rejected. No I/O, and independent of moto.

Sources:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
    https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
"""

from __future__ import annotations

import functools
import hmac
import re
import secrets
import string
import time
from calendar import timegm
from dataclasses import dataclass
from email.message import Message
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from farcall_local.services.error_responses import Reason, RefusedError

ALGORITHM = "AWS4-HMAC-SHA256"
#: Maximum clock difference of a client, in seconds.
MAX_SKEW_S = 15 * 60
#: Maximum lifetime of a presigned URL, in seconds.
MAX_PRESIGNED_S = 7 * 24 * 3600

UNSIGNED = "UNSIGNED-PAYLOAD"

_HEADER = re.compile(
    rf"{ALGORITHM} +Credential=([^/,\s]+)/(\d{{8}})/([^/,\s]+)/([^/,\s]+)/aws4_request, *"
    r"SignedHeaders=([a-z0-9;_.-]+), *Signature=([0-9a-f]{64})"
)
_CREDENTIAL = re.compile(r"([^/,\s]+)/(\d{8})/([^/,\s]+)/([^/,\s]+)/aws4_request")
_MOMENT = re.compile(r"\d{8}T\d{6}Z")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class AccessKey(NamedTuple):
    """Access key for signing requests.

    Attributes:
        key_id: The public part.
        secret: The secret part.
        token: Session token; None for a user's key and the account's own.
    """

    key_id: str
    secret: str
    token: str | None = None

    @classmethod
    def new(cls) -> AccessKey:
        """Create a random key in the format of AWS's keys."""
        letters = string.ascii_uppercase + string.digits
        key_id = "AKIA" + "".join(secrets.choice(letters) for _ in range(16))
        return cls(key_id, secrets.token_urlsafe(30))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with this key for AWS clients."""
        return {"AWS_ACCESS_KEY_ID": self.key_id, "AWS_SECRET_ACCESS_KEY": self.secret}


@dataclass(frozen=True)
class Request:
    """Request as received.

    Attributes:
        method: HTTP method, such as GET.
        target: Path and query of the request line.
        headers: All headers.
    """

    method: str
    target: str
    headers: Message

    @functools.cached_property
    def fields(self) -> dict[str, list[str]]:
        """Values of each header by lower-case name."""
        values: dict[str, list[str]] = {}
        for name, value in self.headers.items():
            values.setdefault(name.lower(), []).append(value)
        return values

    @functools.cached_property
    def query(self) -> list[tuple[str, str]]:
        """Decoded query parameters."""
        query = self.target.partition("?")[2]
        return parse_qsl(query, keep_blank_values=True)


@dataclass(frozen=True)
class Signature:
    """Unverified claims of a request's signature.

    Attributes:
        key_id: The access key.
        date: Date of the credential scope, as YYYYMMDD.
        region: Region of the credential scope.
        service: Service of the credential scope, such as ``s3``.
        signed_headers: Names of the signed headers, in order.
        value: The signature, in hexadecimal.
        moment: Time of the signature, as YYYYMMDDTHHMMSSZ.
        token: The session token; None for none.
        lifetime_s: Lifetime of a presigned URL in seconds; None if the signature is in the header.
        payload: The claimed digest of the body, or `UNSIGNED`. Empty if missing.
    """

    key_id: str
    date: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    value: str
    moment: str
    token: str | None
    lifetime_s: int | None
    payload: str


def read(request: Request) -> Signature | None:
    """Return a request's claimed signature; None if it has none.

    Raises:
        RefusedError: The signature cannot be parsed.
    """
    authorization = _only(request, "authorization")
    if authorization is not None:
        match = _HEADER.fullmatch(authorization.strip())
        if match is None:
            raise _incomplete("The Authorization header is no Signature Version 4.")
        key_id, date, region, service, names, value = match.groups()
        moment, token = _only(request, "x-amz-date"), _only(request, "x-amz-security-token")
        payload = _only(request, "x-amz-content-sha256")
        lifetime_s = None
    else:
        query = dict(request.query)
        if "AWSAccessKeyId" in query:
            raise _incomplete(
                "The URL is presigned with Signature Version 2, which is not known here. boto3 "
                "makes those of version 4 with Config(signature_version='s3v4')."
            )
        if query.get("X-Amz-Algorithm") != ALGORITHM:
            return None
        match = _CREDENTIAL.fullmatch(query.get("X-Amz-Credential", ""))
        seconds = query.get("X-Amz-Expires", "")
        value = query.get("X-Amz-Signature", "")
        if match is None or not _DIGEST.fullmatch(value) or not re.fullmatch(r"\d{1,6}", seconds):
            raise _incomplete("The query's signature is no Signature Version 4.")
        key_id, date, region, service = match.groups()
        names = query.get("X-Amz-SignedHeaders", "")
        moment, token = query.get("X-Amz-Date"), query.get("X-Amz-Security-Token")
        payload = query.get("X-Amz-Content-Sha256", UNSIGNED)
        lifetime_s = min(int(seconds), MAX_PRESIGNED_S)
    if moment is None or not _MOMENT.fullmatch(moment) or not moment.startswith(date):
        raise _incomplete("X-Amz-Date is missing, or is not the credential's date.")
    return Signature(
        key_id=key_id,
        date=date,
        region=region,
        service=service,
        signed_headers=tuple(names.split(";")),
        value=value,
        moment=moment,
        token=token,
        lifetime_s=lifetime_s,
        payload=payload or "",
    )


def verify(request: Request, signature: Signature, secret: str, digest: str | None = None) -> None:
    """Check that a signature was made recently with a secret for this request.

    Args:
        request: The request as received.
        signature: The claimed signature.
        secret: Secret of the named access key.
        digest: SHA-256 of the body in hexadecimal; None for S3, where the request contains it and
            `check_digest` compares it with the body.

    Raises:
        RefusedError: The signature is not valid.
    """
    signed = signature.signed_headers
    unsigned = [
        name
        for name in request.fields
        if (name.startswith("x-amz-") or name == "host") and name not in signed
    ]
    if unsigned:
        raise RefusedError(Reason.DENIED, f"The header {unsigned[0]} has to be signed.")
    missing = [name for name in signed if name not in request.fields]
    if missing:
        raise RefusedError(
            Reason.BAD_SIGNATURE, f"The header {missing[0]} is signed, and missing."
        )
    if "#" in request.target or not request.target.startswith("/"):
        # botocore splits URLs, so its signature would not cover the whole target.
        raise RefusedError(Reason.BAD_SIGNATURE, "The target of the request is not a path.")
    headers = _Headers({name: request.fields[name] for name in signed})
    signer, received = _signer(
        signature,
        secret,
        method=request.method,
        url=f"http://host{request.target.partition('?')[0]}",
        headers={"X-Amz-Content-SHA256": signature.payload if digest is None else digest},
        params=[(name, value) for name, value in request.query if name != "X-Amz-Signature"],
    )
    signer.headers_to_sign = lambda _: headers
    text = signer.string_to_sign(received, signer.canonical_request(received))
    wanted = signer.signature(text, received)
    if not hmac.compare_digest(wanted, signature.value):
        text = "The request signature we calculated does not match the signature you provided."
        raise RefusedError(Reason.BAD_SIGNATURE, text)
    _check_time(signature)


def check_digest(signature: Signature, digest: str) -> None:
    """Check that a body is the signed one, unless the request leaves it unsigned.

    Args:
        signature: The verified signature.
        digest: SHA-256 of the body, in hexadecimal.

    Raises:
        RefusedError: The body differs, or the claimed form is not supported.
    """
    if signature.payload == UNSIGNED:
        return
    if not _DIGEST.fullmatch(signature.payload):
        text = f"x-amz-content-sha256 must be the body's SHA-256 or {UNSIGNED}."
        raise RefusedError(Reason.BAD_DIGEST, text)
    if not hmac.compare_digest(signature.payload, digest):
        text = "The provided x-amz-content-sha256 header does not match what was computed."
        raise RefusedError(Reason.BAD_DIGEST, text)


class _Headers(dict[str, list[str]]):
    """Signed headers, with the one method of `Message` that botocore calls."""

    def get_all(self, name: str) -> list[str]:
        """Return the values of a header."""
        return self[name]


def _signer(signature: Signature, secret: str, **request: Any) -> tuple[Any, Any]:
    """Return the signer of a service's clients, and a request for it to sign."""
    # Imported here, because a process that starts the server needs only the access key.
    from botocore.auth import S3SigV4Auth, SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    kind = S3SigV4Auth if signature.service == "s3" else SigV4Auth
    credentials = Credentials(signature.key_id, secret)
    made = AWSRequest(**request)
    made.context["timestamp"] = signature.moment
    return kind(credentials, signature.service, signature.region), made


def _only(request: Request, name: str) -> str | None:
    """Return a header that must not be repeated."""
    values = request.fields.get(name, [])
    if len(values) > 1:
        raise _incomplete(f"The header {name} stands there {len(values)} times.")
    return values[0] if values else None


def _check_time(signature: Signature) -> None:
    age_s = time.time() - _seconds(signature.moment)
    if signature.lifetime_s is not None:
        if not -MAX_SKEW_S <= age_s <= signature.lifetime_s:
            raise RefusedError(Reason.DENIED, "Request has expired")
    elif abs(age_s) > MAX_SKEW_S:
        text = f"The request was signed at {signature.moment}, by a clock that is not this one's."
        raise RefusedError(Reason.SKEWED, text)


@functools.lru_cache(maxsize=256)  # each client's requests of a second have the same
def _seconds(moment: str) -> int:
    try:
        return timegm(time.strptime(moment, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise _incomplete(f"{moment} is no time.") from None


def _incomplete(text: str) -> RefusedError:
    return RefusedError(Reason.INCOMPLETE, text)
