"""Requests that the web UI's server rejects: token, Host, Origin, content type and values.

Starts the web UI, because the checks are made before a request reaches the app.
"""

import asyncio
import http.client
import json
import signal
import socket
import subprocess
from urllib.parse import urlsplit

import pytest

from farcall.ui.guard import MOST_BYTES
from tests.support.commands import FARCALL
from tests.support.patience import PATIENCE_S
from tests.ui import serving

JOB = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def ask(served):
    """Return a function that sends one request and returns status, headers and body."""
    where = urlsplit(served.url).netloc

    def ask(method, path, body=None, *, token=served.token, host=where, **headers):
        connection = http.client.HTTPConnection(where, timeout=PATIENCE_S)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for value in [host] if isinstance(host, str) else host:
            connection.putheader("Host", value)
        if token is not None:
            connection.putheader("Authorization", f"Bearer {token}")
        if body is not None:
            headers = {"content_type": "application/json", "content_length": len(body), **headers}
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), str(value))
        connection.endheaders()
        if body:
            connection.send(body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.headers, content

    ask.where = where
    return ask


def test_missing_token_returns_401(ask, served):
    said = set()
    for path in ("/api/about", "/api/events", f"/api/jobs/{JOB}", "/api/nothing", "/api"):
        for token in (None, "", "wrong", served.token[:-1], f"{served.token}x", "é"):
            status, headers, body = ask("GET", path, token=token)
            assert (401, "Bearer") == (status, headers["WWW-Authenticate"])
            said.add(body)
    (body,) = said
    assert served.token not in body.decode()
    assert "token" in json.loads(body)["error"]
    assert 401 == ask("POST", "/api/cancel", b"{}", token=None)[0]
    # Neither a query parameter nor a cookie is accepted as token.
    assert 401 == ask("GET", f"/api/about?token={served.token}", token=None)[0]
    assert 401 == ask("GET", "/api/about", token=None, cookie=f"token={served.token}")[0]
    assert 200 == ask("GET", "/api/about")[0]


def test_other_hosts_are_rejected(ask):
    port = ask.where.rpartition(":")[2]
    for host in (f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}", f"127.0.0.1:{port}"):
        assert 200 == ask("GET", "/api/about", host=host)[0]
    others = (
        "127.0.0.1",
        "127.0.0.1:1",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        f"evil.example@127.0.0.1:{port}",
        f"0.0.0.0:{port}",
        "",
        (),
        (ask.where, f"evil.example:{port}"),
    )
    for host in others:
        for path in ("/api/about", "/"):
            status, _, body = ask("GET", path, host=host)
            # The HTTP server itself rejects two Host headers or none.
            assert (403 if isinstance(host, str) else 400) == status, host
            assert b"us-east-1" not in body


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "https://{}", "http://{}.evil"])
def test_other_origins_are_rejected(ask, origin):
    headers = {"origin": origin.format(ask.where)}
    assert 403 == ask("GET", "/api/about", **headers)[0]
    assert 403 == ask("POST", "/api/cancel", b'{"jobs": []}', **headers)[0]


def test_cross_site_requests_are_rejected(ask):
    for site in ("cross-site", "same-site", "anything"):
        for path in ("/api/about", "/static/index.html", "/"):
            assert 403 == ask("GET", path, sec_fetch_site=site)[0]
        assert 403 == ask("POST", "/api/cancel", b"{}", sec_fetch_site=site)[0]
    own = {"origin": f"http://{ask.where}", "sec_fetch_site": "same-origin"}
    assert 200 == ask("GET", "/api/about", **own)[0]
    # Another site may link to the web UI, which shows nothing without the token.
    visit = {
        "sec_fetch_site": "cross-site",
        "sec_fetch_mode": "navigate",
        "sec_fetch_dest": "document",
    }
    assert 200 == ask("GET", "/", token=None, **visit)[0]
    assert 403 == ask("GET", "/", token=None, **{**visit, "sec_fetch_dest": "iframe"})[0]
    assert 403 == ask("GET", "/api/about", **visit)[0]


def test_responses_have_security_headers(ask):
    for path in ("/", "/static/index.html", "/api/about", "/api/nothing", "/nothing"):
        _, headers, _ = ask("GET", path)
        policy = headers["Content-Security-Policy"]
        for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
            assert part in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "nosniff" == headers["X-Content-Type-Options"]
        assert "DENY" == headers["X-Frame-Options"]
        assert "no-referrer" == headers["Referrer-Policy"]
        assert "same-origin" == headers["Cross-Origin-Opener-Policy"]
        assert "same-origin" == headers["Cross-Origin-Resource-Policy"]
        is_file = path.startswith("/static")
        assert ("no-cache" if is_file else "no-store") == headers["Cache-Control"]
        told = {name.lower() for name in headers}
        assert not {"set-cookie", "server"} & told
        assert not [name for name in told if name.startswith("access-control")]
    _, headers, _ = ask("OPTIONS", "/api/cancel", origin="http://evil.example")
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_only_own_files_are_served(ask):
    paths = (
        "/static/../guard.py",
        "/static/%2e%2e/guard.py",
        "/static/..%2fguard.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..\\guard.py",
        "/static/%00",
        "/static/",
        "/../../etc/passwd",
    )
    for path in paths:
        status, headers, body = ask("GET", path)
        assert (404, "application/json") == (status, headers["Content-Type"]), path
        assert {"error"} == json.loads(body).keys()


