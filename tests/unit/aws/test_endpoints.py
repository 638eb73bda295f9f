"""The origin of an endpoint, and the remedy if it does not answer."""

import socket

import botocore.loaders
import pytest

from farcall import SettingsError
from farcall.aws import endpoints

SUFFIXES = ("dnsSuffix", "dualStackDnsSuffix")

HERE = "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    "name", ["FARCALL_ENDPOINT_URL", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"]
)
def test_variable_of_endpoint_is_named(name, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_BATCH", "http://127.0.0.1:8081")
    monkeypatch.setenv(name, f"{HERE}/")
    assert endpoints.named(f"{HERE}/v1/listjobs") == f"{HERE} (from {name})"


def test_file_of_endpoint_is_named(tmp_path, monkeypatch):
    path = tmp_path / "mine.toml"
    path.write_text(f"[executors.awsbatch]\nendpoint_url = '{HERE}'\n")
    monkeypatch.setenv("FARCALL_CONFIG", str(path))
    assert endpoints.named(HERE) == f"{HERE} (endpoint_url in {path})"
    assert endpoints.named("http://127.0.0.1:9") == (
        "http://127.0.0.1:9 (from an argument endpoint_url, or from the AWS configuration)"
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost:1", "farcall local"),
        ("http://[::1]:1", "farcall local"),
        ("https://batch.eu-west-1.amazonaws.com", "the option region"),
        ("https://s3.cn-north-1.amazonaws.com.cn/bucket", "the option region"),
        ("https://batch.eu-west-1.api.aws", "the option region"),
        ("https://batch.eusc-de-east-1.amazonaws.eu", "the option region"),
        ("http://minio.example:9000", "set another URL"),
        ("http://127.0.0.1:a", "set another URL"),
        ("", "the options region and endpoint_url"),
    ],
)
def test_remedy_depends_on_endpoint(url, words):
    assert words in endpoints.remedy(url)


def test_domains_of_all_partitions_are_known():
    partitions = botocore.loaders.create_loader().load_data("partitions")["partitions"]
    domains = {each["outputs"][name] for each in partitions for name in SUFFIXES}
    assert set(endpoints.DOMAINS) == domains
    assert all(endpoints.is_aws(f"https://batch.xx-1.{each}/v1") for each in domains)
    assert not endpoints.is_aws("https://amazonaws.com.example")
    assert not endpoints.is_aws("https://minioamazonaws.com")


def test_url_is_found_in_sentence():
    assert endpoints.in_text(f"Error performing GET {HERE}/b/k in 3 s") == HERE
    assert endpoints.in_text("nothing of the kind") == ""


def test_password_in_url_is_hidden():
    assert endpoints.in_text("nothing at http://me:secret@minio:9000/b") == "http://minio:9000"


@pytest.mark.parametrize(
    ("region", "message"),
    [("us-eest-1", "did you mean .*us-east-1"), ("moon", "such as eu-west-1")],
)
async def test_unknown_region_is_rejected(monkeypatch, region, message):
    monkeypatch.setattr(endpoints, "getproxies", dict)
    monkeypatch.setattr("socket.getaddrinfo", _no_address)
    url = f"https://batch.{region}.amazonaws.com"
    with pytest.raises(SettingsError, match=f"{region}' .from an argument.*{message}"):
        await endpoints.check_region(url, region, "an argument")


async def test_known_region_without_network_is_accepted(monkeypatch):
    monkeypatch.setattr(endpoints, "getproxies", dict)
    monkeypatch.setattr("socket.getaddrinfo", _no_address)
    await endpoints.check_region("https://batch.eu-west-1.amazonaws.com", "eu-west-1", "")


def _no_address(*_, **__):
    raise socket.gaierror("Name or service not known")
