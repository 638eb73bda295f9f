"""The TorchX pages: their example runs, and their tables have every option.

Starts the example's job on the local AWS emulator, because the page shows its output.
"""

import re
import shlex
from pathlib import Path

import pytest

from farcall.torchx.batch.scheduler import BatchScheduler
from farcall.torchx.kubernetes.scheduler import KubernetesScheduler
from tests.torchx.apps import QUEUE

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "".join((DOCS / name).read_text() for name in ("torchx.md", "torchx-kubernetes.md"))


def block(language):
    """Return the first example in a language."""
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def test_example_runs_as_documented(torchx):
    Path("hello.py").write_text(block("python"))
    [line] = re.findall(r"^\$ torchx (run .*hello\.py.*)$", PAGE, re.MULTILINE)
    done = torchx(*shlex.split(line.replace("my-queue", QUEUE)))
    assert done.returncode == 0, done.stderr
    assert "greeter/0 node 0 of 2 meets the others at localhost" in done.stderr


@pytest.mark.parametrize(
    ("head", "scheduler"),
    [("| option |", BatchScheduler), ("| `kubernetes_job` option |", KubernetesScheduler)],
)
def test_table_lists_exactly_all_options(head, scheduler):
    table = PAGE.partition(f"{head} what it does")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    named = [name for row in rows for name in re.findall(r"`(\w+)[=`]", row)]
    assert sorted(named) == sorted(name for name, _ in scheduler("").run_opts())
