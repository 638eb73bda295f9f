"""Covalent's experiment with jobs in containers of an image that holds Python and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import farcall.local
from farcall.cli.demos.covalent_server import CovalentServer

# With the versions of this environment, whose libraries unpickle what comes back.
EXPERIMENT = """
import sys
from importlib.metadata import version

import covalent as ct

executor = ct.executor.AWSBatchExecutor(
    container_image_uri="", stock_image_uri=sys.argv[1], vcpu=2, memory=3.75, time_limit=300
)
deps = [f"{name}=={version(name)}" for name in ("numpy", "scikit-learn")]


@ct.electron(executor=executor, deps_pip=ct.DepsPip(packages=deps))
def train_svm(data, C, gamma):
    from sklearn import svm

    X, y = data
    print("trained by", sys.executable)
    return svm.SVC(C=C, gamma=gamma).fit(X[90:], y[90:])


@ct.electron
def load_data():
    from numpy.random import permutation
    from sklearn import datasets

    iris = datasets.load_iris()
    order = permutation(iris.target.size)
    return iris.data[order], iris.target[order]


@ct.electron
def score_svm(data, classifier):
    return classifier.score(data[0][:90], data[1][:90])


@ct.lattice
def run_experiment(C=1.0, gamma=0.7):
    data = load_data()
    return score_svm(data, train_svm(data, C, gamma))


dispatch_id = ct.dispatch(run_experiment)()
done = ct.get_result(dispatch_id, wait=True)
for node in done.get_all_node_results():
    print(node["node_name"], node["error"] or node["stdout"])
print(done.result)
"""


@pytest.mark.slow  # fetches scikit-learn once, and starts Covalent's server
def test_the_experiment_runs_in_the_base_image(base_image: str, tmp_path: Path) -> None:
    pytest.importorskip("covalent", reason="pip install 'farcall[covalent]'")
    script = tmp_path / "experiment.py"
    script.write_text(EXPERIMENT)
    with farcall.local.start(cpus=4, docker=True) as aws:
        account = {**aws.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        with CovalentServer(tmp_path / "covalent", account) as server:
            done = subprocess.run(
                [sys.executable, str(script), base_image],
                env={**os.environ, **account, **server.environment},
                capture_output=True,
                text=True,
                check=False,
            )
    assert done.returncode == 0, done.stderr
    assert "trained by" in done.stdout
    assert 0.5 < float(done.stdout.splitlines()[-1]) <= 1
