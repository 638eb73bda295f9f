"""Translation of aiobotocore's connection errors, with real sockets."""

import asyncio
import contextlib
import socket
import struct

import botocore.exceptions
import botocore.parsers
import pytest

from farcall import Settings
from farcall.aws import clients, error_translation
from farcall.aws.clients import Aws
from farcall.model.errors import ServiceError
from tests.unit.fakes import refusal

JOB = {"jobName": "name", "jobQueue": "queue", "jobDefinition": "definition"}


@contextlib.asynccontextmanager
async def server(answer):
    """Serve on a local port; yield its URL."""
    running = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with running:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"


async def failed(url, monkeypatch, **parameters):
    """Return the error that SubmitJob raises."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "guest")
    access = await Aws.open(Settings(s3_bucket_name="bucket", endpoint_url=url))
    try:
        with pytest.raises(ServiceError) as caught:
            await clients.call(access.batch, "submit_job", **(parameters or JOB))
    finally:
        await access.close()
    assert caught.value.operation == "SubmitJob"
    return caught.value


@pytest.mark.parametrize("by", ["a reset", "an end", "half an answer"])
async def test_broken_connection_may_have_sent_request(by, monkeypatch):
    asked = []

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"/v1/submitjob"))
        if by == "a reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if by == "half an answer":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            await writer.drain()
        writer.close()

    async with server(answer) as url:
        error = await failed(url, monkeypatch)
    assert error.sent
    assert error_translation.may_pass(error)
    assert "check the server at this URL" in str(error)
    assert len(asked) == 1  # the client must not send it again


async def test_refused_connection_sent_nothing(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = await failed(f"http://127.0.0.1:{port}", monkeypatch)
    assert not error.sent
    assert error_translation.may_pass(error)
    text = str(error)
    assert f"cannot connect to http://127.0.0.1:{port} (from an argument endpoint_url" in text
    assert "Connection refused; check the server at this URL; if it was a local" in text
    assert str(error_translation.explain_tries(error, 3, 10)) == f"{text}; tried 3 times in 10 s"


async def test_unresolvable_name_sent_nothing(monkeypatch):
    error = await failed("http://nowhere.invalid", monkeypatch)
    assert not error.sent
    assert error_translation.may_pass(error)


async def test_server_without_tls_received_nothing(monkeypatch):
    async def answer(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with server(answer) as url:
        error = await failed(url.replace("http:", "https:"), monkeypatch)
    assert not error.sent


@pytest.mark.parametrize(("line", "status"), [(b"511 Log In", 511), (b"200 OK", 0)])
async def test_web_page_response_is_reported(line, status, monkeypatch):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        page = b"<html>Log in to this network</html>"
        about = b"Content-Type: text/html\r\nContent-Length: %d" % len(page)
        writer.write(b"HTTP/1.1 %s\r\n%s\r\n\r\n%s" % (line, about, page))
        await writer.drain()
        writer.close()

    async with server(answer) as url:
        error = await failed(url, monkeypatch)
    assert (error.status, error.code, error.sent) == (status, error_translation.NOT_AWS, True)
    assert f"{url} (" in str(error)
    assert not error_translation.is_unknown_call(error)


def test_web_page_as_xml_is_reported():
    unread = botocore.parsers.ResponseParserError("invalid XML received: b'<!DOCTYPE HTML>'")
    assert isinstance(unread, error_translation.ALL)
    error = error_translation.explain("GetRole", unread, "https://iam.amazonaws.com")
    assert error.sent
    assert "(it returned a web page); check the network" in str(error)
    error = error_translation.explain(
        "GetRole", KeyError("GetRoleResult"), "https://iam.amazonaws.com"
    )
    assert "it returned an unreadable response" in str(error)


def test_error_without_code_names_status():
    error = error_translation.explain("SubmitJob", refusal("", 403, ""))
    assert str(error) == "SubmitJob was refused: status 403, without a reason"


async def test_invalid_request_is_not_retried(monkeypatch):
    error = await failed("http://127.0.0.1:9", monkeypatch, jobName=1)
    assert not error.sent
    assert not error_translation.may_pass(error)
    assert "jobQueue" in str(error)


@pytest.mark.parametrize(
    ("status", "passes", "sent"), [(400, False, False), (403, False, False), (500, True, True)]
)
async def test_only_server_errors_are_transient(status, passes, sent):
    error = error_translation.explain("SubmitJob", refusal("Code", status))
    assert (error_translation.may_pass(error), error.sent) == (passes, sent)
    assert "SubmitJob was refused: No. (Code)" in str(error)


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (
            "UnrecognizedClientException",
            "The security token is invalid.",
            "AWS rejects the access key",
        ),
        ("InvalidClientTokenId", "The security token is invalid.", "AWS rejects the access key"),
        (
            "InvalidSignatureException",
            "The signature does not match.",
            "AWS rejects the access key",
        ),
        (
            "AuthFailure",
            "AWS was not able to validate the credentials.",
            "AWS rejects the access key",
        ),
        ("InvalidSignatureException", "Signature expired: 20261122T1 is now earlier", "clock"),
        ("SignatureDoesNotMatch", "Signature not yet current: 20261122T1 is later", "clock"),
        ("RequestTimeTooSkewed", "The difference is too large.", "clock"),
        ("ExpiredTokenException", "The token has expired.", "renew the credentials"),
        ("AccessDeniedException", "User x may not.", "need permission for SubmitJob"),
        ("ClientException", "No such queue.", "No such queue. (ClientException)"),
    ],
)
async def test_refusal_explains_its_cause(code, message, words):
    error = error_translation.explain("SubmitJob", refusal(code, 403, message))
    assert words in str(error)
    is_permission = "permission" in words
    assert ("permission" in str(error)) == is_permission
    of_credentials = error_translation.is_of_credentials(error)
    assert of_credentials == (code not in ("AccessDeniedException", "ClientException"))


async def test_rejected_key_is_named_with_source(monkeypatch):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"message": "The security token is invalid."}'
        kind = b"x-amzn-errortype: UnrecognizedClientException\r\nContent-Length: %d" % len(body)
        writer.write(b"HTTP/1.1 403 Forbidden\r\n%s\r\n\r\n%s" % (kind, body))
        await writer.drain()
        writer.close()

    async with server(answer) as url:
        error = await failed(url, monkeypatch)
    assert "access key ending in uest from the environment (AWS_ACCESS_KEY_ID)" in str(error)


async def test_expired_login_names_command():
    failure = botocore.exceptions.UnauthorizedSSOTokenError()
    error = error_translation.explain("DescribeJobs", failure)
    error.__cause__ = failure
    assert "`aws sso login`" in str(error)
    assert error_translation.is_of_credentials(error)
    assert "network" not in str(error_translation.explain_tries(error, 3, 10))
