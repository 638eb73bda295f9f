"""Workspaces by TorchX's own Runner and command line, on the embedded AWS."""

from __future__ import annotations

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
from farcall.local.names import QUEUE
from farcall.model.start_script import unwrap
from farcall.torchx import workspace as module
from farcall.torchx.batch.scheduler import BatchScheduler
from farcall.torchx.workspace import WorkspaceOpts
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
    """The command of a role in a request."""
    job = info.request.job
    if "containerOverrides" in job:
        return job["containerOverrides"]["command"]
    return job["nodeOverrides"]["nodePropertyOverrides"][place]["containerOverrides"]["command"]


# --- in the bucket ------------------------------------------------------------------------------


def test_two_runs_of_what_is_only_in_the_workspace_store_it_once(runner, proxy, folder, tmp_path):
    value = (folder / "value").read_text()
    for proof in (tmp_path / "first", tmp_path / "second"):
        runner.run(AppDef("app", [role(folder, proof)]), "aws_batch", cfg())
        assert until(lambda proof=proof: proof.exists() and proof.read_text()) == value
    assert len(uploads(proxy)) == 1


def test_a_dry_run_stores_nothing_and_shows_the_command_that_fetches(runner, proxy, folder):
    app = AppDef("app", [role(folder, "x")])
    info = runner.dryrun(app, "aws_batch", cfg(workspace_mode="s3", workspace_dir="/work"))
    fetched, plain = unwrap(command(info))
    assert plain == ["./run", "x"]
    assert fetched.folder == "/work"
    assert fetched.sha256 in str(info.request)
    assert proxy.seen == []
    assert app.roles[0].entrypoint == "./run"


def test_a_dry_run_of_what_a_dry_run_gave_fetches_once(runner, aws, folder):
    app = AppDef("app", [role(folder, "$$x ${app_id}")])
    app.roles[0].entrypoint = "./$$run"
    first = runner.dryrun(app, "aws_batch", cfg())
    again = runner.dryrun(first.app, "aws_batch", cfg())
    for info in (first, again):
        name = info.request.name
        assert unwrap(command(info))[1] == ["./$$run", f"$x {name}"]
    assert command(first)[:9] == command(again)[:9]


def test_what_was_packed_is_what_runs(runner, proxy, folder, tmp_path):
    before = (folder / "value").read_text()
    info = runner.dryrun(AppDef("app", [role(folder, tmp_path / "proof")]), "aws_batch", cfg())
    (folder / "value").write_text("changed since\n")
    runner.schedule(info)
    proof = tmp_path / "proof"
    assert until(lambda: proof.exists() and proof.read_text()) == before


def test_a_folder_of_another_region_is_where_the_job_is_told_it_is(
    runner, proxy, folder, tmp_path
):
    """The options say one region, and the session's clients another, which is the true one."""
    info = runner.dryrun(AppDef("app", [role(folder, tmp_path / "proof")]), "aws_batch", cfg())
    told = command(info)
    told[told.index("us-east-1")] = "eu-west-1"
    runner.schedule(info)
    assert unwrap(command(info))[0].region == "us-east-1"
    assert until((tmp_path / "proof").exists)


def test_roles_with_one_workspace_share_its_archive(runner, aws, folder, monkeypatch):
    packed = []
    pack = module.pack
    monkeypatch.setattr(module, "pack", lambda *args: packed.append(args) or pack(*args))
    roles = [role(folder, "1"), role(folder, "2", name="two"), role(None, "3", name="three")]
    info = runner.dryrun(AppDef("app", roles), "aws_batch", cfg())
    first, second, third = (command(info, place) for place in range(3))
    assert unwrap(first)[0] == unwrap(second)[0] is not None
    assert third == ["./run", "3"]
    assert len(packed) == 1


