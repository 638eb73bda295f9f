"""Credentials from files and plugins."""

import asyncio
import sys

import pytest

from farcall.model.errors import SettingsError
from tests.unit.backends.kubernetes.api_server import give, refuse
from tests.unit.backends.kubernetes.test_client import JOBS


def plugin(tmp_path, *, until=None):
    """Return a user whose plugin prints another token each time."""
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json, os, pathlib\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "n = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(n))\n"
        "asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        f"status = {{'token': f'token-{{n}}', 'expirationTimestamp': {until!r}}}\n"
        "print(json.dumps({**asked, 'status': status}))\n"
    )
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(script)],
            "provideClusterInfo": True,
        }
    }


async def test_plugin_token_is_kept_until_rejected(server, tmp_path, open_as):
    kube = open_as(plugin(tmp_path))
    server.answers = [give({}), give({}), refuse(401, "Unauthorized"), give({})]
    await kube.request("GET", JOBS)
    await kube.request("GET", JOBS)
    assert server.headers["Authorization"] == "Bearer token-1"
    await kube.request("GET", JOBS)
    assert server.headers["Authorization"] == "Bearer token-2"
    assert len(server.requests) == 4


async def test_concurrent_requests_run_plugin_once(server, tmp_path, open_as):
    kube = open_as(plugin(tmp_path))
    server.answers = [give({})]
    await asyncio.gather(*(kube.request("GET", JOBS) for _ in range(5)))
    assert (tmp_path / "count").read_text() == "1"


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"command": "no-such-plugin", "installHint": "install it"}, "cannot be started.*install"),
        ({"command": "sh", "args": ["-c", "echo log in first >&2; exit 3"]}, "3: log in first"),
        ({"command": "echo"}, "no valid ExecCredential"),
        ({"command": "echo", "apiVersion": "v0"}, "'v0'.*supported"),
        ({"command": "echo", "interactiveMode": "Always"}, "requires a terminal"),
    ],
)
async def test_failed_plugin_raises(open_as, user, message):
    user = {"apiVersion": "client.authentication.k8s.io/v1", **user}
    kube = open_as({"exec": user})
    with pytest.raises(SettingsError, match=f"credential plugin `.*{message}"):
        await kube.request("GET", JOBS)


async def test_token_file_is_read_again(server, tmp_path, open_as):
    token = tmp_path / "token"
    token.write_text("one\n")
    kube = open_as({"tokenFile": "token"})
    server.answers = [give({}), refuse(401, "Unauthorized"), give({})]
    await kube.request("GET", JOBS)
    assert server.headers["Authorization"] == "Bearer one"
    token.write_text("two\n")
    await kube.request("GET", JOBS)
    assert server.headers["Authorization"] == "Bearer two"
