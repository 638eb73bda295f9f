"""Faults of requests to AWS: which request has which fault, and the services' error responses."""

from __future__ import annotations

import fnmatch
import json
import random
import re
import threading
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Fault: TypeAlias = "str | float | tuple[int, str | dict[str, object]]"
"""The fault of a request.

Error responses in the service's own format; the request is not forwarded:

* ``"throttled"``: too many requests; Batch: 429 TooManyRequestsException, S3: 503 SlowDown
* ``"error"``: 500, ServerException, InternalError
* ``"slow down"``: 503
* ``"expired"``: expired credentials; S3: 400 ExpiredToken, Batch: 403 ExpiredTokenException
* ``"denied"``: 403 AccessDenied
* ``"redirected"``, ``"malformed"``: the bucket is in `ELSEWHERE`; S3: 301 PermanentRedirect or
  400 AuthorizationHeaderMalformed
* ``"kept"``: 200 for a bulk deletion in S3, with SlowDown for the first key; deletes nothing
* ``"page"``: 200 and an HTML page, like a captive portal's login page
* ``(503, "SlowDown")``: this status and code; ``(200, {...})``: this JSON document

Faults of the connection:

* ``"reset"``: not forwarded, and reset
* ``"lost"``: forwarded, and closed without a response
* ``"truncated"``: forwarded, and closed in the middle of the response
* ``"hang"``: not forwarded, without a response
* ``"held"``: forwarded when `Proxy.release` is called, even if the client has given up

Faults of the response:

* ``"empty"``: the lists in Batch's response are empty, because Batch's lists lag behind
* ``"slow"``, or a number of seconds: forwarded with this delay
"""

FAULTS = (
    "throttled",
    "error",
    "slow down",
    "expired",
    "slow",
    "reset",
    "lost",
    "truncated",
)
"""Transient faults that occur in practice."""

SLOW_S = 2.0
ELSEWHERE = "eu-west-1"

_SCOPE = re.compile(r"Credential=[^/,\s]+/[^/,\s]+/([^/,\s]+)/([^/,\s]+)/aws4_request")
_KIND = re.compile(r"/v1/(?:shared/[0-9a-f]+/|(?!packages/|runtime/)[^/]+/)?([a-z]+)")

# Status and code for S3, Batch, IAM and STS (AWS's query protocol), and other services (JSON).
_WORDS = {
    "throttled": (
        (503, "SlowDown"),
        (429, "TooManyRequestsException"),
        (400, "Throttling"),
        (400, "ThrottlingException"),
    ),
    "error": (
        (500, "InternalError"),
        (500, "ServerException"),
        (500, "InternalFailure"),
        (500, "InternalFailure"),
    ),
    "slow down": (
        (503, "SlowDown"),
        (503, "ServiceUnavailable"),
        (503, "ServiceUnavailable"),
        (503, "ServiceUnavailable"),
    ),
    "expired": (
        (400, "ExpiredToken"),
        (403, "ExpiredTokenException"),
        (403, "ExpiredToken"),
        (400, "ExpiredTokenException"),
    ),
    "denied": (
        (403, "AccessDenied"),
        (403, "AccessDeniedException"),
        (403, "AccessDenied"),
        (400, "AccessDeniedException"),
    ),
}
_ELSEWHERE_WORDS: dict[Fault, tuple[int, str]] = {
    "redirected": (301, "PermanentRedirect"),
    "malformed": (400, "AuthorizationHeaderMalformed"),
}
_SAID = {
    "throttled": "Too Many Requests",
    "slow down": "Please reduce your request rate.",
    "expired": "The security token included in the request is expired",
}


