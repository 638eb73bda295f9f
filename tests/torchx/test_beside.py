"""Other TorchX's and other Pythons: what farcall brings answers, or is out of the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pythons import find

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UV = (sys.executable, "-m", "uv")

OF_2024 = {
    *("local_docker", "local_cwd", "slurm", "kubernetes", "kubernetes_mcad"),
    *("aws_batch", "aws_sagemaker", "gcp_batch", "ray", "lsf"),
}

# Here, because tests get another home: what was downloaded once shall not be downloaded again.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))
}


def uv(*arguments):
    return subprocess.run(
        [*UV, *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def test_torchx_of_2024_keeps_all_schedulers_of_its_own():
    wanted = ("--with", "torchx==0.7.0", "--with", "setuptools<81", "--with", str(ROOT))
    program = "from torchx.schedulers import get_scheduler_factories as f; print(*f())"
    done = uv(
        "run", "--isolated", "--no-project", *wanted, "python", "-W", "ignore", "-c", program
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == OF_2024


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_scheduler_answers_on_each_python(version):
    done = uv(
        *("run", "--isolated", "--no-project", "--no-python-downloads", "--python", find(version)),
        *("--with", f"{ROOT}[torchx]", "torchx", "runopts", "aws_batch"),
    )
    assert done.returncode == 0, done.stderr
    assert "queue=QUEUE (str)" in done.stdout