def test_several_projects_lie_where_the_workspace_maps_them(runner, proxy, folder, tmp_path):
    (tmp_path / "lib" / "deep").mkdir(parents=True)
    (tmp_path / "lib" / "deep" / "value").write_text("of a library")
    app = AppDef("app", [role(None, tmp_path / "proof")])
    app.roles[0].workspace = Workspace({str(folder): "", str(tmp_path / "lib"): "libs/mine"})
    app.roles[0].entrypoint, app.roles[0].args = (
        "sh",
        ["-c", f"cat value libs/mine/deep/value > {tmp_path}/x; mv {tmp_path}/x {tmp_path}/y"],
    )
    runner.run(app, "aws_batch", cfg())
    proof = tmp_path / "y"
    wanted = f"{(folder / 'value').read_text()}of a library"
    assert until(lambda: proof.exists() and proof.read_text()) == wanted


@pytest.mark.parametrize("workspace", ["memory://x", "s3://bucket/x"])
def test_a_workspace_that_is_no_folder_of_this_machine_is_refused(workspace, runner, aws):
    app = AppDef("app", [role(workspace)])
    with pytest.raises(SettingsError, match=f"workspace is '{workspace}': a folder of this"):
        runner.dryrun(app, "aws_batch", cfg())


def test_a_file_that_cannot_be_packed_is_named(runner, aws, folder):
    (folder / ".dockerignore").write_text("[\n")
    with pytest.raises(SettingsError, match=r"\.dockerignore, line 1"):
        runner.dryrun(AppDef("app", [role(folder)]), "aws_batch", cfg())


def test_without_an_entrypoint_there_is_nothing_to_run_in_a_workspace(aws, folder):
    scheduler = BatchScheduler("tests")
    of = role(folder)
    of.entrypoint, of.args = "<MISSING>", []
    with pytest.raises(SettingsError, match="role one: there is no entrypoint"):
        scheduler.build_workspaces([of], cfg())
    scheduler.close()


def test_archives_of_dry_runs_are_kept_for_a_while_and_then_let_go(aws, tmp_path):
    scheduler = BatchScheduler("tests")
    files = []
    for number in range(20):
        made = tmp_path / str(number)
        made.mkdir()
        (made / "number").write_text(str(number))
        for _ in range(2):  # the same content is kept once
            scheduler.build_workspaces([role(made)], cfg())
        files += [kept._file for kept in scheduler._kept.values() if kept._file not in files]
    assert [file.closed for file in files] == [True] * 4 + [False] * 16
    scheduler.close_workspaces()
    assert all(file.closed for file in files)


def test_an_app_whose_archive_is_nowhere_is_not_submitted(runner, proxy, folder):
    info = runner.dryrun(AppDef("app", [role(folder)]), "aws_batch", cfg())
    runner._scheduler("aws_batch").close_workspaces()
    with pytest.raises(SettingsError, match=r"s3://farcall-local/.*is not there; .*dry run"):
        runner.schedule(info)
    assert not [each for each in proxy.seen if each.operation == "batch submitjob"]


# --- which mode ---------------------------------------------------------------------------------


def built(workspace, **options):
    """Build a workspace, and return the role's command."""
    scheduler = BatchScheduler("tests")
    of = [role(workspace, "x"), role(workspace, "x", name="two")]
    try:
        scheduler.build_workspaces(of, cfg(**options))
    finally:
        scheduler.close_workspaces()
    return unwrap([of[0].entrypoint, *of[0].args])


def test_auto_is_none_without_a_bucket_which_is_told_once(folder, caplog, monkeypatch):
    monkeypatch.setenv("FARCALL_BATCH_JOB_ROLE_NAME", "worker")
    assert built(folder) == (None, ["./run", "x"])
    (told,) = caplog.messages
    assert told.startswith(f"the workspace {folder} stays here: no bucket is configured")
    assert built(folder, bucket="mine")[0].bucket == "mine"
    monkeypatch.setenv("FARCALL_S3_BUCKET_NAME", "")  # which means that there is none
    assert built(folder)[0] is None


