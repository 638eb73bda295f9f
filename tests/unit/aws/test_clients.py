"""Connections to AWS, and their end."""

import asyncio
import contextlib
import datetime as dt
import hashlib
import ipaddress
import logging
import socket
import ssl

import botocore.exceptions
import botocore.httpsession
import botocore.parsers
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from farcall.aws.clients import Aws, call, keep_events
from farcall.config.settings import Settings
from farcall.model.errors import FarcallError, ServiceError, SettingsError
from tests.support.patience import PATIENCE_S, until_async

PART = bytes(32 << 20)  # more than the system buffers


class Silent:
    """Server that accepts connections and reads nothing.

    Attributes:
        url: Its URL.
        connections: The accepted connections.
    """

    def __init__(self, server):
        self.url = f"http://127.0.0.1:{server.getsockname()[1]}"
        self.connections = []
        self._server = server
        server.setblocking(False)

    def accept(self):
        """Accept the waiting connections; return all accepted ones."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._server.accept()
                connection.setblocking(False)
                self.connections.append(connection)
        return self.connections

    def were_closed(self):
        """Return whether the client has closed all connections."""
        return all(map(self._was_closed, self.accept()))

    def _was_closed(self, connection):
        try:
            while connection.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = Silent(server)
        yield made
        for connection in made.connections:
            connection.close()


async def test_abandoned_requests_leave_no_connection(silent):
    aws = await Aws.open(Settings(endpoint_url=silent.url, region="us-east-1"))
    asked = [
        asyncio.ensure_future(
            aws.operations("bucket").upload_part(
                "key", "upload", number, PART, hashlib.sha256(PART).hexdigest()
            )
        )
        for number in (1, 2)
    ]
    await until_async(silent.accept)
    for each in asked:
        each.cancel()
    for each in asked:
        with contextlib.suppress(asyncio.CancelledError):
            await each
    await aws.close()
    await until_async(silent.were_closed)


@pytest.mark.parametrize("has_asked", [True, False])
async def test_request_after_close_raises(silent, has_asked):
    aws = await Aws.open(Settings(endpoint_url=silent.url, region="us-east-1"))
    operations = aws.operations("bucket")
    if has_asked:
        asked = asyncio.ensure_future(operations.page("key"))
        await until_async(silent.accept)
        asked.cancel()
    await aws.close()
    for asking in (call(aws.batch, "describe_jobs", jobs=["id"]), operations.page("key")):
        with pytest.raises(FarcallError, match="was closed during a call to AWS") as caught:
            await asking
        assert not isinstance(caught.value, ServiceError)


async def test_concurrent_callers_share_service_client(silent):
    aws = await Aws.open(Settings(endpoint_url=silent.url, region="us-east-1"))
    first, second = await asyncio.gather(aws.client("iam"), aws.client("iam"))
    assert first is second is await aws.client("iam")
    await aws.close()
    for service in ("iam", "logs"):
        with pytest.raises(FarcallError, match="was closed during a call to AWS"):
            await call(await aws.client(service), "get_role", RoleName="role")


# --- certificates -------------------------------------------------------------------------------

LIST = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"


class Certificate:
    """Self-signed certificate for 127.0.0.1."""

    def __init__(self, folder, name):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(made.public_bytes(pem))
        self._key = folder / f"{name}.key"
        self._key.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )

    def context(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path, self._key)
        return context


@contextlib.asynccontextmanager
async def answering(certificate):
    """Answer like an empty AWS account; yield the URL and the requests."""
    asked = []

    async def answer(request):
        asked.append(request.path)
        if request.path.startswith("/v1/"):
            return web.json_response({"jobs": []})
        return web.Response(text=LIST, content_type="application/xml")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.context())
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def proxying():
    """Forward CONNECT requests; yield the URL and the targets."""
    connected, carrying = [], []

    async def pipe(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer):
        carrying.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.decode().split(" ", 2)
        assert method == "CONNECT"
        connected.append(target)
        host, _, port = target.rpartition(":")
        reading, writing = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pipe(reader, writing), pipe(reading, writer))
        for each in (writing, writer):
            with contextlib.suppress(OSError):
                await each.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connected
        await asyncio.wait_for(asyncio.gather(*carrying), PATIENCE_S)  # the clients are closed


@pytest.fixture
def keys(monkeypatch):
    for name in ("HTTPS_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture(params=["direct", "proxied"])
async def way(request, keys, monkeypatch):
    """Targets of connections through the proxy, or None without a proxy."""
    if request.param == "direct":
        yield None
        return
    async with proxying() as (url, connected):
        monkeypatch.setenv("HTTPS_PROXY", url)
        yield connected


async def ask_batch(aws):
    assert await call(aws.batch, "describe_jobs", jobs=["id"])


async def ask_s3(aws):
    assert await aws.operations("bucket").page("key") == ([], [], "")


@pytest.mark.parametrize("ask", [ask_batch, ask_s3])
async def test_untrusted_certificate_is_rejected(way, ask, tmp_path):
    async with answering(Certificate(tmp_path, "theirs")) as (url, asked):
        aws = await Aws.open(Settings(endpoint_url=url, region="us-east-1"))
        refused = (ServiceError, botocore.exceptions.SSLError)
        with pytest.raises(refused, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(aws)
        await aws.close()
    assert asked == []
    assert way is None or way


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
@pytest.mark.parametrize("ask", [ask_batch, ask_s3])
async def test_certificate_trusted_by_user_is_accepted(way, ask, variable, tmp_path, monkeypatch):
    own = Certificate(tmp_path, "own")
    monkeypatch.setenv(variable, str(own.path))
    async with answering(own) as (url, asked):
        aws = await Aws.open(Settings(endpoint_url=url, region="us-east-1"))
        await ask(aws)
        await aws.close()
    assert len(asked) == 1
    assert way is None or way


@pytest.mark.parametrize("ask", [ask_batch, ask_s3])
async def test_custom_ca_bundle_replaces_public_certificates(way, ask, tmp_path, monkeypatch):
    own, public = Certificate(tmp_path, "own"), Certificate(tmp_path, "public")
    monkeypatch.setattr(botocore.httpsession, "where", lambda: str(public.path))
    async with answering(public) as (url, asked):
        settings = Settings(endpoint_url=url, region="us-east-1")
        trusting = await Aws.open(settings)  # another client in the same process
        await ask(trusting)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(own.path))
        aws = await Aws.open(settings)
        refused = (ServiceError, botocore.exceptions.SSLError)
        with pytest.raises(refused, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(aws)
        await trusting.close()
        await aws.close()
    assert len(asked) == 1


async def test_credential_server_is_verified_behind_proxy(keys, tmp_path, monkeypatch):
    token = tmp_path / "token"
    token.write_text("secret token")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/role")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    async with (
        answering(Certificate(tmp_path, "theirs")) as (url, asked),
        proxying() as (proxy, connected),
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        aws = await Aws.open(Settings(region="us-east-1"))
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            await aws._frozen(renew=False)
        await aws.close()
    assert asked == []
    assert connected


async def test_invalid_endpoint_is_named(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "guest")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guest")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "somewhere")
    with pytest.raises(ServiceError, match="AWS_ENDPOINT_URL is 'somewhere'"):
        await Aws.open(Settings(s3_bucket_name="bucket"))


async def test_missing_ca_bundle_is_named(monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", "not-there.pem")
    with pytest.raises(ServiceError, match="certificates in not-there.pem.*AWS_CA_BUNDLE"):
        await Aws.open(Settings(s3_bucket_name="bucket"))


# --- without credentials ---------------------------------------------------------------------


@pytest.fixture
def keyless(monkeypatch, tmp_path):
    """Machine without AWS keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


