"""The local AWS emulator as a process: start, stop, signals, and commands below it.

Starts the emulator and programs that use it, because the tests kill each of them.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
import termios
import textwrap

import pytest

from farcall_local import run_command, start
from farcall_local.names import REGION, client_environment
from farcall_local.services.signatures import AccessKey
from tests.local.account import Account
from tests.local.test_server import gone
from tests.support.patience import PATIENCE_S, until

RUN = "import sys; from farcall_local import run_command; sys.exit(run_command(sys.argv[1:]))"
#: A command that prints "ready", counts SIGINTs for a while, and exits with 40 plus the count.
COUNTING = textwrap.dedent("""
    import signal, sys, time
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    print("ready", flush=True)
    while not seen:
        time.sleep(0.01)
    time.sleep(0.3)
    sys.exit(40 + len(seen))
""")


@pytest.fixture
def spawn():
    """Start Python programs that can import farcall; kill them in the teardown."""
    processes = []

    def run(source, *args, **options):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), *args],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            **{"stdout": subprocess.PIPE, "text": True, **options},
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def test_servers_are_isolated_and_stop_twice():
    """`start` returns endpoint and environment; two servers share no state."""
    with start(cpus=1) as one, start(cpus=1) as two:
        assert one.endpoint_url != two.endpoint_url
        assert one.environment["AWS_ENDPOINT_URL"] == one.endpoint_url
        first, second = Account(one), Account(two)
        job_id = first.shell("exit 0")["jobId"]
        assert second.batch.describe_jobs(jobs=[job_id])["jobs"] == []
        first.close()
        second.close()
        assert one.running
        one.stop()
        assert not one.running


def test_port_in_use_is_explained(capfd):
    """The error of a server that cannot start names the reason and the remedy."""
    with start() as aws:
        port = int(aws.endpoint_url.rpartition(":")[2])
        with pytest.raises(RuntimeError, match=f"cannot listen on 127.0.0.1:{port}: .*--port 0"):
            start(port=port)
    with pytest.raises(RuntimeError, match="cannot listen on 192.0.2.1:0: "):
        start(host="192.0.2.1")
    assert "Traceback" not in capfd.readouterr().err


def test_killed_parent_ends_server_and_jobs(spawn, tmp_path):
    """SIGKILL of the process that called `start` ends the server and its jobs."""
    marker = tmp_path / "job"
    parent = spawn(
        """
        import sys, time
        from tests.local.account import Account
        from farcall_local import start
        aws = start(cpus=1)
        account = Account(aws)
        script = f"sleep 100 & echo $! $$ > {sys.argv[1]}; wait"
        account.submit(account.definition("sh", "-c", script))
        print(aws._process.pid, flush=True)
        time.sleep(100)
        """,
        str(marker),
    )
    server = int(parent.stdout.readline())
    until(lambda: marker.exists() and marker.read_text().endswith("\n"))
    jobs = [int(pid) for pid in marker.read_text().split()]
    assert not gone(server)
    parent.kill()
    until(lambda: all(gone(pid) for pid in (server, *jobs)))


@pytest.mark.slow
def test_sigterm_ends_server_and_jobs(tmp_path):
    """The signal is sent to the server itself."""
    marker = tmp_path / "job"
    with start(cpus=1) as aws:
        account = Account(aws)
        account.submit(account.definition("sh", "-c", f"echo $$ > {marker}; sleep 100"))
        until(lambda: marker.exists() and marker.read_text().endswith("\n"))
        account.close()
        aws._process.terminate()
        until(lambda: not aws.running)
    assert gone(int(marker.read_text()))


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_command_exit_code_is_returned(script, code):
    """The exit code for signal N is 128 + N."""
    assert run_command(["sh", "-c", script]) == code


def test_command_environment_uses_the_emulator(monkeypatch, tmp_path):
    """The user's profile and endpoints do not redirect the command to another AWS."""
    misleading = {
        *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE"),
        *("AWS_CREDENTIAL_EXPIRATION", "AWS_USE_FIPS_ENDPOINT", "FARCALL_CREDENTIALS"),
    }
    options = {"FARCALL_PROFILE": "default", "FARCALL_REGION": REGION, "FARCALL_ENDPOINT_URL": ""}
    for name in (*misleading, *options):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("MINE", "kept")
    found = tmp_path / "env"
    assert run_command(["sh", "-c", f"env > {found}"]) == 0
    env = dict(line.split("=", 1) for line in found.read_text().splitlines() if "=" in line)
    assert env["MINE"] == "kept"
    assert env["FARCALL_S3_BUCKET_NAME"] == "farcall-local"
    assert not misleading & set(env)
    assert options.items() <= env.items()


