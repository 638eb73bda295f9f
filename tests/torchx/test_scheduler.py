"""Schedulers that TorchX finds by their entry points, and their imports.

Starts one Python process, because this one has already imported farcall.
"""

import subprocess
import sys

import pytest
from torchx.runner import Runner, get_runner
from torchx.schedulers import kubernetes_scheduler

from farcall.torchx.batch.scheduler import BatchScheduler
from farcall.torchx.kubernetes.namespaces import Namespaces
from farcall.torchx.kubernetes.scheduler import KubernetesScheduler
from torchx_plugins.schedulers.aws_batch import aws_batch
from torchx_plugins.schedulers.kubernetes_job import kubernetes_job

FACTORIES = {
    "aws_batch": (aws_batch, BatchScheduler),
    "kubernetes_job": (kubernetes_job, KubernetesScheduler),
}

IMPORTED = """
import sys, torchx_plugins.schedulers.aws_batch, torchx_plugins.schedulers.kubernetes_job
print(*sorted(name for name in sys.modules if name.partition(".")[0] in
    ("farcall", "aiobotocore", "botocore", "pydantic")))
"""


def test_torchx_finds_all_schedulers():
    with get_runner() as runner:
        found = runner.scheduler_backends()
    assert found[:2] == ["aws_batch", "kubernetes_job"]
    assert {"local_docker", "local_cwd", "slurm", "kubernetes"} <= {*found}


def test_builtin_kubernetes_scheduler_is_kept():
    with get_runner() as runner:
        found = runner._scheduler("kubernetes")
        assert type(found) is kubernetes_scheduler.KubernetesScheduler
        assert runner.scheduler_run_opts("kubernetes").get("queue").is_required
        assert not runner.scheduler_run_opts("kubernetes_job").get("queue").is_required


def test_plugin_modules_import_no_farcall():
    found = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("params", [{}, {"home": "/tmp", "unknown": 1}])
def test_factory_accepts_torchx_parameters(name, params):
    factory, kind = FACTORIES[name]
    made = factory("session", **params)
    assert isinstance(made, kind)
    assert (made.backend, made.session_name) == (name, "session")


def test_runner_accepts_unregistered_factory():
    with Runner("me", {"aws_batch": aws_batch}) as runner:
        assert runner.scheduler_run_opts("aws_batch").get("queue").is_required


def test_app_id_namespace_overrides_settings(monkeypatch):
    monkeypatch.setenv("FARCALL_NAMESPACE", "mine")
    places = Namespaces()
    assert places.settings({}, "ml").namespace == "ml"
    assert places.settings({}).namespace == "mine"
    assert places.settings({"context": "c", "namespace": None, "other": 1}).context == "c"
    assert places.settings({}).backend == "kubernetes"
