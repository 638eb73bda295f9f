"""``farcall covalent demo``: the experiment of Covalent's document, on a real Covalent server.

The scripts below are a user's own: they run as programs of their own, and nothing in them is
special to the demo. Covalent is imported by them and by the server, never here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import botocore.session
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from farcall import local
from farcall.cli.demos import common
from farcall.cli.demos import covalent_scripts as experiment
from farcall.cli.demos.covalent_server import CovalentServer
from farcall.client.console import Console
from farcall.covalent.api import Covalent
from farcall.local import names
from farcall.model.errors import FarcallError

_PYTHONS = ((3, 10), (3, 12))
"""The first and the last version that Covalent 0.240 supports."""

_SCRIPT_TIMEOUT_S = 180
_WATCH_S = 0.5
_SHOWN_LINES = 30

_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "ecs-tasks.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}

_NEXT = (
    ("farcall covalent demo --keep", "the same, with Covalent's page kept open"),
    ("farcall demo --page", "farcall's own page, with workflows to look at"),
    ("farcall local -- python flow.py", "your own script on such an embedded AWS"),
    ("farcall doctor", "on your AWS account: are bucket, queue, roles and image there?"),
)


def run(*, keep: bool = False) -> None:
    """Run the demo: the document's experiment, then an electron that fails.

    Args:
        keep: Serve Covalent's page until Ctrl-C.

    Raises:
        FarcallError: This Python is not one of Covalent's, or something did not start or end as
            it should.
        ModuleNotFoundError: An extra is not installed.
    """
    _check()
    console = Console(markup=True, highlight=True)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_unwinding())
        name = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="farcall-covalent-", ignore_cleanup_errors=True)
        )
        home = Path(name).resolve()
        stack.enter_context(common.environment(_own(home)))
        with console.status("Starting an embedded AWS and a Covalent server"):
            aws, server = _start(stack, home)
        console.print(f"An embedded AWS runs on [cyan]{aws.endpoint_url}[/], with the bucket,")
        console.print("the queue, the roles and the log group that the document names.")
        console.print(f"A Covalent server runs on [cyan]{server.address}[/].\n")
        _experiment(console, server)
        _failure(console, server)
        console.print(_jobs_table())
        console.print(f"All of it took {time.monotonic() - began:.1f} s.\n")
        console.print(_page_panel(server, keep=keep))
        if keep:
            _serve(console, aws, server)
    if not keep:
        console.print(common.next_steps(_NEXT))


def _check() -> None:
    if not _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        raise FarcallError(
            f"Covalent 0.240 supports Python 3.10 to 3.12; this is {sys.version.split()[0]}. "
            "Name another: make demo-covalent VENV=.venv-3.12 PYTHON=python3.12"
        )
    # A directory called covalent in the working directory would do as a package, but has no file.
    for module in ("covalent", "sklearn", "numpy"):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(
                f"the demo needs {module}: pip install 'farcall[covalent,demo]'", name=module
            )
    local.launch.require_extra()


# --- what runs beside it ----------------------------------------------------------------------


def _own(home: Path) -> dict[str, str]:
    """Return an environment in which nothing is the user's: no account, options or files."""
    (home / "tmp").mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "COVALENT_", "FARCALL_", "XDG_"))
    }
    return {**kept, "HOME": str(home), "TMPDIR": str(home / "tmp")}


def _start(stack: contextlib.ExitStack, home: Path) -> tuple[local.LocalAWS, CovalentServer]:
    aws = stack.enter_context(local.start())
    # Only what points AWS's own tools at it: farcall's options are in the scripts.
    points = {name: value for name, value in aws.environment.items() if "FARCALL_" not in name}
    os.environ.update(points)
    server = CovalentServer(home / "covalent", {"HOME": str(home)})
    os.environ.update(server.environment)
    configuration = server.home / "config" / "covalent.conf"
    configuration.parent.mkdir(parents=True)
    configuration.write_text(experiment.SECTION)
    with ThreadPoolExecutor(1) as pool:
        furnished = pool.submit(_furnish)
        stack.enter_context(server)
        furnished.result()
    return aws, server


def _furnish() -> None:
    """Create what the document's chapter 4 asks for."""
    session = botocore.session.get_session()
    session.create_client("s3").create_bucket(Bucket=experiment.BUCKET)
    session.create_client("logs").create_log_group(logGroupName=experiment.LOG_GROUP)
    iam = session.create_client("iam")
    for role in (experiment.EXECUTION_ROLE, experiment.JOB_ROLE):
        iam.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(_TRUST))
    batch = session.create_client("batch")
    batch.create_job_queue(
        jobQueueName=experiment.QUEUE,
        priority=1,
        computeEnvironmentOrder=[{"order": 1, "computeEnvironment": names.COMPUTE_ENVIRONMENT}],
    )
    requirements = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "2048"}]
    batch.register_job_definition(
        jobDefinitionName=experiment.DEFINITION,
        type="container",
        containerProperties={"image": names.IMAGE, "resourceRequirements": requirements},
    )