def test_working_directory_is_not_imported(tmp_path, monkeypatch):
    for module in ("calendar", "cmd", "json", "moto", "secrets", "types"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    assert run_command(["true"]) == 0


def test_unknown_command_returns_127(capfd):
    """A shell has the same exit code for an unknown command."""
    assert run_command(["no-such-command-anywhere"]) == 127
    assert "no-such-command-anywhere" in capfd.readouterr().err


def test_emulator_exit_is_reported(monkeypatch, capfd):
    """The command continues to its own end."""

    def doomed(**options):
        aws = start(**options)
        aws._process.kill()
        return aws

    monkeypatch.setattr("farcall_local.command.start", doomed)
    assert run_command(["sh", "-c", "sleep 2; exit 7"]) == 7
    assert capfd.readouterr().err.count("the local AWS emulator exited") == 1


def test_signal_reaches_command_once(spawn):
    """A SIGINT that only farcall receives is forwarded."""
    process = spawn(RUN, sys.executable, "-c", COUNTING, start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 41


def test_ctrl_c_reaches_command_once(spawn):
    """A terminal sends SIGINT to farcall and the command; farcall does not forward it."""
    master, slave = os.openpty()

    def own_terminal():
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    process = spawn(
        RUN,
        sys.executable,
        "-c",
        COUNTING,
        stdin=slave,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    assert process.stdout.readline() == "ready\n"
    os.write(master, b"\x03")
    assert process.wait(PATIENCE_S) == 41
    os.close(master)
    os.close(slave)


def test_serve_prints_exports_until_ctrl_c(spawn):
    """A shell can evaluate the output; SIGINT ends `serve` quietly."""
    process = spawn("import farcall_local; farcall_local.serve()", stderr=subprocess.PIPE)
    lines = [
        process.stdout.readline() for _ in client_environment("127.0.0.1", 1, AccessKey.new())
    ]
    assert lines[0].startswith("export AWS_ENDPOINT_URL=http://127.0.0.1:")
    assert "export FARCALL_QUEUE=farcall-local\n" in lines
    script = "import boto3; boto3.client('batch').describe_job_queues()"
    command = f'{sys.executable} -c "{script}"'
    subprocess.run(["sh", "-euc", "".join([*lines, command])], check=True)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S) == ("", "")
    assert process.returncode == 0


def test_serve_ends_with_its_server(spawn):
    """`serve` does not wait for a server that has ended."""
    process = spawn(
        """
        import farcall_local.command as command
        start = command.start
        def doomed(**options):
            aws = start(**options)
            aws._process.kill()
            return aws
        command.start = doomed
        command.serve()
        """,
        stderr=subprocess.PIPE,
    )
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "The local AWS emulator has exited" in err


def test_missing_extra_names_install_command(monkeypatch):
    """The extra is missing if moto is not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: name != "moto" and find(name, *rest)
    )
    monkeypatch.setattr(
        "farcall_local.launch.importlib.util.find_spec",
        lambda name, *rest: None if name == "moto" else find(name, *rest),
    )
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[local\]'"):
        start()


def test_launcher_imports_without_extra():
    script = """
        import sys
        sys.modules.update(dict.fromkeys(("moto", "flask", "werkzeug")))  # not importable
        import farcall_local.runners.process
        farcall_local.start()
    """
    code = textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("farcall is not on PyPI yet.")
