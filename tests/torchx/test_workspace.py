"""TorchX workspaces with the ``aws_batch`` scheduler.

Starts jobs on the local AWS emulator, because a job fetches and unpacks its workspace.
"""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from torchx.runner import Runner
from torchx.specs import AppDef, Resource, Role, Workspace

from farcall import SettingsError
from farcall.model.start_script import unwrap
from farcall.torchx.batch.scheduler import BatchScheduler
from farcall_local.names import QUEUE
from tests.support.patience import until
from tests.support.proxy import Proxy

NO_DOCKER = "tcp://127.0.0.1:9"
TORCHX = Path(sys.executable).with_name("torchx")


@pytest.fixture
def proxy(aws, monkeypatch):
    with Proxy(aws.endpoint_url) as running:
        monkeypatch.setenv("FARCALL_ENDPOINT_URL", running.url)
        yield running


@pytest.fixture
def runner():
    def make(session_name, **_):
        return BatchScheduler(session_name)

    with Runner("tests", {"aws_batch": make}) as made:
        yield made


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "work"
    made.mkdir()
    (made / "value").write_text(f"{uuid.uuid4()}\n")
    (made / "run").write_text('#!/bin/sh\ncat value > "$1.part"; mv "$1.part" "$1"\n')
    (made / "run").chmod(0o755)
    return made


def role(workspace, *args, name="one", **fields):
    return Role(
        name,
        "farcall-local-process:1",
        entrypoint="./run",
        args=[str(arg) for arg in args],
        resource=Resource(cpu=1, gpu=0, memMB=128),
        workspace=workspace and Workspace({str(workspace): ""}),
        **fields,
    )


def cfg(**options):
    return {"queue": QUEUE, **options}


def uploads(proxy):
    return [each for each in proxy.seen if each.method == "PUT" and "/workspaces/" in each.path]


def command(info, place=0):
    """Return the command of a role in a request."""
    job = info.request.job
    if "containerOverrides" in job:
        return job["containerOverrides"]["command"]
    return job["nodeOverrides"]["nodePropertyOverrides"][place]["containerOverrides"]["command"]


# --- in the bucket ------------------------------------------------------------------------------


def test_equal_workspace_is_uploaded_once(runner, proxy, folder, tmp_path):
    value = (folder / "value").read_text()
    for proof in (tmp_path / "first", tmp_path / "second"):
        runner.run(AppDef("app", [role(folder, proof)]), "aws_batch", cfg())
        assert until(lambda proof=proof: proof.exists() and proof.read_text()) == value
    assert len(uploads(proxy)) == 1


def test_dry_run_packs_the_workspace(runner, proxy, folder, tmp_path):
    before = (folder / "value").read_text()
    info = runner.dryrun(AppDef("app", [role(folder, tmp_path / "proof")]), "aws_batch", cfg())
    (folder / "value").write_text("changed since\n")
    runner.schedule(info)
    proof = tmp_path / "proof"
    assert until(lambda: proof.exists() and proof.read_text()) == before


@pytest.mark.parametrize("workspace", ["memory://x", "s3://bucket/x"])
def test_remote_workspace_is_rejected(workspace, runner, aws):
    app = AppDef("app", [role(workspace)])
    with pytest.raises(SettingsError, match=f"workspace is '{workspace}'. Use a folder on this"):
        runner.dryrun(app, "aws_batch", cfg())


# --- workspace mode -----------------------------------------------------------------------------


def built(workspace, **options):
    """Build a workspace; return the role's command."""
    scheduler = BatchScheduler("tests")
    of = [role(workspace, "x"), role(workspace, "x", name="two")]
    try:
        scheduler.build_workspaces(of, cfg(**options))
    finally:
        scheduler.close_workspaces()
    return unwrap([of[0].entrypoint, *of[0].args])


def test_home_directory_is_not_uploaded(aws, tmp_path, caplog, monkeypatch):
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for workspace in (home, tmp_path, "~"):
        assert built(workspace)[0] is None
        with pytest.raises(SettingsError, match="is your home directory, or contains it"):
            built(workspace, workspace_mode="s3")
    assert "your home directory" in caplog.text
    assert built(home / "project")[0] is not None


# --- docker -------------------------------------------------------------------------------------


def test_missing_docker_daemon_is_explained(folder, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", NO_DOCKER)
    with pytest.raises(SettingsError, match=r"^workspace_mode is docker, but .*Start its daemon"):
        built(folder, workspace_mode="docker")
    with pytest.raises(SettingsError, match="Start its daemon"):
        BatchScheduler("tests").push_images({"sha256:1": ("repo", "1")})


def test_local_image_requires_image_repo(runner, aws, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", NO_DOCKER)
    image = f"sha256:{'1' * 64}"
    app = AppDef("app", [role(None), role(None, name="two")])
    app.roles[0].image = image
    info = runner.dryrun(app, "aws_batch", cfg(image_repo="example.com/mine"))
    pushed = f"example.com/mine:{'1' * 64}"
    assert info.request.images_to_push == {image: ("example.com/mine", "1" * 64)}
    assert pushed in json.dumps(info.request.definition)
    assert image not in json.dumps(info.request.definition)
    with pytest.raises(SettingsError, match="Start its daemon"):
        runner.schedule(info)
    with pytest.raises(SettingsError, match=f"image_repo is None: {image} is a local image"):
        runner.dryrun(app, "aws_batch", cfg())


# --- the command line ---------------------------------------------------------------------------


def torchx(*args, folder, **environment):
    return subprocess.run(
        [TORCHX, *args],
        cwd=folder,
        env={**os.environ, "DOCKER_HOST": NO_DOCKER, **environment},
        capture_output=True,
        text=True,
    )


def test_torchx_run_uploads_working_directory(aws, folder):
    """It does not need docker."""
    run = ("run", "-s", "aws_batch", "-cfg", f"queue={QUEUE}", "--dryrun", "--json")
    done = torchx(*run, "utils.sh", "--image", "alpine:3", "cat", "value", folder=folder)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    request = shown["request"]["job"]["containerOverrides"]["command"]
    fetched, plain = unwrap(request)
    assert plain[:2] == ["sh", "-c"]
    assert fetched.bucket == "farcall-local"
