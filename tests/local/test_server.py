"""The local AWS emulator in this process: S3, other services, runners and connections.

Starts the server in this process, because the tests replace its parts.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import obstore
import psutil
import pytest
from moto.s3.models import S3Backend
from obstore.store import S3Store

from farcall_local.runners import process
from farcall_local.services.front import Handler
from farcall_local.services.server import LocalServer
from tests.local.account import Account
from tests.support.leaks import Held
from tests.support.patience import PATIENCE_S, until


@pytest.fixture
def server():
    with LocalServer(cpus=2) as local:
        yield local


@pytest.fixture
def store(server):
    return store_of(server)


def store_of(server):
    return S3Store(
        server.environment["FARCALL_S3_BUCKET_NAME"],
        endpoint=server.endpoint_url,
        region=server.environment["AWS_REGION"],
        access_key_id=server.environment["AWS_ACCESS_KEY_ID"],
        secret_access_key=server.environment["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
    )


async def test_conditional_write_has_one_winner(store, monkeypatch):
    """Exactly one of many concurrent writes with If-None-Match succeeds."""
    put_object = S3Backend.put_object

    def hesitate(*args, **kwargs):
        time.sleep(0.02)  # between moto's check for the object and the write
        return put_object(*args, **kwargs)

    monkeypatch.setattr(S3Backend, "put_object", hesitate)

    async def write(number):
        try:
            await store.put_async("contested", b"%d" % number, mode="create")
        except obstore.exceptions.AlreadyExistsError:
            return 0
        return 1

    assert sum(await asyncio.gather(*map(write, range(20)))) == 1


async def test_concurrent_lists_and_writes_succeed(store):
    """A concurrent write never disturbs a list."""
    writes = [store.put_async(f"many/{number}", b"x") for number in range(60)]
    lists = [asyncio.to_thread(obstore.list(store, "many").collect) for _ in range(10)]
    await asyncio.gather(*writes, *lists)
    assert len(obstore.list(store, "many").collect()) == 60


async def test_large_objects_keep_their_bytes(store):
    """Objects above the multipart threshold and their ranges round-trip."""
    data = os.urandom(20 * 2**20 + 1)
    await store.put_async("large", data)
    assert bytes(await (await store.get_async("large")).bytes_async()) == data
    start = 5 * 2**20 - 3
    assert (
        bytes(await store.get_range_async("large", start=start, length=9))
        == (data[start : start + 9])
    )


def test_stop_removes_jobs_and_directories(tmp_path, monkeypatch):
    """A stopped server leaves neither processes nor directories."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    marker = tmp_path / "pid"
    with LocalServer(cpus=1) as server:
        account = Account(server)
        script = f"sleep 100 & echo $! $$ > {marker}; touch file; wait"
        account.submit(account.definition("sh", "-c", script))
        account.wait_for(lambda: marker.exists() and marker.read_text().endswith("\n"))
        assert directories(temporary)
        account.close()
    # The kernel removes a killed process after a moment.
    until(lambda: all(gone(int(pid)) for pid in marker.read_text().split()))
    assert not directories(temporary)
    server.stop()


def directories(temporary):
    """Return the jobs' current working directories."""
    return list(temporary.glob("farcall-job-*"))


def gone(pid):
    """Return whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_failed_start_leaks_nothing(tmp_path, monkeypatch):
    """Neither folders nor pipes are left, and the job has a reason."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with LocalServer(cpus=1) as server:
        account = Account(server)
        definition = account.definition()  # without a command, so that jobs would be forked
        account.wait(account.submit(definition))
        before = Held.now()
        for _ in range(3):
            job = account.wait(account.submit(definition))
            assert job["statusReason"] == "Task failed to start"
            assert job["container"]["reason"].startswith("CannotStartContainerError: ")
        assert not before.new()
        assert not directories(tmp_path)
        account.close()


@pytest.fixture
def fork_server():
    """Return a function that finds the process that forks jobs for the server.

    Fork servers of fake clouds are ignored, because they are kept for later fake clouds.
    """

    def found():
        children = psutil.Process().children()
        return {each for each in children if "forking.py" in "".join(each.cmdline()[-1:])}

    before = found()

    def new():
        (process,) = found() - before
        return process

    return new


@pytest.mark.skipif(sys.platform != "linux", reason="jobs are forked on Linux")
def test_hanging_fork_server_is_replaced(monkeypatch, fork_server):
    """Requests exceed its socket's buffer, but no caller waits long."""
    monkeypatch.setattr(process, "FORK_SERVER_TIMEOUT_S", 1.0)
    with LocalServer(cpus=60) as server:
        account = Account(server)
        filling = {"environment": [{"name": "FILLING", "value": "x" * 15_000}]}
        definition = account.definition(container=filling)
        assert "exitCode" in account.wait(account.submit(definition))["container"]
        first = fork_server()
        first.suspend()
        parent = account.submit(definition, arrayProperties={"size": 60})
        account.wait(parent)
        children = [f"{parent}:{index}" for index in range(60)]
        found = account.batch.describe_jobs(jobs=children)["jobs"]
        reasons = {child.get("statusReason") for child in found}
        assert "The process that forks jobs was killed" in reasons
        assert "exitCode" in account.wait(account.submit(definition))["container"]
        assert first.pid != fork_server().pid
        account.close()


@pytest.mark.skipif(sys.platform != "linux", reason="jobs are forked on Linux")
def test_server_stops_hanging_fork_server(monkeypatch, fork_server):
    """Even with a job whose start is not confirmed."""
    monkeypatch.setattr(process, "FORK_SERVER_TIMEOUT_S", 1.0)
    with LocalServer(cpus=1) as server:
        account = Account(server)
        definition = account.definition()
        account.wait(account.submit(definition))
        stopped = fork_server()
        stopped.suspend()
        account.wait(account.submit(definition), "STARTING")
        account.close()
    assert not stopped.is_running()


def test_idle_connection_is_closed(monkeypatch, capfd, caplog):
    """The server prints nothing, and clients open new connections."""
    monkeypatch.setattr(Handler, "timeout", 0.5)
    with LocalServer(cpus=1) as server:
        address = urlsplit(server.endpoint_url)
        for sent in (b"", b"GET / HT", b"PUT /b/k HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"):
            with socket.create_connection((address.hostname, address.port)) as connection:
                connection.settimeout(PATIENCE_S)
                connection.sendall(sent)
                assert connection.recv(1) == b""
        account = Account(server)
        bucket = server.environment["FARCALL_S3_BUCKET_NAME"]
        store, s3 = store_of(server), account.client("s3")
        for number in range(3):
            account.batch.describe_job_queues()
            s3.put_object(Bucket=bucket, Key=f"boto3 {number}", Body=b"x")
            store.put(f"obstore {number}", b"x")
            until(lambda: not server.front.connections)
        for client in (account, s3):
            client.close()
    assert ("", []) == (capfd.readouterr().err, caplog.messages)


def test_second_server_in_process_is_rejected(server):
    """moto has global state, so a second server would clear the first server's state."""
    with pytest.raises(RuntimeError, match="one LocalServer"):
        LocalServer()
