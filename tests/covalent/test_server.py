"""The server itself, with Covalent's own local executor."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import covalent as ct
import psutil
import pytest

from farcall.cli.demos.covalent_server import CovalentServer
from farcall.model.errors import FarcallError
from tests.support.patience import PATIENCE_S, until


@ct.electron
def add(left, right):
    print(f"{left} and {right}")
    return left + right


@ct.electron
def program():
    return sys.modules["__main__"].__file__


@ct.electron
def fail():
    raise ValueError("no good")


@ct.electron
def sleep(path):
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)  # until the test ends it


@ct.lattice
def three(one):
    return add(add(one, 1), 1)


@ct.lattice
def which():
    return program()


@ct.lattice
def failing():
    return fail()


@ct.lattice
def sleeping(path):
    return sleep(path)


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_answers_under_its_address(server):
    assert server.running
    with urllib.request.urlopen(server.address, timeout=PATIENCE_S) as answer:
        assert 200 == answer.status
        assert b"<title>Covalent</title>" in answer.read()


def test_it_listens_on_this_machine_only(server):
    process = psutil.Process(server.pid)
    listening = {
        connection.laddr
        for each in [process, *process.children(recursive=True)]
        for connection in each.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert {("127.0.0.1", server.port)} == listening


def test_a_lattice_runs_on_the_local_executor(run, node):
    result = run(three, 1)
    assert ct.status.COMPLETED == result.status
    assert 3 == result.result
    assert ("add", "COMPLETED", "", "1 and 1\n", "", 2) == node(result, 0)
    assert "local" == result.lattice.metadata["executor"]


def test_a_failed_electron_tells_why(run, node):
    result = run(failing)
    assert ct.status.FAILED == result.status
    failed = node(result, 0)
    assert "FAILED" == failed.status
    assert "ValueError: no good" in failed.stderr + failed.error


def test_its_main_program_is_covalents(run):
    assert run(which).result.endswith("/covalent_ui/app.py")


def test_a_home_belongs_to_no_user(server, run, user_home):
    assert 3 == run(three, 1).result
    assert [] == list(user_home.rglob("*"))
    assert [] == list(Path.home().rglob("*"))


def test_it_is_the_one_that_a_client_process_finds(server):
    code = """
        import covalent
        from covalent._shared_files.utils import format_server_url

        print(covalent.get_config("sdk.config_file"), format_server_url())
    """
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env=os.environ | server.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert f"{server.home}/config/covalent.conf {server.address}\n" == out


def test_a_finished_dispatch_survives_kill(new_server, dispatch, wait):
    server = new_server()
    assert 0o700 == server.home.stat().st_mode & 0o777  # it is nobody else's
    former = server.pid
    finished = dispatch(three, 1, server=server)
    assert 3 == wait(finished, server=server).result
    children = psutil.Process(former).children(recursive=True)

    server.kill()
    assert not server.running
    assert is_gone(former)
    until(lambda: all(is_gone(child.pid) for child in children))

    server.start()
    assert former != server.pid
    again = wait(finished, server=server)
    assert ct.status.COMPLETED == again.status
    assert 3 == again.result
    assert server.port == CovalentServer(server.home).port


def test_stop_ends_what_runs(new_server, dispatch, tmp_path):
    server = new_server()
    pid, running = server.pid, tmp_path / "pid"
    dispatch(sleeping, str(running), server=server)
    until(lambda: running.exists() and running.read_text())

    server.stop()
    assert is_gone(pid)
    until(lambda: is_gone(int(running.read_text())))
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", server.port))
    server.stop()
    with pytest.raises(FarcallError, match="was not started"):
        _ = server.pid


def test_it_dies_with_its_parent(tmp_path):
    code = """
        import sys, time
        from pathlib import Path
        from farcall.cli.demos.covalent_server import CovalentServer

        server = CovalentServer(Path(sys.argv[1]))
        server.start()
        print(server.pid, flush=True)
        time.sleep(600)  # until the test ends it
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "server")],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        pid = int(parent.stdout.readline())
        try:
            assert not is_gone(pid)
            parent.kill()
            until(lambda: is_gone(pid))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def test_a_server_that_ends_while_starting_says_why(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 3\n")
    python.chmod(0o755)
    server = CovalentServer(tmp_path / "server", python=str(python))
    with pytest.raises(FarcallError, match="no such luck"):
        server.start()
    assert not server.running


def test_a_taken_port_is_refused(server):
    with pytest.raises(FarcallError, match=f"{server.port}.*is in use"):
        CovalentServer(server.home).start()
