"""Covalent's server is found like Covalent's own client finds it, without Covalent."""

import json
import pwd

import pytest

from farcall.covalent.api import Covalent
from farcall.model.errors import FarcallError


@pytest.fixture(autouse=True)
def configuration(tmp_path, monkeypatch):
    """Path of Covalent's configuration file, which does not exist yet."""
    monkeypatch.delenv("COVALENT_EXTRA_HEADERS", raising=False)
    monkeypatch.setenv("COVALENT_CONFIG_DIR", str(tmp_path))
    return tmp_path / "covalent.conf"


@pytest.mark.parametrize(
    ("address", "port", "url"),
    [
        ("localhost", "48008", "http://localhost:48008"),
        ("10.0.0.7", "80", "http://10.0.0.7"),
        ("covalent.example", "443", "https://covalent.example"),
        ("https://covalent.example/ours", '"8443"', "https://covalent.example:8443/ours"),
    ],
)
def test_configuration_sets_server_address(configuration, address, port, url):
    configuration.write_text(f'[dispatcher]\naddress = "{address}"\nport = {port}\n')
    assert Covalent.configured().address == url
    assert Covalent.configured("http://other:1/").address == "http://other:1"


def test_without_configuration_there_is_no_server():
    assert Covalent.configured() is None


def test_without_home_there_is_no_server(monkeypatch):
    def unknown(_):
        raise KeyError("no such user")

    for name in ("COVALENT_CONFIG_DIR", "XDG_CONFIG_DIR", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert Covalent.configured() is None


@pytest.mark.parametrize("text", ["[dispatcher", "", '[dispatcher]\naddress="a"\nport="b"\n'])
def test_incomplete_configuration_is_named(configuration, text):
    configuration.write_text(text)
    with pytest.raises(FarcallError, match=r"covalent\.conf does not contain the address"):
        Covalent.configured()


def test_address_without_scheme_is_rejected():
    with pytest.raises(FarcallError, match="'localhost'. Use a URL that begins with http"):
        Covalent.configured("localhost")


@pytest.mark.parametrize("headers", ["{", "[]", "1"])
def test_invalid_headers_are_named(monkeypatch, headers):
    monkeypatch.setenv("COVALENT_EXTRA_HEADERS", headers)
    with pytest.raises(FarcallError, match="COVALENT_EXTRA_HEADERS"):
        Covalent("http://127.0.0.1:9").running()


def test_non_covalent_server_is_reported(answering):
    with pytest.raises(FarcallError, match="is not a Covalent server"):
        Covalent(answering(200, b"<html>")).manifest("d")
    with pytest.raises(FarcallError, match="rejected the request: HTTP Error 500"):
        Covalent(answering(500, b"<html>")).running()


@pytest.mark.parametrize(
    "body", [b"[]", b"1", b"null", b'{"dispatches": [1]}', b'{"dispatches": null}', b'{"a": {}}']
)
def test_response_of_other_format_is_rejected(answering, body):
    address = answering(200, body)
    with pytest.raises(FarcallError, match="is not a Covalent 0.240 server"):
        Covalent(address).running()


def test_repeated_page_ends_the_listing(answering):
    page = [{"dispatch_id": f"d{number}", "status": "RUNNING"} for number in range(100)]
    body = json.dumps({"dispatches": page}).encode()
    assert [each["dispatch_id"] for each in page] == Covalent(answering(200, body)).running()


def test_local_server_bypasses_the_proxy(answering, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    page = {"dispatches": [{"dispatch_id": "d", "status": "FAILED"}]}
    address = answering(200, json.dumps(page).encode())
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert ["d"] == Covalent(address).running()
    with pytest.raises(FarcallError, match="no Covalent server responds"):
        Covalent(address.replace("127.0.0.1", "covalent.example")).running()
