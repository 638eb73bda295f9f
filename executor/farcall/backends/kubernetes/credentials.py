"""Bearer tokens and client certificates, from a file or an exec plugin.

A plugin runs again when its credentials have expired, and when the server rejects them. A file
is read again, because kubelets renew the tokens of service accounts in place.

Sources:
    https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
    https://kubernetes.io/docs/reference/config-api/client-authentication.v1/
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from farcall.backends.kubernetes.kubeconfig import Connection, ExecPlugin
from farcall.model.clock import within
from farcall.model.errors import SettingsError

_KIND = "ExecCredential"
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_PLUGIN_S = 300.0
"""Time limit of a plugin in seconds; a person may have to log in."""

_EARLY_S = 10.0
_REREAD_S = 60.0
_STDERR_CHARACTERS = 2000


class Proof(NamedTuple):
    """Credentials for a request.

    Attributes:
        authorization: The header's value; empty for none.
        certificate: PEM of a certificate and of its key; both empty for none.
    """

    authorization: str = ""
    certificate: tuple[str, str] = ("", "")


class Credentials:
    """Renewable credentials of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._proof: Proof | None = None
        self._until = 0.0
        self._lock = asyncio.Lock()

    @property
    def may_renew(self) -> bool:
        """Whether the credentials can be renewed if the server rejects them."""
        return bool(self._connection.plugin or self._connection.token_file)

    async def current(self) -> Proof:
        """Return the current credentials.

        Raises:
            SettingsError: The plugin failed, or the file cannot be read.
        """
        async with self._lock:  # one plugin at a time
            if self._proof is None or time.time() >= self._until:
                self._proof, self._until = await self._obtain()
            return self._proof

    def expire(self, proof: Proof) -> None:
        """Discard credentials that the server rejected, so that the next ones are new."""
        if proof == self._proof:
            self._proof = None

    async def _obtain(self) -> tuple[Proof, float]:
        """Return credentials and their expiry in seconds since 1970."""
        here = self._connection
        if here.token_file is not None:
            until = time.time() + _REREAD_S
            return Proof(f"Bearer {_token(here.token_file)}", here.certificate), until
        if here.plugin is not None and not here.token:
            return await _run_plugin(here, here.plugin)
        bearer = f"Bearer {here.token}" if here.token else ""
        return Proof(bearer, here.certificate), float("inf")


def _token(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"cannot read the Kubernetes token in {path}: {error}", option="kubeconfig"
        ) from error


async def _run_plugin(connection: Connection, plugin: ExecPlugin) -> tuple[Proof, float]:
    printed = await _output(connection, plugin)
    try:
        document = json.loads(printed)
        status = document["status"]
        token = str(status.get("token") or "")
        certificate = (
            str(status.get("clientCertificateData") or connection.certificate[0]),
            str(status.get("clientKeyData") or connection.certificate[1]),
        )
        until = _moment(status.get("expirationTimestamp"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _failed(plugin, f"printed no valid {_KIND} ({error})") from error
    if not token and not certificate[0]:
        raise _failed(plugin, "printed neither a token nor a certificate")
    if document.get("apiVersion") != plugin.version:
        version = document.get("apiVersion")
        raise _failed(plugin, f"printed apiVersion {version!r} instead of {plugin.version!r}")
    return Proof(f"Bearer {token}" if token else "", certificate), until


def _moment(text: Any) -> float:
    if not text:
        return float("inf")
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp() - _EARLY_S


async def _output(connection: Connection, plugin: ExecPlugin) -> bytes:
    if plugin.version not in _VERSIONS:
        allowed = " and ".join(_VERSIONS)
        raise _failed(plugin, f"has apiVersion {plugin.version!r}; supported: {allowed}")
    is_interactive = plugin.mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
    if plugin.mode == "Always" and not is_interactive:
        raise _failed(
            plugin, "requires a terminal (interactiveMode Always), but none is available"
        )
    spec: dict[str, Any] = {"interactive": is_interactive}
    if plugin.wants_cluster:
        spec["cluster"] = dict(connection.cluster_info)
    request = {"apiVersion": plugin.version, "kind": _KIND, "spec": spec}
    environment = {**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": json.dumps(request)}
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *(plugin.command, *plugin.arguments),
            env=environment,
            stdin=None if is_interactive else asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=None if is_interactive else pipe,  # the user must see its prompts
        )
    except OSError as error:
        raise _failed(plugin, f"cannot be started: {error.strerror}") from error
    try:
        output, errors = await within(_PLUGIN_S, process.communicate())
    except TimeoutError as error:
        raise _failed(plugin, f"did not finish within {_PLUGIN_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        printed = (errors or b"").decode(errors="replace").strip()[-_STDERR_CHARACTERS:]
        raise _failed(plugin, f"failed with status {process.returncode}: {printed}")
    return output


def _failed(plugin: ExecPlugin, what: str) -> SettingsError:
    command = shlex.join((plugin.command, *plugin.arguments))
    text = f"the kubeconfig's credential plugin `{command}` {what}; run it manually, and log in"
    return SettingsError(f"{text}; {plugin.hint}" if plugin.hint else text, option="kubeconfig")
