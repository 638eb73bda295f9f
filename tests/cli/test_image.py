"""``farcall image``: its docker commands and ECR requests.

Starts a local AWS emulator that enforces IAM, and a program in place of docker that records its
arguments. tests/image/test_image_commands.py uses a real engine.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import tomlkit

from farcall.cli.build_context import build_context
from farcall.config.settings import read
from farcall.model.errors import FarcallError
from farcall_runtime.contract import PROTOCOL_VERSION
from tests import emulators
from tests.cli.account import Account
from tests.support.iam import policy

REGISTRY = "127.0.0.1:5999"
IMAGE_ID = "sha256:" + 32 * "1a"
DIGEST = "sha256:" + 32 * "2b"
OURS = {
    "Id": IMAGE_ID,
    "Os": "linux",
    "Architecture": "amd64",
    "Config": {"Labels": {"farcall.protocol-version": str(PROTOCOL_VERSION)}},
    "RepoDigests": [f"{REGISTRY}/farcall@{DIGEST}", f"elsewhere/farcall@{DIGEST}"],
}

FAKE_DOCKER = """\
#!{python}
import json, os, pathlib, sys

folder = pathlib.Path({folder!r})
words = sys.argv[1:]
with (folder / "told").open("a") as told:
    told.write(json.dumps(words) + "\\n")
if words[0] == "version":
    if (folder / "no-engine").exists():
        sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
    print("28.0")
elif words[:2] == ["image", "inspect"]:
    images = json.loads((folder / "images").read_text())
    if words[-1] not in images:
        print("[]")
        sys.exit(f"Error: No such image: {{words[-1]}}")
    print(json.dumps([images[words[-1]]]))
elif words[:2] == ["image", "tag"]:
    images = json.loads((folder / "images").read_text())
    images[words[-1]] = images[words[-2]]
    (folder / "images").write_text(json.dumps(images))
elif words[0] == "build":
    context = pathlib.Path(words[-1])
    found = {{str(p.relative_to(context)): oct(p.stat().st_mode)[-3:] for p in context.rglob("*")}}
    (folder / "context").write_text(json.dumps(found))
    print("Step 1/9", flush=True)
    sys.exit(3 if "--fail" in words else 0)
elif words[0] == "push":
    config = pathlib.Path(os.environ["DOCKER_CONFIG"])
    (folder / "pushed").write_text(json.dumps({{
        "config": json.loads((config / "config.json").read_text()),
        "mode": oct((config / "config.json").stat().st_mode)[-3:],
        "folder": str(config),
        "contexts": sorted(p.name for p in (config / "contexts").glob("*")),
    }}))
    print("The push refers to repository", flush=True)
    if (folder / "denied").exists():
        sys.exit("denied: not authorized to perform: ecr:InitiateLayerUpload")
"""


class FakeDocker:
    """A docker command that only records its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "docker"
        program.write_text(FAKE_DOCKER.format(python=sys.executable, folder=str(folder)))
        program.chmod(0o755)
        self.has(farcall=OURS)

    @property
    def path(self) -> str:
        return f"{self.folder}:{os.environ['PATH']}"

    def has(self, **images: object) -> None:
        (self.folder / "images").write_text(json.dumps(images))

    def told(self, word: str) -> list[list[str]]:
        lines = (self.folder / "told").read_text().splitlines()
        return [words for words in map(json.loads, lines) if words[0] == word]

    def left(self, folder: object) -> bool:
        """Return whether a folder that docker received still exists."""
        return Path(str(folder)).exists()

    def recorded(self, name: str) -> dict[str, object]:
        return dict(json.loads((self.folder / name).read_text()))


@pytest.fixture
def docker(tmp_path, monkeypatch):
    fake = FakeDocker(tmp_path / "fake")
    monkeypatch.setenv("PATH", fake.path)
    for name in [name for name in os.environ if name.startswith("DOCKER_")]:
        monkeypatch.delenv(name)  # the developer's
    return fake


def repositories(account):
    return account.aws.resources().get("repositories", [])


@pytest.fixture(scope="module")
def whole():
    with emulators.start(empty=True, enforce_iam=True) as aws:
        account = Account(aws)
        yield account, account.user("pusher", policy("pusher"))


@pytest.fixture
def account(whole, monkeypatch):
    """Provide an account without repositories, as a user that may only push images."""
    account, keys = whole
    for name, value in {**account.aws.environment, **keys}.items():
        monkeypatch.setenv(name, value)
    account.aws.set_registry(REGISTRY)
    account.allow("pusher", policy("pusher"))
    yield account
    ecr = account.client("ecr")
    for name in repositories(account):
        ecr.delete_repository(repositoryName=name)


def options(home):
    path = home / ".config/farcall/farcall.toml"
    return read(path)["batch"] if path.exists() else {}


# --- build --------------------------------------------------------------------------------------


async def test_build_context_has_dockerfile_and_runtime(docker, farcall_command):
    done = await farcall_command("image", "build", "--packages", "numpy 'scipy>=1'")

    assert (0, "Step 1/9\nbuilt image farcall\n") == (done.returncode, done.stdout), done
    assert "next: farcall image push\n" == done.stderr
    [words] = docker.told("build")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert [
        "build",
        "--tag=farcall",
        "--platform=linux/amd64",
        f"--build-arg=BASE_IMAGE=public.ecr.aws/docker/library/python:{version}-slim-trixie",
        "--build-arg=PIP_PACKAGES=numpy scipy>=1",
    ] == words[:-1]
    assert not docker.left(words[-1])
    context = docker.recorded("context")
    assert {"Dockerfile", "runtime_image", "runtime_image/farcall_runtime"} == {
        name for name in context if not name.endswith(".py")
    }
    assert context["Dockerfile"] == context["runtime_image/farcall_runtime/task.py"] == "644"
    assert "755" == context["runtime_image/farcall_runtime"]


