"""A mirrored environment with ``packages="local"``.

Starts the local AWS emulator. The test is slow, because it installs an environment.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WANTED = (
    *("numpy", "pandas", "scikit-learn", "pyarrow", "matplotlib", "requests", "dask[complete]"),
    *("sqlalchemy", "networkx", "tqdm", "jupyter-client"),
)
IMPORTED = (
    *("numpy", "pandas", "sklearn.svm", "pyarrow.parquet", "matplotlib.pyplot", "requests"),
    *("dask.dataframe", "distributed", "sqlalchemy", "networkx", "tqdm", "jupyter_client"),
)
AT_LEAST = 60
INSTALLERS = {"pip", "setuptools", "uv", "wheel"}  # not needed in a job

# Only the job's own packages are compared; the local AWS emulator's Python has others.
SCRIPT = """
import asyncio, json, sys
from farcall import BatchExecutor


def versions(site):
    from importlib.metadata import distributions

    return {each.name: each.version for each in distributions(path=[site])}


def look(names):
    import importlib, subprocess, sys

    (site,) = (path for path in sys.path if path.startswith(sys.prefix))
    found = [importlib.import_module(name).__file__ for name in names]
    elsewhere = [path for path in found if not path.startswith(site)]
    tool = subprocess.run(["tqdm", "--version"], capture_output=True, text=True, check=True)
    return versions(site), elsewhere, tool.stdout.strip()


async def main():
    async with BatchExecutor(vcpu=1, memory=2, packages="local") as executor:
        there, elsewhere, tool = await executor.task(look)(sys.argv[2:])
    here = versions(sys.argv[1])
    print(json.dumps({"here": here, "there": there, "elsewhere": elsewhere, "tool": tool}))


asyncio.run(main())
"""


@pytest.mark.slow
def test_large_environment_is_mirrored(aws, tmp_path):
    """The environment also contains the requirements of farcall's client."""
    folder = tmp_path / "workflow"
    python = folder / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    wanted = [*WANTED, "-r", str(ROOT / "pyproject.toml")]
    subprocess.run(
        [*uv, "pip", "install", "--quiet", "--python", str(python), *wanted], check=True
    )
    (site,) = folder.glob("lib/python*/site-packages")
    script = tmp_path / "workflow.py"
    script.write_text(SCRIPT)

    done = subprocess.run(
        [python, script, str(site), *IMPORTED],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in SOURCES),
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        stdout=subprocess.PIPE,
        check=True,
    )

    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told["there"]) >= AT_LEAST
    assert told["there"] == {k: v for k, v in told["here"].items() if k not in INSTALLERS}
    assert told["elsewhere"] == []
    assert told["tool"] == told["here"]["tqdm"]


SOURCES = ("executor", "runtime_image")
