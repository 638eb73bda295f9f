"""The hosts that client and container really connect to, recorded by a local proxy."""

import contextlib
import socket
import threading

import pytest

from farcall import Settings
from farcall.aws.clients import Aws
from farcall_runtime import contract
from farcall_runtime import storage as container
from farcall_runtime.storage import Storage, StorageError

VARIABLES = ("HTTPS_PROXY", "https_proxy")
S3 = "s3 =\n  "
#: One bucket of each kind of URL; test_buckets.py has all partitions.
HOSTS = [
    ("eu-west-1", "", "my-bucket", "my-bucket.s3.eu-west-1.amazonaws.com"),
    ("eu-west-1", "", "my.bucket", "s3.eu-west-1.amazonaws.com"),
    (
        "us-gov-west-1",
        "use_fips_endpoint = true",
        "b-1",
        "b-1.s3-fips.us-gov-west-1.amazonaws.com",
    ),
    ("eu-west-1", f"{S3}addressing_style = path", "my-bucket", "s3.eu-west-1.amazonaws.com"),
    (
        "eu-west-1",
        "",
        "arn:aws:s3:eu-west-1:123456789012:accesspoint/mine",
        "mine-123456789012.s3-accesspoint.eu-west-1.amazonaws.com",
    ),
    ("eu-west-1", "", "mine-abc-s3alias", "mine-abc-s3alias.s3.eu-west-1.amazonaws.com"),
]


class Noted:
    """Proxy that records the requested hosts, and connects to none."""

    def __init__(self):
        self.hosts = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):  # raised when it is closed
            while True:
                connection, _ = self._listener.accept()
                with connection, connection.makefile("rb") as lines:
                    method, target, _ = lines.readline().decode().split()
                    assert method == "CONNECT"
                    self.hosts.append(target)
                    while lines.readline().strip():
                        pass
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def noted(monkeypatch):
    with contextlib.closing(Noted()) as proxy:
        for name in VARIABLES:
            monkeypatch.setenv(name, proxy.url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setattr(container, "_QUICK_RETRY_S", 0)
        yield proxy


@pytest.mark.timing(quick_retry_s=0.0)
@pytest.mark.parametrize(("region", "text", "bucket", "host"), HOSTS)
async def test_client_and_container_use_same_host(
    region, text, bucket, host, noted, monkeypatch, tmp_path
):
    config = tmp_path / "config"
    config.write_text(f"[default]\n{text}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    settings = Settings(region=region, s3_bucket_name=bucket)
    aws = await Aws.configured(settings)
    try:
        await ends(aws.store(settings.s3_bucket_name).get_async("key"))
        await ends(aws.operations(settings.s3_bucket_name).page("prefix/"))
        url, signed_for = aws.place(settings.s3_bucket_name)
    finally:
        await aws.close()
    assert set(noted.hosts) == {f"{host}:443"}
    assert signed_for == region
    noted.hosts.clear()
    environment = {contract.ENV_REGION: region}
    if url != contract.bucket_url(settings.s3_bucket_name, region):
        environment[contract.ENV_BUCKET_URL] = url
    storage = Storage(settings.s3_bucket_name, environment, retry_s=0.0)
    with pytest.raises(StorageError):
        storage.put("key", [b"data"])
    assert set(noted.hosts) == {f"{host}:443"}


async def ends(request):
    with pytest.raises(Exception, match="(?i)proxy|403|error sending"):
        await request
