from __future__ import annotations

import subprocess
import sys

import pytest
from torchx.runner import Runner, get_runner

from farcall.torchx.batch.scheduler import BatchScheduler
from torchx_plugins.schedulers.aws_batch import aws_batch

IMPORTED = """
import sys, torchx_plugins.schedulers.aws_batch
print(*sorted(name for name in sys.modules if name.partition(".")[0] in
    ("farcall", "aiobotocore", "botocore", "pydantic")))
"""


def test_torchx_finds_the_scheduler_and_keeps_its_own():
    with get_runner() as runner:
        found = runner.scheduler_backends()
    assert found[0] == "aws_batch"
    assert {"local_docker", "local_cwd", "slurm", "kubernetes"} <= {*found}


def test_what_torchx_imports_on_every_command_imports_nothing_of_farcall():
    found = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []


@pytest.mark.parametrize("params", [{}, {"home": "/tmp", "unknown": 1}])
def test_the_factory_takes_what_torchx_hands_to_every_scheduler(params):
    made = aws_batch("session", **params)
    assert isinstance(made, BatchScheduler)
    assert (made.backend, made.session_name) == ("aws_batch", "session")


def test_a_runner_takes_the_factory_without_any_registration():
    with Runner("me", {"aws_batch": aws_batch}) as runner:
        assert runner.scheduler_run_opts("aws_batch").get("queue").is_required
