"""``farcall image build`` and ``push`` of an installed wheel, and a job in the pushed image.

Starts a docker engine and Debian's docker-registry with a password, like ECR; ECR's own API calls
go to the local AWS emulator. Slow, because it builds the wheel, installs it and builds an image.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from farcall import BatchExecutor
from farcall.config.settings import read
from farcall_local import names
from tests.support.own_wheel import ENVIRONMENT, build_own
from tests.support.patience import until

pytestmark = pytest.mark.slow

ARGUMENTS = shlex.split(os.environ.get("TEST_BUILD_ARGUMENTS", ""))
PASSWORD = f"{names.ACCOUNT_ID}-auth-token"
#: Hash of that password, with bcrypt, the only format that the registry supports.
HTPASSWD = "AWS:$2b$05$abcdefghijklmnopqrstuu/4ofrUS75HrKu6f.iuRo0I/XlrmpqlC\n"
CONFIG = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}
http: {{addr: {host}}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Host and port of a registry that requires a password."""
    program = shutil.which("docker-registry")
    if program is None:
        reason = "There is no registry to push to: apt-get install docker-registry"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; in CI this is an error")
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    (folder / "htpasswd").write_text(HTPASSWD)
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, host=host))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        return status(f"http://{host}/v2/") == 401

    try:
        until(answers)
        yield host
    finally:
        process.terminate()
        process.wait()


def status(url: str) -> int:
    """Return the HTTP status of a request without a password, or 0 without a response."""
    try:
        with urllib.request.urlopen(url) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def manifest(uri: str) -> bytes:
    """Return an image's manifest from the registry."""
    host, _, rest = uri.partition("/")
    repository, _, digest = rest.partition("@")
    key = base64.b64encode(f"AWS:{PASSWORD}".encode()).decode()
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    request = urllib.request.Request(
        f"http://{host}/v2/{repository}/manifests/{digest}",
        headers={"Authorization": f"Basic {key}", "Accept": kind},
    )
    with urllib.request.urlopen(request) as reply:
        return bytes(reply.read())


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which farcall's wheel is installed."""
    wheel, _ = build_own(tmp_path_factory.mktemp("built"))
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, str(wheel)], env=ENVIRONMENT, check=True, capture_output=True)
    return folder


@pytest.fixture
def run(aws, installed, registry, monkeypatch):
    """Run the installed farcall; ECR returns the registry's password."""
    monkeypatch.delenv("FARCALL_IMAGE")
    aws.set_registry(registry)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "farcall", *arguments],
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )

    yield run
    aws.set_registry("")


async def test_built_and_pushed_image_runs_jobs(
    run, registry, base_image, run_label, docker, tmp_path, monkeypatch
):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "requirements.txt").write_text("iniconfig>=2  # small, and needs nothing\n")
    tag = f"farcall-built:{run_label.rpartition('=')[2]}"
    given = ("--tag", tag, "--base", base_image, "-r", "requirements.txt")

    built = run("image", "build", *given, "--", "--label", run_label, *ARGUMENTS)

    assert built.returncode == 0, built.stderr
    assert f"built image {tag}" in built.stdout
    assert '"protocol_version": 1' in docker("run", "--rm", tag, "--contract")

    pushed = run("image", "push", tag, "--repository", "team/jobs", "--yes")

    assert pushed.returncode == 0, pushed.stderr
    uri = read(tmp_path / ".config/farcall/farcall.toml")["batch"]["image"]
    repository, _, digest = uri.partition("@")
    assert repository == f"{registry}/team/jobs"
    assert f"sha256:{hashlib.sha256(manifest(uri)).hexdigest()}" == digest
    assert status(f"http://{registry}/v2/team/jobs/manifests/{digest}") == 401
    assert not (tmp_path / "docker").exists()  # docker would store a password there

    def work() -> tuple[str, int]:
        import os

        import iniconfig

        return iniconfig.__name__, os.getuid()

    async with BatchExecutor(vcpu=1, memory=0.5, retry_attempts=1, linger_s=0.02) as executor:
        job = await executor.submit(work)
        assert await job.result() == ("iniconfig", 10001)
        assert (await job.detail()).image == uri

    again = run("image", "push", tag, "--repository", "team/jobs")  # needs no confirmation
    assert again.returncode == 0, again.stderr
    assert "is unchanged" in again.stdout
