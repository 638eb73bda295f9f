"""The peer's venv, made again in a temporary folder, about 140 MB."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.stage import Stage

PACKAGES = ("covalent-awsbatch-plugin==0.42.0", "covalent==0.240.0", "fastapi<0.132", "numpy")


@contextlib.contextmanager
def installed(stage: Stage) -> Iterator[tuple[Stage, str]]:
    """Install the peer; give a stage on which it finds a home of its own, and its Python.

    A venv named by ``BENCHMARK_PEER_VENV`` is used as it is.
    """
    with tempfile.TemporaryDirectory(prefix="farcall-benchmark-") as folder:
        made = os.environ.get("BENCHMARK_PEER_VENV")
        venv = made or f"{folder}/venv"
        python = f"{venv}/{'Scripts' if os.name == 'nt' else 'bin'}/python"
        if not made:
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            subprocess.run([python, "-m", "pip", "install", "-qq", *PACKAGES], check=True)
        environment = {
            **stage.environment,
            "HOME": folder,  # Covalent writes its configuration and data there
            "COVALENT_CONFIG_DIR": f"{folder}/configuration",
        }
        environment.pop("PYTHONPATH", None)
        yield replace(stage, environment=environment), python
