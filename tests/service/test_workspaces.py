"""Workspaces, fetched by real shells with the tools of common images.

Starts the local AWS emulator, whose S3 verifies signatures as AWS does, and runs the start script
in each shell.

Slow, because there are many shells and tools. A job on several nodes and the refusal of a changed
archive run in CI as well.
"""

import json
import shutil
import subprocess
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest

from farcall import BatchExecutor
from farcall.config.settings import DEFAULT_CACHE_DIR
from farcall.engine.workspaces import key_of
from farcall.model import start_script
from farcall.model.commands import Nodes
from farcall.model.start_script import Fetched, wrap
from farcall.payload.archive import Source, pack
from farcall_local.names import BUCKET, JOB_ROLE
from tests.support.patience import PATIENCE_S
from tests.support.signing import REGION, session

pytestmark = pytest.mark.slow

TOOLS = ("od", "tr", "sed", "cut", "date", "mktemp", "sha256sum", "mkdir", "rm")
SHELLS = [name for name in ("dash", "bash", "busybox", "sh") if shutil.which(name)]
FETCHERS = ["python3", "curl", "wget", *(["busybox wget"] if shutil.which("busybox") else [])]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "work"
    (made / "lib").mkdir(parents=True)
    (made / "run").write_text("#!/bin/sh\ncat lib/value; echo $#:$1; exit ${CODE:-0}\n")
    (made / "run").chmod(0o755)
    (made / "lib" / "value").write_text(f"only here: {uuid.uuid4()}\n")
    (made / "lib" / "link").symlink_to("value")
    return made


@pytest.fixture
def archive(folder):
    made = pack([Source(folder)], DEFAULT_CACHE_DIR)
    yield made
    made.close()


