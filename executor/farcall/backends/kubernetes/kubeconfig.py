"""Kubeconfig files: the API server, its credentials, and the namespace.

They are read like in kubectl: if ``KUBECONFIG`` names several files, the first file that
defines a name or a value takes precedence, and relative paths start at the file's folder. Without
any file, a process in a pod uses its service account.

Sources:
    https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
    https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farcall.filesystem import NOT_OWN, is_own
from farcall.model.errors import SettingsError
from farcall.model.names import install

_DEFAULT = Path("~/.kube/config")
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a pod's service account.

https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
"""

_VARIABLE = "KUBECONFIG"
_LISTS = {"clusters": "cluster", "contexts": "context", "users": "user"}
_PATHS = {
    "cluster": ("certificate-authority",),
    "context": (),
    "user": ("client-certificate", "client-key", "tokenFile"),
}
"""Fields of an entry that are paths, relative to the file's folder."""

_INSTALL = f"PyYAML is required to read kubeconfig files. {install('kubernetes')}"


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A command that prints credentials.

    Attributes:
        command: The command.
        arguments: Its arguments.
        environment: Environment variables in addition to this process's.
        version: The requested ``apiVersion``.
        wants_cluster: Whether it receives the cluster's description.
        mode: ``Never``, ``IfAvailable`` or ``Always``: whether it may prompt the user.
        hint: Remedy if it is not installed.
    """

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: str = ""
    wants_cluster: bool = False
    mode: str = "IfAvailable"
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Connection:
    """An API server, and the user's credentials.

    Attributes:
        origin: Source of the configuration, for messages.
        context: The context's name; empty in a pod.
        server: URL of the server.
        namespace: The context's namespace; by default ``default``.
        authority: PEM of the certificates that verify the server; empty for the system's.
        is_verified: Whether the server is verified.
        server_name: Expected name in the server's certificate; empty for the URL's.
        proxy: URL of a proxy; empty for the environment's.
        certificate: PEM of the client's certificate, and of its key; both empty for none.
        token: Bearer token; empty for none.
        token_file: File with a bearer token, which is renewed; None for none.
        plugin: A command that prints credentials; None for none.
        acts_as: Impersonation headers.
        cluster_info: The cluster's description in the file, for a plugin that requests it.
    """

    origin: str
    context: str
    server: str
    namespace: str = "default"
    authority: str = ""
    is_verified: bool = True
    server_name: str = ""
    proxy: str = ""
    certificate: tuple[str, str] = field(default=("", ""), repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    plugin: ExecPlugin | None = None
    acts_as: tuple[tuple[str, str], ...] = ()
    cluster_info: Mapping[str, Any] = field(default_factory=dict, repr=False)


def read(path: str = "", context: str = "", account: Path = _ACCOUNT) -> Connection:
    """Find the API server.

    Args:
        path: A kubeconfig file; empty for the files of ``KUBECONFIG``, then ``~/.kube/config``,
            then the service account of this pod.
        context: A context of the file; empty for its current one.
        account: Folder of a pod's service account.

    Raises:
        SettingsError: No server is configured, or the configuration is invalid.
    """
    files = _files(path)
    _refuse_foreign(files)
    if files:
        return _of_files(files, context)
    if not context and "KUBERNETES_SERVICE_HOST" in os.environ and (account / "token").exists():
        return _of_pod(account)
    where = f"${_VARIABLE} names no existing file" if os.environ.get(_VARIABLE) else ""
    raise SettingsError(
        f"no Kubernetes cluster is configured: {where or f'{_DEFAULT} does not exist'}, and "
        "this process does not run in a pod with a service account; name a file in the option "
        f"kubeconfig or in {_VARIABLE}; kind, minikube and k3s create a cluster on this "
        "machine",
        option="kubeconfig",
    )


def _refuse_foreign(files: Sequence[Path]) -> None:
    """Reject files in the working directory of other users, whose plugins would run."""
    for file in files:
        is_here = not file.is_absolute() or file.is_relative_to(Path.cwd())
        if is_here and not is_own(file):
            raise SettingsError(
                f"the kubeconfig file {file} was not read: {NOT_OWN}, or copy it to {_DEFAULT}",
                option="kubeconfig",
            )


def _files(path: str) -> list[Path]:
    if path:
        file = Path(path).expanduser()
        if not file.is_file():
            raise SettingsError(
                f"kubeconfig is {path!r}, which does not exist; name a file that `kubectl "
                "--kubeconfig` accepts",
                option="kubeconfig",
            )
        return [file]
    named = os.environ.get(_VARIABLE)
    paths = [Path(each) for each in named.split(os.pathsep) if each] if named else [_DEFAULT]
    return [each for each in map(Path.expanduser, paths) if each.is_file()]


def _of_pod(account: Path) -> Connection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    name = f"[{host}]" if ":" in host else host
    namespace = account / "namespace"
    return Connection(
        origin="the service account of this pod",
        context="",
        server=f"https://{name}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        authority=(account / "ca.crt").read_text(),
        token_file=account / "token",
    )


class _Entries:
    """Entries of several files; the first file takes precedence."""

    def __init__(self, files: list[Path]) -> None:
        self.origin = os.pathsep.join(map(str, files))
        self.current = ""
        self._by_name: dict[str, dict[str, Mapping[str, Any]]] = {kind: {} for kind in _LISTS}
        for path in files:
            self._add(path, _parsed(path))

    def _add(self, path: Path, document: Mapping[str, Any]) -> None:
        self.current = self.current or str(document.get("current-context") or "")
        for kind, key in _LISTS.items():
            for item in document.get(kind) or []:
                if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                    raise _bad(path, f"{kind} has an entry without a name")
                entry = dict(_table(path, item.get(key) or {}, f"{key} {item['name']!r}"))
                for name in _PATHS[key]:
                    if entry.get(name):
                        entry[name] = str(path.absolute().parent / str(entry[name]))
                entry["@folder"] = path.absolute().parent
                self._by_name[kind].setdefault(item["name"], entry)

    def get(self, kind: str, name: str, whose: str) -> Mapping[str, Any]:
        """Return an entry.

        Raises:
            SettingsError: The entry does not exist.
        """
        entry = self._by_name[kind].get(name)
        if entry is None:
            there = ", ".join(sorted(self._by_name[kind])) or "none"
            raise SettingsError(
                f"{whose} is {name!r}, but {self.origin} has no such {_LISTS[kind]}, only: "
                f"{there}; run `kubectl config get-{kind}` to list them",
                option="context" if kind == "contexts" else "kubeconfig",
            )
        return entry


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        import yaml  # only Kubernetes users need it
    except ImportError as error:
        raise SettingsError(_INSTALL, option="backend") from error
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _bad(path, f"cannot read it: {error}") from error
    return _table(path, document or {}, "the file")


def _table(path: Path, table: object, what: str) -> Mapping[str, Any]:
    if not isinstance(table, dict):
        raise _bad(path, f"{what} is not a table of names and values")
    return table


def _bad(path: Path | str, what: str) -> SettingsError:
    text = (
        f"the kubeconfig file {path} cannot be used: {what}; run `kubectl config view` to check it"
    )
    return SettingsError(text, option="kubeconfig")


def _of_files(files: list[Path], context: str) -> Connection:
    entries = _Entries(files)
    name = context or entries.current
    if not name:
        raise SettingsError(
            f"{entries.origin} has no current-context; name a context in the option context, "
            "or with `kubectl config use-context`",
            option="context",
        )
    chosen = entries.get("contexts", name, "context" if context else "current-context")
    cluster = entries.get("clusters", str(chosen.get("cluster") or ""), f"cluster of {name!r}")
    wanted = str(chosen.get("user") or "")
    user = entries.get("users", wanted, f"user of {name!r}") if wanted else {}
    if user.get("auth-provider"):
        raise _bad(
            entries.origin,
            f"user {wanted!r} has an auth-provider, which Kubernetes 1.26 removed; use the "
            "provider's command to replace it with an exec plugin",
        )
    token_file = user.get("tokenFile")
    return Connection(
        origin=entries.origin,
        context=name,
        namespace=str(chosen.get("namespace") or "default"),
        **_of_cluster(entries.origin, cluster),
        certificate=(
            _pem(entries.origin, user, "client-certificate"),
            _pem(entries.origin, user, "client-key"),
        ),
        token=str(user.get("token") or ""),
        token_file=Path(token_file) if token_file else None,
        plugin=_plugin(entries.origin, user),
        acts_as=tuple(_impersonation(user)),
    )


def _of_cluster(origin: str, cluster: Mapping[str, Any]) -> dict[str, Any]:
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise _bad(origin, f"the server of a cluster is {server!r}, which is not a URL")
    proxy = str(cluster.get("proxy-url") or "")
    if proxy and not proxy.startswith(("https://", "http://")):
        raise _bad(origin, f"proxy-url is {proxy!r}; use http:// or https://")
    authority = _pem(origin, cluster, "certificate-authority")
    cluster_info = {
        "server": server,
        "tls-server-name": cluster.get("tls-server-name"),
        "insecure-skip-tls-verify": cluster.get("insecure-skip-tls-verify"),
        "certificate-authority-data": base64.b64encode(authority.encode()).decode(),
        "proxy-url": proxy,
        "config": _config(cluster),
    }
    return {
        "server": server,
        "authority": authority,
        "is_verified": not cluster.get("insecure-skip-tls-verify"),
        "server_name": str(cluster.get("tls-server-name") or ""),
        "proxy": proxy,
        "cluster_info": {name: value for name, value in cluster_info.items() if value},
    }


def _config(cluster: Mapping[str, Any]) -> Any:
    """Return a cluster's settings for plugins."""
    for each in cluster.get("extensions") or []:
        if isinstance(each, dict) and each.get("name") == "client.authentication.k8s.io/exec":
            return each.get("extension")
    return None