def test_changes_require_json_post(ask):
    asked = b'{"jobs": ["' + JOB.encode() + b'"]}'
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH"):
        assert 405 == ask(method, "/api/cancel", asked)[0]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert 415 == ask("POST", "/api/cancel", asked, content_type=kind)[0]
    assert 413 == ask("POST", "/api/cancel", b"", content_length=MOST_BYTES + 1)[0]
    assert 413 == ask("POST", "/api/cancel", b"", content_length="9" * 19)[0]
    chunked = {"content_type": "application/json", "transfer_encoding": "chunked"}
    assert 411 == ask("POST", "/api/cancel", **chunked)[0]
    kind = "application/json; charset=utf-8"
    status, _, body = ask("POST", "/api/cancel", asked, content_type=kind)
    assert (200, "unknown") == (status, json.loads(body)["results"][0]["outcome"])


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        {},
        {"jobs": []},
        {"jobs": JOB},
        {"jobs": [7]},
        {"jobs": ["../" + JOB]},
        {"jobs": [JOB + ":0:0"]},
        {"jobs": [JOB + "\n"]},
        {"jobs": [JOB] * 10_001},
        {"jobs": [JOB], "run": "x"},
        {"jobs": [JOB], "reason": 7},
        {"jobs": [JOB], "reason": "x" * 501},
        {"run": ""},
        {"run": ["x"]},
        {"run": "x", "workflow": 7},
    ],
)
def test_invalid_cancel_request_returns_400(ask, asked):
    body = (asked if isinstance(asked, str) else json.dumps(asked)).encode()
    status, _, said = ask("POST", "/api/cancel", body)
    assert 400 == status
    assert json.loads(said)["error"]


def test_invalid_paths_and_queries_are_rejected(ask):
    for path in (
        "/api/jobs/x",
        f"/api/jobs/{JOB}:123456",
        f"/api/jobs/{JOB}%2f..",
        f"/api/jobs/{JOB}/logs?stream=all",
        f"/api/jobs/{JOB}/logs?tail=0",
        f"/api/jobs/{JOB}/logs?attempt=11",
        "/api/events?since=yesterday",
        f"/api/events?since={9**20}d",
    ):
        status, _, body = ask("GET", path)
        assert status in (400, 404), path
        assert json.loads(body)["error"]
    for path in (f"/api/jobs/{JOB}", f"/api/jobs/{JOB}/logs", f"/api/jobs/{JOB}/children/events"):
        status, _, body = ask("GET", path)
        assert (404, True) == (status, JOB in json.loads(body)["error"])


def test_port_in_use_is_named(embedded, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environment = {**embedded.environment, "FARCALL_UI_URL": f"http://127.0.0.1:{port}"}
        done = run({**environment, "HOME": str(tmp_path)})
    assert (1, "") == (done.returncode, done.stdout)
    assert f"127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_public_address_logs_warning(embedded, tmp_path):
    options = "--host", "0.0.0.0", "--port", "0"
    with subprocess.Popen(
        [FARCALL, "ui", *options],
        env={**embedded.environment, "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not (line := process.stdout.readline()).strip().startswith("http://"):
            assert line
        where = urlsplit(line.strip()).netloc
        connection = http.client.HTTPConnection(where, timeout=PATIENCE_S)
        connection.request("GET", "/api/about")
        assert 401 == connection.getresponse().status
        connection.close()
        process.send_signal(signal.SIGTERM)
        said, complaints = process.communicate(timeout=PATIENCE_S)
    assert 0 == process.returncode
    assert "unencrypted" in complaints
    assert "The web UI has stopped" in said


def run(environment, *options):
    return subprocess.run(
        [FARCALL, "ui", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


async def test_server_stops_while_browsers_listen(embedded, tmp_path):
    import aiohttp

    environment = {**embedded.environment, "HOME": str(tmp_path)}
    with serving.page(environment) as page:
        async with aiohttp.ClientSession(page.url, headers=page.headers) as session:
            async with serving.events(session, "/api/events") as events:
                while (await anext(events))[1].get("loading", True):
                    pass
                page.process.send_signal(signal.SIGTERM)
                async for _ in events:
                    pass  # until the stream ends regularly
            await asyncio.to_thread(page.process.wait, 60)
            rest = page.process.stdout.read()
    assert "The web UI has stopped. Jobs continue." in rest