def _run_script(server: CovalentServer, name: str, text: str) -> str:
    """Run a script as a program of its own; return what it printed."""
    script = server.home.parent / name
    script.write_text(text)
    command = [sys.executable, str(script)]
    process = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=script.parent,
        # Covalent's libraries have warnings about each other.
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        # A Ctrl-C is for the demo, which ends its script itself.
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=_SCRIPT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise FarcallError(
            f"{name} had not ended after {_SCRIPT_TIMEOUT_S} s.\n{_tail(server.log)}"
        ) from None
    finally:
        process.kill()
        process.communicate()
    if process.returncode:
        raise FarcallError(
            f"{name} ended with exit code {process.returncode}.\n{_tail(stderr)}\n"
            f"The end of the server's log:\n{_tail(server.log)}"
        )
    return stdout.strip()


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_SHOWN_LINES:])


# --- what is shown ----------------------------------------------------------------------------


def _experiment(console: Console, server: CovalentServer) -> None:
    script = experiment.SVM.replace("@NUMPY@", version("numpy"))
    script = script.replace("@SKLEARN@", version("scikit-learn"))
    console.print(Rule("svm.py, as the document has it"))
    console.print(_code(script, "python"))
    console.print(Rule("$ python svm.py"))
    with console.status("running"):
        printed = _run_script(server, "svm.py", script)
    console.print(printed, markup=False)
    console.print(_nodes_table(server, "Its electrons, as Covalent describes them"))
    console.print(f"The model was trained on Batch; its score is [bold green]{printed}[/]\n")


def _failure(console: Console, server: CovalentServer) -> None:
    console.print(Rule("covalent.conf, where options can be as well"))
    console.print(_code(experiment.SECTION.rstrip(), "toml"))
    console.print(Rule("fails.py: an electron that fails says why"))
    console.print(_code(experiment.FAILING, "python"))
    console.print(Rule("$ python fails.py"))
    with console.status("running"):
        printed = _run_script(server, "fails.py", experiment.FAILING)
    console.print(f"{printed}\n", markup=False)


def _code(text: str, language: str) -> Syntax:
    return Syntax(text, language, theme="ansi_dark", background_color="default", word_wrap=True)


def _nodes_table(server: CovalentServer, title: str) -> Table:
    """Describe the electrons of the dispatch that ended last."""
    asked = Covalent(server.address)
    dispatch = asked.manifest(asked.latest()[0])
    table = Table(title=title, title_justify="left")
    for name in ("electron", "executor", "status"):
        table.add_column(name)
    table.add_column("took", justify="right")
    for node in dispatch["lattice"]["transport_graph"]["nodes"]:
        known = node["metadata"]
        if known["name"].startswith(":"):  # a value, or something of Covalent's own
            continue
        table.add_row(
            known["name"],
            known["executor"],
            _colored(known["status"]),
            common.seconds(*(_time(known[name]) for name in ("start_time", "end_time"))),
        )
    return table


def _jobs_table() -> Table:
    table = Table(title="The jobs, as Batch describes them", title_justify="left")
    for name in ("job", "name", "status"):
        table.add_column(name)
    table.add_column("ran", justify="right")
    for job in _ended_jobs():
        started, stopped = (job.get(name, 0) / 1000 for name in ("startedAt", "stoppedAt"))
        table.add_row(
            job["jobId"][:8],
            job["jobName"].rpartition("-")[0],
            _colored(job["status"]),
            f"{stopped - started:.1f} s",
        )
    return table


def _ended_jobs() -> list[dict[str, Any]]:
    """Ask Batch until it has noticed both ends, which the results are a little ahead of."""
    batch = botocore.session.get_session().create_client("batch")
    deadline = time.monotonic() + _SCRIPT_TIMEOUT_S
    while True:
        jobs = [
            job
            for status in ("SUCCEEDED", "FAILED")
            for job in batch.list_jobs(jobQueue=experiment.QUEUE, jobStatus=status)[
                "jobSummaryList"
            ]
        ]
        if len(jobs) > 1 or time.monotonic() > deadline:
            return sorted(jobs, key=lambda job: int(job["createdAt"]))
        time.sleep(0.1)


def _page_panel(server: CovalentServer, *, keep: bool) -> Panel:
    text = Text.assemble(
        ("Covalent's page: ", "bold"),
        (server.address, "cyan"),
        "\n\nThe list has both dispatches. The graph of one shows each electron with its state "
        "and its executor; click train_svm for its time and the options of its job. What an "
        "electron printed and why it failed is not on that page, whatever the executor: ask for "
        "it as fails.py does.\n\n",
        "Ctrl-C ends it." if keep else "It ends now; with --keep it would stay open.",
    )
    return Panel(text, title="What to look at", border_style="green")


def _colored(status: str) -> str:
    color = "green" if status in ("COMPLETED", "SUCCEEDED") else "red"
    return f"[{color}]{status}[/]"


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


# --- the end ----------------------------------------------------------------------------------


def _serve(console: Console, aws: local.LocalAWS, server: CovalentServer) -> None:
    try:
        while aws.running and server.running:
            time.sleep(_WATCH_S)
    except KeyboardInterrupt:
        console.print("Ending the Covalent server and the embedded AWS.")
        return
    raise FarcallError(f"The Covalent server or the embedded AWS has ended.\n{_tail(server.log)}")


@contextlib.contextmanager
def _unwinding() -> Iterator[None]:
    """Make the signals that end programs leave the block as exceptions do, the first one only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    former: dict[int, Any] = {}

    def leave(number: int, _: Any) -> None:
        for each in former:
            signal.signal(each, signal.SIG_IGN)  # a second one would stop the cleaning up
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        former[each] = signal.signal(each, leave)
    try:
        yield
    finally:
        for number, action in former.items():
            signal.signal(number, action)
