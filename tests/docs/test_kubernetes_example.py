"""The complete example of docs/kubernetes.md, as a reader types it.

Starts the local Kubernetes emulator, because the example creates objects in a cluster.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import farcall_local
from tests.docs.pages import ROOT, Block, blocks, run_installed

PAGE = ROOT / "docs" / "kubernetes.md"


def _commands() -> list[str]:
    """Return the commands below the heading without comments."""
    text = PAGE.read_text(encoding="utf-8")
    start = text[: text.index("## A complete example")].count("\n")
    block = next(each for each in blocks(PAGE) if each.line > start)
    return [
        # `kubectl create` sends protobuf, which the emulator does not support.
        re.sub(r"\s+#.*", "", line.removeprefix("$ ")).replace(
            "kubectl create namespace science", "kubectl apply -f namespace.yaml"
        )
        for line in block.code.splitlines()
    ]


def _script() -> Block:
    return next(each for each in blocks(PAGE) if each.script == "cluster.py")


def _fill(folder: Path, aws: farcall_local.LocalAWS) -> None:
    """Fill context, bucket, endpoint and keys into the files, as their comments instruct."""
    context = json.loads(run_installed("kubectl", "config", "view", "-o", "json").stdout)
    values = {
        "my-cluster": context["current-context"],
        "my-bucket": "farcall-local",
        "https://minio.example.com": aws.endpoint_url,
        "write-the-key-here": os.environ["AWS_ACCESS_KEY_ID"],
        "write-the-secret-here": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    for path in folder.glob("*.*"):
        text = path.read_text()
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        path.write_text(text)


@pytest.mark.slow
def test_complete_example_runs(kubernetes, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "docs" / "kubernetes", tmp_path / "docs" / "kubernetes")
    _fill(tmp_path / "docs" / "kubernetes", kubernetes)
    (tmp_path / "cluster.py").write_text(_script().code)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "science"}}
    (tmp_path / "namespace.yaml").write_text(json.dumps(namespace))
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("FARCALL_") or name == "AWS_ENDPOINT_URL":
            monkeypatch.delenv(name)
    printed = {}
    try:
        for command in _commands():
            done = run_installed("bash", "-c", command)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            printed[command] = done.stdout
    finally:
        run_installed("kubectl", "delete", "namespace", "science", "--wait=false")
    assert printed["python cluster.py"].split() == [str(sum(x**10 for x in range(10)))]
    assert "simulate" in printed["farcall list"]