async def test_failed_build_reports_exit_code(docker, farcall_command):
    done = await farcall_command("image", "build", "--", "--fail")
    assert (1, "Step 1/9\n") == (done.returncode, done.stdout)
    assert "docker build failed with exit code 3" in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-r others.txt", "names a file on this machine"),
        ("-e .", "names a file on this machine"),
        ("./here", "names a file on this machine"),
        ("mine @ file:///tmp/mine.whl", "names a file on this machine"),
        ("-i https://me:word@index.example/simple", "contains a username or a password"),
        ("mine @ git+https://token@git.example/mine", "contains a username or a password"),
    ],
)
def test_unsupported_requirement_names_its_line(tmp_path, line, said):
    path = tmp_path / "requirements.txt"
    path.write_text(f"numpy\n{line}\n")
    expected = pytest.raises(FarcallError, match=f"requirements.txt, line 2: .*{said}")
    with expected as caught, build_context(path):
        pass
    assert "word" not in str(caught.value).replace("password", "")
    assert "token" not in str(caught.value)


# --- push ---------------------------------------------------------------------------------------


async def test_pushed_image_becomes_the_option(account, docker, farcall_command, tmp_path):
    """The user has only the permissions of docs/iam/pusher.json."""
    own = tmp_path / ".docker"
    (own / "contexts" / "meta").mkdir(parents=True)
    config = json.dumps({"currentContext": "mine", "credsStore": "keychain", "auths": {"a": {}}})
    (own / "config.json").write_text(config)

    done = await farcall_command("image", "push", "--yes")

    assert 0 == done.returncode, done.stderr
    name = f"{REGISTRY}/farcall:1a1a1a1a1a1a"
    assert [["push", name]] == docker.told("push")
    assert [
        f"image farcall (linux/amd64) will be pushed to {name}",
        "repository farcall will be created in us-east-1 of account 123456789012",
    ] == done.stdout.splitlines()[:2]
    assert "next: farcall doctor" in done.stderr
    assert f"{REGISTRY}/farcall@{DIGEST}" == options(tmp_path)["image"]
    assert ["farcall"] == repositories(account)

    pushed = docker.recorded("pushed")
    assert "600" == pushed["mode"]
    assert ["meta"] == pushed["contexts"]
    token = "QVdTOjEyMzQ1Njc4OTAxMi1hdXRoLXRva2Vu"
    expected = {"auths": {REGISTRY: {"auth": token}}, "currentContext": "mine"}
    assert expected == pushed["config"]
    assert not docker.left(pushed["folder"])
    assert config == (own / "config.json").read_text()
    assert token not in done.stdout + done.stderr


async def test_existing_repository_and_options_are_kept(
    account, docker, farcall_command, tmp_path
):
    file = tmp_path / "mine.toml"
    file.write_text("# mine\n[executors.awsbatch]\nvcpu = 2  # few\n")
    own = {**OURS, "RepoDigests": [f"{REGISTRY}/team/jobs@{DIGEST}"]}
    docker.has(**{"my-jobs": own})
    given = ("image", "push", "my-jobs", "--repository", "team/jobs", "--file", file)
    account.client("ecr").create_repository(repositoryName="team/jobs")
    account.allow(
        "pusher", json.loads(json.dumps(policy("pusher")).replace("y/farcall", "y/team/jobs"))
    )

    done = await farcall_command(*given)  # needs no confirmation

    assert 0 == done.returncode, done.stderr
    assert "will be created" not in done.stdout
    assert "vcpu = 2  # few" in file.read_text()
    written = tomlkit.parse(file.read_text()).unwrap()["executors"]["awsbatch"]
    assert {"vcpu": 2, "image": f"{REGISTRY}/team/jobs@{DIGEST}"} == written


async def test_push_requires_confirmation(account, docker, farcall_command, tmp_path):
    done = await farcall_command("image", "push")
    assert 2 == done.returncode
    assert "nothing was built or pushed" in done.stderr
    assert ([], [], {}) == (repositories(account), docker.told("push"), options(tmp_path))


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ({}, "docker has no image 'farcall'. Run `farcall image build --tag farcall`"),
        ({"farcall": {**OURS, "Config": {"Labels": None}}}, "has protocol none (label"),
        (
            {"farcall": {**OURS, "Config": {"Labels": {"farcall.protocol-version": "77"}}}},
            "has protocol 77 (label farcall.protocol-version), but this farcall requires 1",
        ),
    ],
)
async def test_incompatible_image_is_not_pushed(docker, farcall_command, images, said):
    docker.has(**images)
    done = await farcall_command("image", "push", "--yes")
    assert 1 == done.returncode
    assert said in done.stderr


@pytest.mark.parametrize("command", ["build", "push"])
async def test_missing_docker_is_reported(docker, farcall_command, command, tmp_path):
    (docker.folder / "no-engine").touch()
    done = await farcall_command("image", command)
    assert 1 == done.returncode
    assert (
        f"farcall image {command} requires a docker engine, but none responds: Cannot"
        in done.stderr
    )

    done = await farcall_command("image", command, PATH=str(tmp_path))
    assert 1 == done.returncode
    assert f"farcall image {command} requires docker, which is not on the PATH" in done.stderr