@dataclass(frozen=True)
class Request:
    """A request to AWS.

    Attributes:
        operation: Service and operation in lower case, such as ``batch submitjob`` or
            ``logs getlogevents``. For S3, the method and the part of the key with the kind of
            object, such as ``s3 PUT bundles``, ``s3 LIST outcomes``, and ``s3 DELETE`` for bulk
            deletions. ``credentials GET`` for unsigned requests.
        method: HTTP method.
        path: Path with the query.
        region: Region in the signature.
        access_key_id: Access key in the signature.
        amz: Signed headers that begin with ``x-amz-``, in lower case.
    """

    operation: str
    method: str
    path: str
    region: str = ""
    access_key_id: str = ""
    amz: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def service(self) -> str:
        """Service in the signature, such as ``batch``."""
        return self.operation.partition(" ")[0]

    @classmethod
    def read(cls, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Request:
        """Parse a request.

        Args:
            method: HTTP method.
            path: Path with the query.
            headers: Headers with names in any case.
            body: May be empty for S3.
        """
        authorization = headers.get("Authorization", "")
        found = _SCOPE.search(authorization)
        if found is None:
            return cls(f"credentials {method}", method, path)
        region, service = found.groups()
        if service == "s3":
            name = _s3_operation(method, path)
        elif service == "batch":
            name = urllib.parse.urlsplit(path).path.rpartition("/")[2]
        elif "X-Amz-Target" in headers:
            name = headers["X-Amz-Target"].rpartition(".")[2].lower()
        else:
            name = dict(urllib.parse.parse_qsl(body.decode("latin-1"))).get("Action", method)
            name = name.lower()
        key = authorization.partition("Credential=")[2].partition("/")[0]
        amz = {k.lower(): v for k, v in headers.items() if k.lower().startswith("x-amz-")}
        return cls(f"{service} {name}", method, path, region, key, amz)


def _s3_operation(method: str, path: str) -> str:
    url = urllib.parse.urlsplit(path)
    query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    if "delete" in query:
        return "DELETE"
    kind = _KIND.search(f"{url.path}/{query.get('prefix', '')}")
    return f"{'LIST' if 'prefix' in query else method} {kind[1] if kind else ''}".strip()


class Faults:
    """Decides the fault of each request. Operations may be patterns, such as ``"s3 *"``.

    Thread-safe.

    Args:
        chances: Operation to the probability of each fault; the sum is from 0 to 1. The first
            matching pattern counts.
        seed: With the same seed, the n-th request of an operation always has the same fault,
            independent of other requests.

    Attributes:
        scripted: Operation to the faults of its next requests, in order; an empty string means no
            fault.
        lasting: Operation to the fault of every request.
        injected: Number of faults by operation and fault, such as ``batch submitjob lost``.
    """

    def __init__(
        self, chances: Mapping[str, Mapping[Fault, float]] | None = None, seed: object = 0
    ) -> None:
        self.scripted: defaultdict[str, list[Fault]] = defaultdict(list)
        self.lasting: dict[str, Fault] = {}
        self.injected: Counter[str] = Counter()
        self.chances: dict[str, Mapping[Fault, float]] = dict(chances or {})
        self._seed = seed
        self._dice: dict[str, random.Random] = {}
        self._lock = threading.Lock()

    def meet(self, operation: str, given: Fault = "") -> Fault:
        """Return and count the fault of a request, or an empty string.

        Args:
            operation: See `Request.operation`.
            given: A fault that is already decided.
        """
        with self._lock:
            fault = given or self._decide(operation)
            if fault:
                said = fault if isinstance(fault, (str, float)) else f"{fault[0]} {fault[1]}"
                self.injected[f"{operation} {said}"] += 1
            return fault

    def _decide(self, operation: str) -> Fault:
        for pattern, faults in self.scripted.items():
            if faults and fnmatch.fnmatchcase(operation, pattern):
                return faults.pop(0)
        for pattern, fault in self.lasting.items():
            if fnmatch.fnmatchcase(operation, pattern):
                return fault
        for pattern, chances in self.chances.items():
            if fnmatch.fnmatchcase(operation, pattern):
                return self._roll(operation, chances)
        return ""

    def _roll(self, operation: str, chances: Mapping[Fault, float]) -> Fault:
        if operation not in self._dice:
            self._dice[operation] = random.Random(f"{self._seed} {operation}")
        rolled = self._dice[operation].random()
        for fault, chance in chances.items():
            rolled -= chance
            if rolled < 0:
                return fault
        return ""


def _kept(body: bytes) -> tuple[dict[str, str], bytes]:
    key = body.decode().partition("<Key>")[2].partition("</Key>")[0]
    why = f"<Key>{key}</Key><Code>SlowDown</Code><Message>Spoilt.</Message>"
    xml = f"<DeleteResult><Error>{why}</Error></DeleteResult>"
    return {"Content-Type": "application/xml"}, xml.encode()


def _page(_: bytes) -> tuple[dict[str, str], bytes]:
    return {"Content-Type": "text/html"}, b"<html><body>Please log in.</body></html>"


_PAGES: dict[Fault, Callable[[bytes], tuple[dict[str, str], bytes]]] = {
    "kept": _kept,
    "page": _page,
}


def refusal(
    service: str, fault: Fault, body: bytes = b""
) -> tuple[int, dict[str, str], bytes] | None:
    """Return status, headers and body of a service's response; None for other faults.

    Args:
        service: Service in the request's signature.
        fault: Fault of the request.
        body: Body of a bulk deletion request.
    """
    protocol = {"s3": 0, "credentials": 0, "batch": 1, "iam": 2, "sts": 2}.get(service, 3)
    text = "Spoilt."
    if isinstance(fault, str) and fault in _PAGES:
        return 200, *_PAGES[fault](body)
    if isinstance(fault, tuple):
        status, said = fault
        if not isinstance(said, str):
            return status, {"Content-Type": "application/json"}, json.dumps(said).encode()
        code = said
    elif fault in _ELSEWHERE_WORDS:
        status, code = _ELSEWHERE_WORDS[fault]
        xml = f"<Error><Code>{code}</Code><Message>Elsewhere.</Message></Error>"
        return status, {"x-amz-bucket-region": ELSEWHERE}, xml.encode()
    elif isinstance(fault, str) and fault in _WORDS:
        status, code = _WORDS[fault][protocol]
        text = _SAID.get(fault, text)
    else:
        return None
    if protocol in (1, 3):
        headers = {"Content-Type": "application/json", "x-amzn-ErrorType": code}
        return status, headers, json.dumps({"__type": code, "message": text}).encode()
    xml = f"<Error><Code>{code}</Code><Message>{text}</Message></Error>"
    if protocol == 2:
        xml = f"<ErrorResponse>{xml}</ErrorResponse>"
    return status, {"Content-Type": "application/xml"}, xml.encode()