async def test_batch_requires_credentials_at_once(keyless):
    with pytest.raises(ServiceError, match="no AWS credentials were found; run `aws configure`"):
        await Aws.open(Settings())


async def test_kubernetes_requires_credentials_for_bucket(keyless):
    aws = await Aws.open(Settings(backend="kubernetes"))
    assert aws.batch is None
    for needs in (lambda: aws.store("bucket"), lambda: aws.store("bucket", sending=True)):
        with pytest.raises(
            ServiceError, match="no credentials for the bucket were found; set AWS"
        ):
            needs()
    with pytest.raises(ServiceError, match="only command jobs do not need one"):
        await aws.client("s3")
    await aws.close()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"__type": "AccessDenied"}'])
def test_log_response_without_events_is_unchanged(body):
    response, kept = {"body": body}, {}
    keep_events(response, kept)
    assert (response, kept) == ({"body": body}, {})


@pytest.mark.parametrize("variable", ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"])
async def test_missing_profile_is_named_with_variable(keyless, monkeypatch, variable):
    monkeypatch.setenv(variable, "work")
    with pytest.raises(SettingsError, match=f"{variable} is 'work', which is not a profile"):
        await Aws.configured(Settings())


@pytest.mark.parametrize(
    ("variable", "section"),
    [("AWS_CONFIG_FILE", "profile work"), ("AWS_SHARED_CREDENTIALS_FILE", "work")],
)
async def test_region_names_profile(keyless, monkeypatch, tmp_path, variable, section):
    path = tmp_path / "aws"
    path.write_text(f"[{section}]\nregion = eu-west-3\n")
    monkeypatch.setenv(variable, str(path))
    aws = await Aws.configured(Settings(profile="work"))
    assert aws.region_and_origin == "eu-west-3 (from profile 'work' in the AWS configuration)"


async def test_libraries_log_nothing_at_info(caplog, monkeypatch):
    for name in ("botocore.configprovider", "botocore.credentials", "aiobotocore.credentials"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with caplog.at_level(logging.INFO):
        await (await Aws.open(Settings())).close()
    assert [record.name for record in caplog.records if "boto" in record.name] == []


# --- responses of proxies --------------------------------------------------------------------

IDENTITY = (
    "<GetCallerIdentityResponse><GetCallerIdentityResult><Account>123456789012</Account>"
    "</GetCallerIdentityResult></GetCallerIdentityResponse>"
)


@pytest.mark.parametrize(
    "body", ["<!DOCTYPE html><p>no<br>", "down for maintenance", '{"message": "no"}', "<a>no</a>"]
)
async def test_error_of_proxy_is_repeated(keys, body):
    responses = [web.Response(status=503, text=body), web.Response(text=IDENTITY)]

    async def respond(_):
        return responses.pop(0)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    aws = await Aws.open(Settings(endpoint_url=url, region="us-east-1"))
    try:
        assert await aws.account() == "123456789012"
    finally:
        await aws.close()
        await runner.cleanup()
