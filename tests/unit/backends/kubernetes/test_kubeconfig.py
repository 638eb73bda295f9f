import base64
import os
import sys

import pytest
import yaml

from farcall.backends.kubernetes.kubeconfig import read
from farcall.model.errors import SettingsError
from tests.unit.backends.kubernetes.api_server import kubeconfig

SERVER = "https://one.example:6443"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """Hide the developer's clusters."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


def entry(name, server, context="x", **more):
    """Return a document with one cluster and one context."""
    return {
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "contexts": [{"name": context, "context": {"cluster": name, **more}}],
    }


def test_current_context_is_used(tmp_path):
    found = read(str(kubeconfig(tmp_path / "config", SERVER)))
    assert (found.server, found.context, found.namespace) == (SERVER, "here", "ml")
    assert found.token == "secret"
    assert found.is_verified


def test_files_are_found_like_kubectl(tmp_path, monkeypatch):
    home = tmp_path / "home" / ".kube"
    home.mkdir(parents=True)
    kubeconfig(home / "config", "https://home.example")
    assert read().server == "https://home.example"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "named", "https://named.example")))
    assert read().server == "https://named.example"
    path = kubeconfig(tmp_path / "option", "https://option.example")
    assert read(str(path)).server == "https://option.example"


def test_first_value_of_several_files_counts(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(yaml.safe_dump(entry("c", "https://first.example")))
    document = {**entry("c", "https://second.example"), "current-context": "y"}
    document["contexts"].append({"name": "y", "context": {"cluster": "c", "namespace": "n"}})
    second.write_text(yaml.safe_dump(document))
    paths = [str(tmp_path / "missing"), str(first), str(second)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(paths))
    found = read()
    assert (found.server, found.context, found.namespace) == ("https://first.example", "y", "n")
    assert read(context="x").namespace == "default"


def test_relative_paths_start_at_file(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "ca.pem").write_text("CA")
    (folder / "cert.pem").write_text("CERT")
    user = {
        "client-certificate": "cert.pem",
        "client-key-data": base64.b64encode(b"KEY").decode(),
        "exec": {"command": "./login", "apiVersion": "client.authentication.k8s.io/v1"},
    }
    path = kubeconfig(folder / "config", SERVER, user, **{"certificate-authority": "ca.pem"})
    monkeypatch.chdir(tmp_path)
    found = read(str(path))
    assert found.authority == "CA"
    assert found.certificate == ("CERT", "KEY")
    assert found.plugin.command == str(folder / "login")


def test_tls_options_are_read(tmp_path):
    cluster = {
        "insecure-skip-tls-verify": True,
        "tls-server-name": "inner",
        "proxy-url": "http://proxy:3128",
        "extensions": [
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
        ],
    }
    found = read(str(kubeconfig(tmp_path / "config", SERVER, **cluster)))
    assert (found.is_verified, found.server_name, found.proxy) == (
        False,
        "inner",
        "http://proxy:3128",
    )
    assert found.cluster_info["config"] == {"audience": "a"}


def test_service_account_of_pod_is_used(tmp_path, monkeypatch):
    for name, text in (("token", "t"), ("ca.crt", "CA"), ("namespace", "mine\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = read(account=tmp_path)
    assert (found.server, found.namespace) == ("https://[fd00::1]:443", "mine")
    assert (found.token_file, found.authority) == (tmp_path / "token", "CA")


def test_missing_cluster_is_reported(tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"~/\.kube/config does not exist.*option kubeconfig"):
        read()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"\$KUBECONFIG names no existing file"):
        read()
    with pytest.raises(SettingsError, match="does not exist"):
        read(str(tmp_path / "missing"))


def test_unknown_context_error_lists_contexts(tmp_path):
    path = str(kubeconfig(tmp_path / "config", SERVER))
    with pytest.raises(SettingsError, match="context is 'prod'.*only: here") as caught:
        read(path, "prod")
    assert caught.value.option == "context"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no current-context"),
        ("- a", "not a table"),
        ("a: [", "cannot read it"),
        ("current-context: x\nclusters: [{}]", "without a name"),
        ("current-context: x\ncontexts: [{name: x, context: {cluster: c}}]", "no such cluster"),
        ("current-context: x\ncontexts: [{name: x, context: 5}]", "not a table"),
    ],
)
def test_broken_file_is_rejected(tmp_path, text, message):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read(str(path))


@pytest.mark.parametrize(
    ("user", "cluster", "message"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, "Kubernetes 1.26 removed"),
        ({"exec": {"args": []}}, {}, "no command"),
        ({"client-key": "nowhere"}, {}, "cannot read client-key"),
        (None, {"server": "one.example"}, "not a URL"),
        (None, {"proxy-url": "socks5://h"}, "proxy-url"),
        (None, {"certificate-authority-data": "/w=="}, "cannot read certificate-authority"),
    ],
)
def test_unsupported_entries_are_rejected(tmp_path, user, cluster, message):
    path = kubeconfig(tmp_path / "config", SERVER, user, **cluster)
    with pytest.raises(SettingsError, match=message):
        read(str(path))


def test_missing_yaml_names_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "config"
    path.write_text("{}")
    with pytest.raises(SettingsError, match=r"pip install '\.\[kubernetes\]'"):
        read(str(path))


def test_local_file_of_others_is_rejected(tmp_path, monkeypatch):
    """A file elsewhere was named by the user, such as an administrator's for a group."""
    path = kubeconfig(tmp_path / "config", SERVER)
    path.chmod(0o646)
    for name in ("config", str(path)):
        with pytest.raises(SettingsError, match="other users of this machine can write to it"):
            read(name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read(str(path)).server == SERVER