def _pem(origin: str, entry: Mapping[str, Any], name: str) -> str:
    """Return an entry's inline data, or the contents of its file."""
    data, path = entry.get(f"{name}-data"), entry.get(name)
    try:
        if data:
            return base64.b64decode(str(data), validate=False).decode("ascii")
        return Path(path).read_text("ascii") if path else ""
    except (OSError, ValueError, binascii.Error) as error:
        raise _bad(origin, f"cannot read {name}: {error}") from error


def _impersonation(user: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the impersonation headers.

    https://kubernetes.io/docs/reference/access-authn-authz/authentication/
    """
    headers = [("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid"))]
    headers += [("Impersonate-Group", group) for group in user.get("as-groups") or []]
    for name, values in (user.get("as-user-extra") or {}).items():
        headers += [(f"Impersonate-Extra-{name}", value) for value in values]
    return [(name, str(value)) for name, value in headers if value]


def _plugin(origin: str, user: Mapping[str, Any]) -> ExecPlugin | None:
    wanted = user.get("exec")
    if not wanted:
        return None
    if not isinstance(wanted, dict) or not wanted.get("command"):
        raise _bad(origin, "an exec plugin has no command")
    command = str(wanted["command"])
    if os.sep in command:  # otherwise PATH is searched
        command = str(user["@folder"] / command)
    try:
        environment = {str(v["name"]): str(v["value"]) for v in wanted.get("env") or []}
    except (KeyError, TypeError) as error:
        raise _bad(origin, "env of an exec plugin is not a list of name and value") from error
    return ExecPlugin(
        command=command,
        arguments=tuple(map(str, wanted.get("args") or ())),
        environment=environment,
        version=str(wanted.get("apiVersion") or ""),
        wants_cluster=bool(wanted.get("provideClusterInfo")),
        mode=str(wanted.get("interactiveMode") or "IfAvailable"),
        hint=str(wanted.get("installHint") or "").strip(),
    )
