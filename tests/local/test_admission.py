"""Requests that the local AWS emulator rejects: wrong keys, web pages, wrong hosts, broken HTTP.

Starts the emulator with and without enforced permissions, because requests must arrive over HTTP.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import socket
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import farcall_local
from tests import emulators
from tests.support.clients import client
from tests.support.foreign import INTRUDER
from tests.support.patience import PATIENCE_S, until
from tests.support.signing import session, signed

#: A request to each service and to the emulator itself: method, path, body and headers.
CALLS = {
    "batch": ("POST", "/v1/registerjobdefinition", json.dumps(INTRUDER), {}),
    "s3": ("PUT", "/farcall-local/intruder", "x", {}),
    "logs": (
        "POST",
        "/",
        json.dumps({"logGroupName": "farcall-local", "retentionInDays": 1}),
        {"X-Amz-Target": "Logs_20140328.PutRetentionPolicy"},
    ),
    "iam": (
        "POST",
        "/",
        "Action=UpdateRoleDescription&Version=2010-05-08&RoleName=farcall-local-job&Description=x",
        {"Content-Type": "application/x-www-form-urlencoded"},
    ),
    "sts": (
        "POST",
        "/",
        "Action=GetCallerIdentity&Version=2011-06-15",
        {"Content-Type": "application/x-www-form-urlencoded"},
    ),
    "farcall": ("POST", "/_farcall/configure", json.dumps({"api_rate": None}), {}),
}
#: Paths that no request can access: moto's own API and an instance's metadata.
CLOSED = (
    "/moto-api/reset",
    "/moto-api/data.json",
    "/latest/meta-data/",
    "/latest/api/token",
    "/favicon.ico",
)
FOREIGN = {
    "another origin": {"Origin": "https://evil.example"},
    "an opaque origin": {"Origin": "null"},
    "a page of its own": {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"},
    "another site": {"Sec-Fetch-Site": "cross-site"},
    "another port": {"Sec-Fetch-Site": "same-site"},
    "another name": {"Host": "evil.example"},
    "another name with the port": {"Host": "127.0.0.1.evil.example:80"},
}


@pytest.fixture(scope="module", params=[False, True], ids=["", "enforced"])
def aws(request):
    with emulators.start(cpus=1, enforce_iam=request.param) as started:
        yield started


def ask(aws, method, path, body="", headers=None):
    """Send a request unchanged; return status, headers and body of the response."""
    connection = http.client.HTTPConnection(urlsplit(aws.endpoint_url).netloc, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body.encode(), dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def call(aws, service, keys=None, more=None):
    """Send the request of a service, signed if there are keys."""
    method, path, body, headers = CALLS[service]
    if keys is not None:
        url = f"{aws.endpoint_url}{path}"
        headers = signed(service, method, url, keys, body.encode(), headers)
    return ask(aws, method, path, body, {**headers, **(more or {})})


def is_rejected(answer):
    status, headers, _ = answer
    assert not [name for name in headers if name.lower().startswith("access-control-")]
    return status in (400, 401, 403)


@pytest.mark.parametrize("service", CALLS)
def test_unsigned_request_is_rejected(aws, service):
    assert is_rejected(call(aws, service))


@pytest.mark.parametrize("service", CALLS)
def test_signed_request_is_accepted(aws, service):
    status, headers, body = call(aws, service, aws.environment)
    assert status == 200, body
    assert not [name for name in headers if name.lower().startswith("access-control-")]


@pytest.mark.parametrize("service", CALLS)
@pytest.mark.parametrize(
    "wrong",
    [
        {"AWS_SECRET_ACCESS_KEY": "guessed"},
        {"AWS_ACCESS_KEY_ID": "farcall-local", "AWS_SECRET_ACCESS_KEY": "farcall-local"},
        {"AWS_SESSION_TOKEN": "guessed"},
    ],
    ids=lambda wrong: " ".join(wrong),
)
def test_wrong_key_is_rejected(aws, service, wrong):
    assert is_rejected(call(aws, service, {**aws.environment, **wrong}))


@pytest.mark.parametrize("service", CALLS)
def test_forged_signature_is_rejected(aws, service):
    key = aws.environment["AWS_ACCESS_KEY_ID"]
    now = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{key}/{now[:8]}/us-east-1/{service}/aws4_request"
    for rest in ("", f", SignedHeaders=host;x-amz-date, Signature={'0' * 64}"):
        headers = {
            "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}{rest}",
            "X-Amz-Date": now,
            "X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD",
        }
        assert is_rejected(call(aws, service, more=headers))


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("service", CALLS)
def test_web_page_request_is_rejected(aws, service, foreign):
    """Even if it is signed with the right key."""
    more = dict(foreign)
    keys = aws.environment
    if "Host" in more:  # the Host header is signed, too
        method, path, body, headers = CALLS[service]
        name = more["Host"]
        headers = signed(service, method, f"http://{name}{path}", keys, body.encode(), headers)
        answer = ask(aws, method, path, body, {**headers, "Host": name})
    else:
        answer = call(aws, service, keys, more)
    assert is_rejected(answer)


def test_presigned_url_opens_in_browser(aws):
    """A URL in the address bar is not a web page's request; its signature is checked."""
    s3 = client("s3", aws.environment, config=Config(signature_version="s3v4"))
    s3.put_object(Bucket="farcall-local", Key="a/ü b", Body=b"data")
    asked = {"Bucket": "farcall-local", "Key": "a/ü b"}
    url = s3.generate_presigned_url("get_object", asked, ExpiresIn=60)
    request = urllib.request.Request(url, headers={"Sec-Fetch-Site": "none"})
    assert urllib.request.urlopen(request).read() == b"data"
    for changed in (url.replace("b?", "c?"), f"{url}&versionId=null", url.replace("=60", "=61")):
        assert changed != url
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(changed)
    old = s3.generate_presigned_url("get_object", asked, ExpiresIn=0)
    moment = old.partition("X-Amz-Date=")[2][:15]
    until(lambda: dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S") > moment)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(old)


@pytest.mark.parametrize("service", CALLS)
def test_signature_covers_whole_request(aws, service):
    """The signature of an observed request is refused for any other request."""
    method, path, body, headers = CALLS[service]
    url = f"{aws.endpoint_url}{path}"
    headers = signed(service, method, url, aws.environment, body.encode(), headers)
    assert ask(aws, method, path, body, headers)[0] == 200
    changes = [
        (method, path, body + " ", headers),
        ("DELETE", path, body, headers),
        (method, f"{path}?x=1", body, headers),
        (method, f"{path}2", body, headers),
        (method, path, body, {**headers, "X-Amz-Security-Token": "x"}),
        (method, path, body, {**headers, "X-Amz-Acl": "public-read"}),
        (method, path, body, {**headers, "X-Amz-Date": "20000101T000000Z"}),
    ]
    for changed in changes:
        assert is_rejected(ask(aws, *changed)), changed


@pytest.mark.parametrize("target", ["{}#x", "http://127.0.0.1{}", "http:/{}", "[{}"])
def test_target_without_path_is_rejected(aws, target):
    method, path, body, headers = CALLS["batch"]
    headers = signed("batch", method, f"{aws.endpoint_url}{path}", aws.environment, body.encode())
    assert is_rejected(ask(aws, method, target.format(path), body, headers))


@pytest.mark.parametrize("service", ["s3", "batch", "sts"])
def test_old_signature_is_rejected(aws, service, monkeypatch):
    past = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(minutes=16)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda **_: past)
    status, _, body = call(aws, service, aws.environment)
    assert status == 403
    assert b"clock" in body


