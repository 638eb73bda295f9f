"""How Covalent finds, configures, stores and calls the executor.

Starts no Covalent server: new Python processes for the configuration file, which Covalent reads
on import, and the local AWS emulator for tasks that Covalent runs directly.
"""

import asyncio
import functools
import json
import os
import subprocess
import sys
import textwrap
import tomllib
import uuid
from pathlib import Path

import covalent as ct
import pytest
from covalent._workflow.transportable_object import TransportableObject
from covalent.executor.utils.wrappers import wrapper_fn

import farcall.awsbatch
from farcall import JobLostError, SettingsError
from farcall.config.settings import options_of
from farcall.covalent.plugin import database
from farcall.model.errors import FarcallError
from farcall.model.names import BATCH
from farcall.model.workflows import Workflow
from tests.support.covalent_server import CovalentServer
from tests.support.proxy import Proxy

EXECUTOR = ct.executor.AWSBatchExecutor
MANAGER = sys.modules["covalent.executor"]._executor_manager


@pytest.fixture
def small(aws):
    return {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02, "poll_freq": 1}


@pytest.fixture
def client(tmp_path):
    """Run code in a new process with a separate Covalent home; return the parsed output.

    ``client(code, conf="", **environment)``; ``conf`` is the existing configuration.
    """
    home = tmp_path / "home"
    bound = CovalentServer(home).environment
    file = Path(bound["COVALENT_CONFIG_DIR"]) / "covalent.conf"

    def run(code, conf="", **environment):
        if conf:
            file.parent.mkdir(parents=True)
            file.write_text(textwrap.dedent(conf))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
            env={**os.environ, **bound, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    run.file = file
    return run


# --- discovery -----------------------------------------------------------------------------------


def test_covalent_finds_the_executor():
    assert EXECUTOR is farcall.awsbatch.AWSBatchExecutor
    assert isinstance(MANAGER.get_executor("awsbatch"), EXECUTOR)
    assert EXECUTOR.SUPPORTS_MANAGED_EXECUTION
    assert "awsbatch" == EXECUTOR().short_name()


def test_defaults_are_written_to_covalents_configuration():
    section = tomllib.loads(Path(ct.get_config("sdk.config_file")).read_text())
    section = section["executors"]["awsbatch"]
    optional = {
        "stuck_timeout_s",
        "queue_patience",
        "priority",
        "packages",
    }  # TOML has no null value
    own = {"queue": "batch_queue", "image": "container_image_uri"}
    names = {own.get(name, name) for name in options_of(BATCH)}
    assert names - optional | {"log_stdout", "log_stderr"} == {*section}
    documented = {
        "batch_queue": "covalent-batch-queue",
        "vcpu": 2,
        "memory": 3.75,
        "time_limit": 300,
        "retry_attempts": 3,
        "poll_freq": 10,
        "region": "",
        "retry_on": "failure",
    }
    assert documented == {name: section[name] for name in documented}


# --- sources -------------------------------------------------------------------------------------


def test_option_sources_have_precedence(client):
    code = """
        import json
        import covalent as ct

        names = ("vcpu", "memory", "batch_queue", "batch_job_role_name", "prefix", "region",
                 "batch_job_log_group_name", "poll_freq", "tags")
        make = ct.executor.AWSBatchExecutor
        found = [make(), make(memory=10, prefix="")]
        print(json.dumps([[getattr(one, name) for name in names] for one in found]))
    """
    conf = """
        [executors.awsbatch]
        vcpu = 4
        memory = 8.0
        batch_queue = "mine"
        batch_job_role_name = ""
        region = "eu-west-1"
        poll_freq = 0

        [executors.awsbatch.tags]
        team = "ours"
    """
    bare, given = client(code, conf, FARCALL_MEMORY="9", FARCALL_PREFIX="env", AWS_REGION="x-1")
    group = "covalent-batch-job-logs"
    assert [4, 9, "mine", "", "env", "eu-west-1", group, 0, {"team": "ours"}] == bare
    assert [4, 10, "mine", "", "", "eu-west-1", group, 0, {"team": "ours"}] == given
    section = tomllib.loads(client.file.read_text())["executors"]["awsbatch"]
    kept = {"vcpu": 4, "batch_queue": "mine", "batch_job_role_name": "", "poll_freq": 0}
    assert kept == {name: section[name] for name in kept}
    assert 0 == section["num_gpus"]


def test_unknown_configuration_key_logs_warning(client):
    code = """
        import json
        import logging

        told = []
        logging.getLogger("farcall").addHandler(logging.NullHandler())
        logging.getLogger("farcall").handlers[0].handle = lambda r: told.append(r.getMessage())

        import covalent as ct

        found = ct.executor._executor_manager.get_executor("awsbatch")
        print(json.dumps([told, ct.executor.AWSBatchExecutor().vcpu, found.vcpu]))
    """
    (told,), *options = client(code, "[executors.awsbatch]\nvcpus = 2\nvcpu = 4\n")
    assert [4, 4] == options
    assert told == (
        f"{client.file}, section [executors.awsbatch] has an unknown option 'vcpus', which has no "
        "effect; did you mean vcpu?"
    )


def test_invalid_configuration_value_names_section(client):
    code = """
        import json
        import covalent as ct

        found = []
        by_name = lambda: ct.executor._executor_manager.get_executor("awsbatch").settings
        for make in (ct.executor.AWSBatchExecutor, by_name):
            try:
                make()
            except ValueError as error:
                found.append([type(error).__name__, str(error)])
        print(json.dumps(found))
    """
    found = client(code, '[executors.awsbatch]\nmemory = "much"\n')
    assert ["SettingsError"] * 2 == [name for name, _ in found]
    for _, text in found:
        assert "memory is 'much'" in text
        assert f"comes from [executors.awsbatch] of {client.file}" in text


# --- rejection -----------------------------------------------------------------------------------


def test_unknown_option_is_rejected():
    with pytest.raises(
        SettingsError, match="AWSBatchExecutor has an unknown option 'vcpus'.*vcpu"
    ):
        EXECUTOR(vcpus=2)


@pytest.mark.parametrize(
    ("option", "value"), [("retry_attempts", 0), ("batch_queue", "no such/queue!")]
)
def test_invalid_value_names_option(option, value):
    with pytest.raises(SettingsError, match=f"{option} is {value!r}") as caught:
        EXECUTOR(**{option: value})
    assert option == caught.value.option
    assert f"AWSBatchExecutor({option}=...)" in str(caught.value)


def test_old_plugin_image_is_rejected():
    image = "public.ecr.aws/covalent/covalent-executor-base:stable"
    with pytest.raises(SettingsError, match="farcall's Dockerfile") as caught:
        EXECUTOR(container_image_uri=image)
    assert image in str(caught.value)
    assert "container_image_uri" == caught.value.option


def test_several_nodes_are_rejected():
    with pytest.raises(SettingsError, match="a Covalent task runs on one node") as caught:
        EXECUTOR(nodes=2)
    assert "nodes" == caught.value.option


# --- storage -------------------------------------------------------------------------------------


def test_attributes_round_trip_as_json():
    executor = EXECUTOR(
        vcpu=4,
        tags={"team": "ours"},
        environment=["MODE=exact", "HOME"],
        stuck_timeout_s=None,
        log_stdout="out.log",
    )
    stored = json.loads(json.dumps(executor.to_dict()))
    assert "awsbatch" == stored["short_name"]
    again = EXECUTOR().from_dict(stored)
    assert executor.__dict__ == again.__dict__
    assert executor.settings == again.settings
    assert 4 == again.settings.vcpu
    assert {"MODE": "exact", "HOME": os.environ["HOME"]} == again.settings.environment


def test_attributes_contain_no_credentials(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "very-secret")
    assert "very-secret" not in json.dumps(EXECUTOR().to_dict())


def test_boto_options_have_profile_and_region(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert {"region_name": "eu-west-3"} == EXECUTOR().boto_session_options()
    options = EXECUTOR(profile="work", region="us-west-1").boto_session_options()
    assert {"region_name": "us-west-1", "profile_name": "work"} == options


# --- direct calls --------------------------------------------------------------------------------


class Direct:
    """Calls an executor like Covalent's legacy runner, but without a database."""

    def __init__(self, executor, folder, monkeypatch):
        self.executor = executor
        self.folder = folder
        self.handles = []
        self.dispatch_id = str(uuid.uuid4())
        monkeypatch.setattr(database, "record_job", self._store)
        monkeypatch.setattr(database, "stored", self._read)

    async def call(self, function, *args, before=(), after=(), **kwargs):
        calls = [
            [(*map(TransportableObject, hook[:3]), hook[3]) for hook in hooks]
            for hooks in (before, after)
        ]
        self.executor._init_runtime(loop=asyncio.get_running_loop(), cancel_pool=None)
        return await self.executor._execute(
            function=functools.partial(wrapper_fn, TransportableObject(function), *calls),
            args=[TransportableObject(arg) for arg in args],
            kwargs={name: TransportableObject(value) for name, value in kwargs.items()},
            dispatch_id=self.dispatch_id,
            results_dir=str(self.folder),
            node_id=3,
        )

    async def _store(self, dispatch_id, node, executor, job_id):
        assert self.executor.ui_url == json.loads(executor)["attributes"]["ui_url"]
        assert (self.dispatch_id, 3) == (dispatch_id, node)
        self.handles.append(job_id)

    def _read(self, dispatch_id, nodes):
        assert (self.dispatch_id, [3]) == (dispatch_id, [*nodes])
        return database.Stored({}, Workflow("direct", dispatch_id))


@pytest.fixture
def direct(small, tmp_path, monkeypatch):
    return lambda **options: Direct(EXECUTOR(**{**small, **options}), tmp_path, monkeypatch)


@pytest.mark.core
async def test_direct_call_returns_result_and_output(direct, tmp_path):
    def work(left, *, right, noted=0):
        print("out", flush=True)
        print("err", file=sys.stderr)
        return left + right + noted

    one = direct(log_stdout="out.log")
    before = [(lambda: 4, [], {}, "noted"), (print, ["before"], {}, "")]
    value, stdout, stderr, status = await one.call(
        work, 1, right=2, before=before, after=[(print, ["after"], {}, "")]
    )
    assert isinstance(value, TransportableObject)
    assert (7, "before\nout\nafter\n", "err\n") == (value.get_deserialized(), stdout, stderr)
    assert ct.status.COMPLETED == status
    assert stdout == (tmp_path / one.dispatch_id / "out.log").read_text()

    (job_id,) = one.handles
    for _ in range(100):
        known = await one.executor.get_status(job_id)
        if known[0] == "SUCCEEDED":
            break
        await asyncio.sleep(0.05)
    assert ("SUCCEEDED", 0) == known


async def test_failed_direct_call_has_traceback(direct):
    def work():
        print("out")
        print("err", file=sys.stderr)
        raise ValueError("no good")

    value, stdout, stderr, status = await direct().call(work)
    assert (None, "out\n", ct.status.FAILED) == (value, stdout, status)
    assert stderr.startswith("err\nTraceback")
    assert "ValueError: no good" in stderr


async def test_direct_call_is_cancelled(direct):
    def work():
        import time

        time.sleep(600)  # until the test ends it

    one = direct()
    running = asyncio.ensure_future(one.call(work))
    while not one.handles:
        await asyncio.sleep(0.02)
        assert not running.done()
    metadata = {"dispatch_id": one.dispatch_id, "node_id": 3}
    # Covalent accepts only True as success.
    assert True is await one.executor.cancel(metadata, one.handles[0])
    value, _, _, status = await running
    assert (None, ct.status.CANCELLED) == (value, status)


async def test_direct_run_requires_covalent_wrapper(small):
    metadata = {"dispatch_id": "d", "node_id": 0, "results_dir": ""}
    with pytest.raises(FarcallError, match=r"farcall\.BatchExecutor"):
        await EXECUTOR(**small).run(print, [], {}, metadata)
    with pytest.raises(FarcallError, match="was not prepared"):
        await EXECUTOR(**small).submit_task(metadata, {})
    with pytest.raises(FarcallError, match="no job of node 0"):
        await EXECUTOR(**small).query_result(metadata)


@pytest.mark.timing(lost_after_s=0.2)
async def test_job_unknown_to_batch_is_lost(direct, aws):
    command = {"containerProperties": {"command": ["true"]}}
    with Proxy(aws.endpoint_url) as proxy:
        proxy.changes["describejobs"] = lambda answer: answer["jobs"].clear()
        one = direct(endpoint_url=proxy.url, job_definition_extra=command)
        *_, stderr, status = await one.call(print)
        assert ct.status.FAILED == status
        assert "JobLostError: Batch does not list the job" in stderr
        with pytest.raises(JobLostError, match="does not know job"):
            await one.executor.get_status(one.handles[0])
