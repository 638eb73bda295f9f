"""The complete example of docs/kubernetes.md, as a reader types it.

Starts the local Kubernetes emulator, because the example creates objects in a cluster.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import farcall_local
from tests.docs.pages import ROOT, Block, blocks, run_installed

PAGE = ROOT / "docs" / "kubernetes.md"


def _commands(aws: farcall_local.LocalAWS) -> list[str]:
    """Return the commands below the heading without comments, with the emulators' names."""
    context = json.loads(run_installed("kubectl", "config", "view", "-o", "json").stdout)
    values = {
        "my-cluster": context["current-context"],
        "my-bucket": "farcall-local",
        "https://minio.example.com": aws.endpoint_url,
        # `kubectl create` sends protobuf, which the emulator does not support.
        "kubectl create namespace science": "kubectl apply -f namespace.yaml",
    }
    text = PAGE.read_text(encoding="utf-8")
    start = text[: text.index("## A complete example")].count("\n")
    block = next(each for each in blocks(PAGE) if each.line > start)
    code = block.code
    for placeholder, value in values.items():
        code = code.replace(placeholder, value)
    return [re.sub(r"\s+#.*", "", line.removeprefix("$ ")) for line in code.splitlines()]


def _script() -> Block:
    return next(each for each in blocks(PAGE) if each.script == "cluster.py")


def _write_keys(path: Path) -> None:
    """Write the keys into the Secret, as a reader does in an editor."""
    text = path.read_text()
    for placeholder, name in {
        "key": "AWS_ACCESS_KEY_ID",
        "secret": "AWS_SECRET_ACCESS_KEY",
    }.items():
        text = text.replace(f"write-the-{placeholder}-here", os.environ[name])
    path.write_text(text)


@pytest.mark.slow
def test_complete_example_runs(kubernetes, tmp_path, monkeypatch):
    (tmp_path / "cluster.py").write_text(_script().code)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "science"}}
    (tmp_path / "namespace.yaml").write_text(json.dumps(namespace))
    monkeypatch.chdir(tmp_path)
    commands = _commands(kubernetes)
    for name in os.environ:
        if name.startswith("FARCALL_") or name == "AWS_ENDPOINT_URL":
            monkeypatch.delenv(name)
    printed = {}
    try:
        for command in commands:
            if command.startswith("nano "):
                _write_keys(tmp_path / "s3-secret.yaml")
                continue
            done = run_installed("bash", "-c", command)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            printed[command] = done.stdout
    finally:
        run_installed("kubectl", "delete", "namespace", "science", "--wait=false")
    assert printed["python cluster.py"].split() == [str(sum(x**10 for x in range(10)))]
    assert "simulate" in printed["farcall list"]