@pytest.mark.parametrize("path", CLOSED)
def test_moto_api_is_closed(aws, path):
    for service in ("farcall", "moto_api", "motoapi", "batch"):  # for S3, it is a bucket's name
        for method in ("GET", "POST", "PUT"):
            assert is_rejected(ask(aws, method, path))
            url = f"{aws.endpoint_url}{path}"
            headers = signed(service, method, url, aws.environment)
            assert is_rejected(ask(aws, method, path, "", headers)), (service, method)
    assert call(aws, "s3", aws.environment)[0] == 200  # the bucket still exists


def test_role_keys_need_secret_and_token(aws):
    found = session(aws.environment, "farcall-local-job")
    keys = {
        "AWS_ACCESS_KEY_ID": found["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": found["SecretAccessKey"],
        "AWS_SESSION_TOKEN": found["Token"],
    }
    assert call(aws, "sts", keys)[0] == 200
    without = {name: value for name, value in keys.items() if name != "AWS_SESSION_TOKEN"}
    root = aws.environment["AWS_SECRET_ACCESS_KEY"]
    for wrong in (without, {**keys, "AWS_SESSION_TOKEN": "x"}):
        assert is_rejected(call(aws, "sts", wrong))
    assert is_rejected(call(aws, "sts", {**keys, "AWS_SECRET_ACCESS_KEY": root}))
    # The server's own files belong to the user who started it.
    assert is_rejected(call(aws, "farcall", keys))


def test_each_start_has_own_key(aws):
    with farcall_local.start(cpus=1) as other:
        assert is_rejected(call(other, "sts", aws.environment))
        assert is_rejected(call(aws, "sts", other.environment))
        assert call(other, "sts", other.environment)[0] == 200


def test_rejected_upload_gets_response(aws):
    """The sender receives a response instead of a connection reset."""
    for more in ({}, {"Origin": "https://evil.example"}):
        answer = ask(aws, "PUT", "/farcall-local/large", "x" * (8 * 2**20), more)
        assert is_rejected(answer)
    wrong = {**aws.environment, "AWS_SECRET_ACCESS_KEY": "no"}
    s3 = client("s3", wrong, config=Config(retries={"total_max_attempts": 1}))
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        s3.put_object(Bucket="farcall-local", Key="large", Body=b"x" * (8 * 2**20))


def test_malformed_request_is_rejected(aws):
    """The next request on another connection is accepted."""
    for headers in (
        {"Authorization": "AWS4-HMAC-SHA256 Credential=a/b/c/d"},
        {"Authorization": "Bearer x"},
        {"Authorization": "AWS4-HMAC-SHA256 " + "Credential=" * 1000},
        {"Content-Length": "-1"},
        {"Content-Length": "many"},
    ):
        assert is_rejected(ask(aws, "POST", "/v1/describejobs", "", headers))
    assert is_rejected(ask(aws, "GET", "/?X-Amz-Algorithm=AWS4-HMAC-SHA256"))
    with pytest.raises(ClientError, match="s3v4"):
        raise_for(ask(aws, "GET", "/farcall-local/x?AWSAccessKeyId=a&Signature=b&Expires=1"))
    assert call(aws, "sts", aws.environment)[0] == 200


def raise_for(answer):
    status, _, body = answer
    raise ClientError({"Error": {"Code": str(status), "Message": body.decode()}}, "GetObject")


BROKEN = {
    "chunks": b"GET /\x1b]0;pwned\x07 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "chunks cut off": b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab\r\n",
    "an address": b"GET http://[\x1b]0;pwned\x07 HTTP/1.1\r\n\r\n",
    "a length": b"GET / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a line": b"\x1b]0;pwned\x07\r\n\r\n",
    "a method": b"\x1b]0;pwned\x07 / HTTP/1.1\r\n\r\n",
    "a version": b"GET / HTTP/\x1b]0;pwned\x07\r\n\r\n",
}


def test_malformed_requests_print_nothing(capfd):
    with farcall_local.start(cpus=1) as aws:
        address = urlsplit(aws.endpoint_url)
        for sent in BROKEN.values():
            with socket.create_connection((address.hostname, address.port)) as connection:
                connection.settimeout(PATIENCE_S)
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
    assert ("", "") == capfd.readouterr()