class Container:
    """A folder, programs and an environment that simulate a container.

    Attributes:
        place: Working directory.
        workspace: Workspace to fetch.
        environment: Environment variables in addition to PATH.
        programs: The only folder on PATH.
    """

    def __init__(self, aws, place, archive, *tools):
        self.place = place / "container"
        self.place.mkdir()
        self.programs = place / "bin"
        self.programs.mkdir()
        self.environment = {
            name: aws.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        }
        for tool in tools:
            self.give(tool)
        key = key_of("some (prefix)!", archive.sha256)
        self.workspace = Fetched(
            REGION, f"{aws.endpoint_url}/{BUCKET}", BUCKET, key, archive.sha256
        )
        self._aws = aws

    def give(self, tool, path=None):
        first, _, name = tool.rpartition(" ")
        real = sys.executable if tool == "python3" else shutil.which(first or tool)
        (self.programs / name).symlink_to(path or real)

    def store(self, data, key=None):
        s3 = boto3.client("s3", endpoint_url=self._aws.endpoint_url, region_name=REGION)
        s3.put_object(Bucket=BUCKET, Key=key or self.workspace.key, Body=data)
        s3.close()

    def run(self, *command, shell="sh", **environment):
        """Run a command in the workspace; return exit code, stdout and stderr."""
        self.give(shell if shell != "busybox" else "busybox sh")
        wrapped = wrap(command or ("./run", "an argument"), self.workspace)
        name = "sh" if shell == "busybox" else shell
        done = subprocess.run(
            wrapped,
            executable=self.programs / name,
            env={"PATH": str(self.programs), **self.environment, **environment},
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def container(aws, tmp_path, archive):
    """A container with all required tools; the archive is in the bucket."""
    made = Container(aws, tmp_path, archive, *TOOLS, "tar", "gzip", "cat")
    made.give("sleep", shutil.which("true"))  # between two tries
    made.store(b"".join(archive.pieces()))
    return made


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def unpacked(container, folder):
    for path in sorted(folder.rglob("*")):
        there = container.place / path.relative_to(folder)
        assert there.lstat().st_mode == path.lstat().st_mode
        if path.is_symlink():
            assert there.readlink() == path.readlink()
        elif path.is_file():
            assert there.read_bytes() == path.read_bytes()


# --- the start script ---------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("tool", FETCHERS)
def test_any_shell_runs_workspace(shell, tool, container, folder):
    container.give(tool)
    code, out, err = container.run(shell=shell, CODE="3")
    assert (code, err) == (3, "")
    assert out == f"{(folder / 'lib' / 'value').read_text()}1:an argument\n"
    unpacked(container, folder)


class Endpoint:
    """A server like the ECS endpoint for a container's role credentials."""

    def __init__(self, keys):
        self.asked = []

        class Answer(BaseHTTPRequestHandler):
            def do_GET(answer):  # noqa: N805
                self.asked.append((answer.path, answer.headers.get("Authorization")))
                answer.send_response(200)
                answer.end_headers()
                answer.wfile.write(json.dumps(keys, indent=1).encode())

            def log_message(answer, *_):  # noqa: N805
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://localhost:{self._server.server_port}/v2/credentials/of-a-task"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("tool", FETCHERS)
def test_job_role_provides_credentials(tool, is_file, container, aws, tmp_path):
    container.give(tool)
    container.environment = {}
    # The endpoint is local, so it must not be requested through the proxy. (busybox's wget ignores
    # no_proxy, and here S3 is local, too.)
    token = {"AWS_CONTAINER_AUTHORIZATION_TOKEN": "a token"}
    if is_file:
        (tmp_path / "token").write_text("a token")
        token = {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token")}
    proxied = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}
    with Endpoint(session(aws.environment, JOB_ROLE)) as endpoint:
        code, _, err = container.run(
            AWS_CONTAINER_CREDENTIALS_FULL_URI=endpoint.url,
            **token,
            **({} if tool == "busybox wget" else proxied),
        )
    assert (code, err) == (0, "")
    assert endpoint.asked == [("/v2/credentials/of-a-task", "a token")]


def test_missing_role_is_reported(container):
    container.give("curl")
    container.environment = {}
    code, out, err = container.run()
    assert (code, out) == (start_script.NO_CREDENTIALS, "")
    assert err == "farcall: workspace: the job has no role, hence no credentials\n"


def test_missing_tools_are_named(container):
    code, _, err = container.run()
    assert (code, err) == (
        start_script.TOOLS_MISSING,
        "farcall: workspace: the image has none of python3, curl and wget\n",
    )
    (container.programs / "tar").unlink()
    (container.programs / "sh").unlink()
    container.give("curl")
    code, _, err = container.run()
    assert (code, err) == (
        start_script.TOOLS_MISSING,
        "farcall: workspace: the image has neither python3 nor tar\n",
    )


@pytest.mark.parametrize("tool", ["python3", "curl", "wget"])
def test_broken_download_is_repeated(tool, container, proxy):
    container.give(tool)
    container.workspace = container.workspace._replace(url=f"{proxy.url}/{BUCKET}")
    left = ["truncated", "reset", (503, "SlowDown")]
    proxy.rule = lambda request: left.pop() if "/workspaces/" in request.path and left else ""
    code, out, _ = container.run()
    assert (code, out.endswith("1:an argument\n"), left) == (0, True, [])


@pytest.mark.parametrize("tool", ["python3", "curl", "wget"])
@pytest.mark.path
def test_changed_archive_is_not_run(tool, container, folder, archive):
    container.give(tool)
    (folder / "run").write_text("#!/bin/sh\necho tampered > proof\n")
    other = pack([Source(folder)], DEFAULT_CACHE_DIR)
    container.store(b"".join(other.pieces()))
    other.close()
    code, out, err = container.run()
    assert (code, out) == (start_script.TAMPERED, "")
    assert f"{archive.sha256}.tar.gz is not what was uploaded, and nothing was run" in err
    assert listed(container.place) == []


# --- with the executor --------------------------------------------------------------------------


def uploads(proxy):
    return [each for each in proxy.seen if each.method == "PUT" and "/workspaces/" in each.path]


@pytest.fixture
def executor(options, proxy):
    return BatchExecutor(**options, endpoint_url=proxy.url)


@pytest.mark.path
async def test_nodes_share_stored_workspace(executor, folder, proxy, tmp_path):
    (folder / ".dockerignore").write_text("secret\n")
    (folder / "secret").touch()
    said = (
        f"test ! -e secret || exit 1; i={tmp_path}/$AWS_BATCH_JOB_NODE_INDEX; cp lib/value $i; "
        f"until [ -s {tmp_path}/1 ]; do sleep 0.02; done"  # the main node's exit stops the other
    )
    value = (folder / "lib" / "value").read_text()
    image = f"any:{uuid.uuid4().hex}"  # so that no other test shares the definition
    for _ in range(2):
        groups = [Nodes(2, image, ["sh", "-c", said], vcpu=1, memory=0.5)]
        result = await (await executor.command(groups=groups, workspace=folder)).wait()
        assert result.exit_codes[0] == 0
        for index in ("0", "1"):
            assert (tmp_path / index).read_text() == value
            (tmp_path / index).unlink()
    assert len(uploads(proxy)) == 1
    assert sum(each.operation == "batch registerjobdefinition" for each in proxy.seen) == 1
