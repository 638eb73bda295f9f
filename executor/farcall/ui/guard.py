"""Access control: only the web UI's own page with the token may send requests.

The server acts with the AWS credentials of the user who started it, and every program on the
machine and every website in a browser there can send it requests. For this reason, paths below
``/api`` need the token of this start, which is printed only to that user. The guard rejects host
names other than the server's own, because a website may let its own name resolve to this machine
(DNS rebinding), and rejects requests that the browser marks as sent by other sites. There are no
cookies and no CORS headers, so nothing that a browser adds automatically grants access.

Sources:
    https://fetch.spec.whatwg.org/#origin-header
    https://www.w3.org/TR/fetch-metadata/
    https://www.w3.org/TR/CSP3/
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1 << 20
"""Maximum size of a request's body in bytes: enough for the IDs of 10,000 array tasks."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class Guard:
    """Middleware that rejects untrusted requests and sets security headers."""

    def __init__(self, app: ASGIApp, *, token: str, host: str, port: int, read_only: bool) -> None:
        self._app = app
        self._token = token.encode()
        self._url = url(host, port)
        # 0.0.0.0 is not included, because browsers let websites send requests to it.
        own = self._url.removeprefix("http://").rpartition(":")[0].lower()
        self._hosts = {f"{name}:{port}" for name in (*_LOOPBACK, own)}
        if port == 80:  # browsers omit the default port
            self._hosts |= {name.rpartition(":")[0] for name in self._hosts}
        self._read_only = read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request or forward it to the app."""
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                is_static = scope["path"].startswith("/static/")
                headers["Cache-Control"] = "no-cache" if is_static else "no-store"
            await send(message)

        refused = self._refuse(scope)
        await (refused or self._app)(scope, receive, guarded)

    def _refuse(self, scope: Scope) -> Json | None:
        """Return the response for a rejected request; None to forward it."""
        headers = Headers(scope=scope)
        text = self._distrust(scope, headers)
        if text:
            return answer(403, text)
        is_api = scope["path"] == "/api" or scope["path"].startswith("/api/")
        if is_api and not self._knows_token(headers):
            # The response does not reveal what is wrong with the token.
            response = answer(
                401,
                "the token is missing or wrong; use the URL that farcall ui printed when it "
                "started",
            )
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if scope["method"] in ("GET", "HEAD"):
            return None
        return self._refuse_change(headers)

    def _distrust(self, scope: Scope, headers: Headers) -> str:
        """Return why a request may come from another site; empty if it does not."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return f"this server does not accept this host name and port; open {self._url}"
        origins = headers.getlist("origin")
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            return "requests from other origins are rejected"
        site = headers.get("sec-fetch-site", "same-origin")
        if site in ("same-origin", "none") or _is_visit(scope, headers):
            return ""
        return "requests from other sites are rejected"

    def _knows_token(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.encode(errors="surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, self._token)

    def _refuse_change(self, headers: Headers) -> Json | None:
        if self._read_only:
            return answer(
                403,
                "this web UI was started with --read-only; it cannot cancel or retry jobs",
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return answer(415, "the content type must be application/json")
        size = headers.get("content-length", "")
        if not (size.isascii() and size.isdecimal()):
            return answer(411, "the request must specify its length (Content-Length)")
        if int(size[:20]) > MOST_BYTES:
            return answer(413, f"the request is {size[:20]} bytes long; the limit is {MOST_BYTES}")
        return None


def as_json(data: Any) -> bytes:
    """Return JSON; lone surrogates, which UTF-8 cannot encode, are escaped."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


class Json(Response):
    """JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as bytes."""
        return as_json(content)


def answer(status: int, text: str) -> Json:
    """Return an error response."""
    return Json({"error": text}, status_code=status)


def url(host: str, port: int) -> str:
    """Return the URL at which a browser on this machine reaches a server."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104
    name = everywhere.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_visit(scope: Scope, headers: Headers) -> bool:
    """Return whether a request follows a link to the page, which contains no data."""
    return (
        scope["method"] == "GET"
        and scope["path"] == "/"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