def test_auto_is_none_without_a_job_role(folder, caplog):
    assert built(folder, bucket="mine") == (None, ["./run", "x"])
    assert "no role to fetch it with (job_role_arn)" in caplog.text
    assert built(folder, bucket="mine", job_role_arn="worker")[0] is not None


def test_the_bucket_of_farcall_s_file_will_do(folder, tmp_path, monkeypatch):
    file = tmp_path / "options.toml"
    file.write_text(
        '[executors.awsbatch]\ns3_bucket_name = "mine"\nbatch_job_role_name = "worker"\n'
    )
    monkeypatch.setenv("FARCALL_CONFIG", str(file))
    assert built(folder)[0].bucket == "mine"


def test_nobody_s_home_is_taken_along_unasked(aws, tmp_path, caplog, monkeypatch):
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for workspace in (home, tmp_path, "~"):
        assert built(workspace)[0] is None
        with pytest.raises(SettingsError, match="is your home directory, or holds it"):
            built(workspace, workspace_mode="s3")
    assert "your home directory" in caplog.text
    assert built(home / "project")[0] is not None


def test_none_says_nothing_and_no_workspace_is_asked_for_nothing(folder, caplog):
    assert built(folder, workspace_mode="none") == (None, ["./run", "x"])
    assert built(None) == (None, ["./run", "x"])
    assert caplog.messages == []


def test_s3_needs_a_role_and_says_so_in_words_of_torchx(folder):
    with pytest.raises(SettingsError, match="job_role_arn is empty"):
        built(folder, bucket="mine", workspace_mode="s3")


@pytest.mark.parametrize("mode", ["S3", "yes", ""])
def test_another_mode_is_refused_with_those_there_are(mode, folder):
    with pytest.raises(SettingsError, match="workspace_mode is .*: auto, none, docker, s3 are"):
        built(folder, workspace_mode=mode)


def test_options_on_workspaces_are_among_those_of_the_scheduler(runner):
    options = dict(runner.scheduler_run_opts("aws_batch"))
    assert set(WorkspaceOpts.as_runopts()._opts) <= set(options)
    assert options["workspace_mode"].default == "auto"
    assert "python3, curl or wget" in options["workspace_mode"].help


# --- docker -------------------------------------------------------------------------------------


def test_docker_without_a_daemon_is_told_in_a_sentence(folder, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", NO_DOCKER)
    with pytest.raises(SettingsError, match=r"^workspace_mode is docker, and .*start its daemon"):
        built(folder, workspace_mode="docker")
    with pytest.raises(SettingsError, match="start its daemon"):
        BatchScheduler("tests").push_images({"sha256:1": ("repo", "1")})


def test_an_image_of_this_machine_is_pushed_to_the_repository_that_is_named(
    runner, aws, monkeypatch
):
    monkeypatch.setenv("DOCKER_HOST", NO_DOCKER)
    image = f"sha256:{'1' * 64}"
    app = AppDef("app", [role(None), role(None, name="two")])
    app.roles[0].image = image
    info = runner.dryrun(app, "aws_batch", cfg(image_repo="example.com/mine"))
    pushed = f"example.com/mine:{'1' * 64}"
    assert info.request.images_to_push == {image: ("example.com/mine", "1" * 64)}
    assert pushed in json.dumps(info.request.definition)
    assert image not in json.dumps(info.request.definition)
    with pytest.raises(SettingsError, match="start its daemon"):
        runner.schedule(info)
    with pytest.raises(SettingsError, match=f"image_repo is None: {image} is an image of this"):
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


def test_torchx_run_needs_no_docker_and_takes_the_working_directory_along(aws, folder):
    run = ("run", "-s", "aws_batch", "-cfg", f"queue={QUEUE}", "--dryrun", "--json")
    done = torchx(*run, "utils.sh", "--image", "alpine:3", "cat", "value", folder=folder)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    request = shown["request"]["job"]["containerOverrides"]["command"]
    fetched, plain = unwrap(request)
    assert plain[:2] == ["sh", "-c"]
    assert fetched.bucket == "farcall-local"
