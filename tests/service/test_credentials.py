"""Credentials that expire while jobs run.

Starts the local AWS emulator and a proxy that rejects old keys, because renewal happens between
requests of a live session.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import farcall_local
from farcall import ServiceError
from farcall.engine.session import session_for
from tests.support import signing
from tests.support.patience import until_async
from tests.support.proxy import Proxy
from tests.support.tasks import wait_for


class Login:
    """A credentials file with the keys of a role session, as written by a login."""

    def __init__(self, aws: farcall_local.LocalAWS, proxy: Proxy, file: Path) -> None:
        self._aws = aws
        self._proxy = proxy
        self._file = file
        self._key = ""
        self.renew()

    def end(self) -> None:
        old = self._key
        self._proxy.rule = lambda request: "expired" if request.access_key_id == old else ""

    def renew(self) -> None:
        keys = signing.session(self._aws.environment, "farcall-local-job")
        self._key = keys["AccessKeyId"]
        self._file.write_text(
            f"[default]\naws_access_key_id = {self._key}\n"
            f"aws_secret_access_key = {keys['SecretAccessKey']}\n"
            f"aws_session_token = {keys['Token']}\n"
        )


@pytest.fixture
def login(aws, proxy, tmp_path, monkeypatch):
    file = tmp_path / "keys"
    login = Login(aws, proxy, file)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    return login


async def test_renewed_credentials_file_is_reloaded(login, proxy, make_executor, tmp_path):
    go = tmp_path / "go"
    async with make_executor(endpoint_url=proxy.url) as executor:
        job = await executor.submit(wait_for, str(go), 7)
        trouble = (await session_for(executor.settings)).tracker.trouble
        login.end()
        await until_async(lambda: "renew the credentials" in trouble.text)
        go.touch()
        login.renew()
        assert 7 == await job.result()
        await until_async(lambda: not trouble.text)


@pytest.mark.timing(give_up_s=1.0)
async def test_expired_credentials_leave_jobs_running(login, proxy, make_executor, tmp_path):
    go = tmp_path / "go"
    with pytest.raises(ServiceError, match="renew the credentials.*continues") as caught:
        async with make_executor(endpoint_url=proxy.url) as executor:
            other = await executor.submit(wait_for, str(go), 7)
            job = await executor.submit(wait_for, str(go), 7)
            login.end()
            await job.result()
    assert f"`farcall result {job.id}`" in str(caught.value)
    assert not job.done()
    login.renew()
    go.touch()
    async with make_executor(endpoint_url=proxy.url) as executor:
        assert 7 == await executor.attach(other.id).result()
        assert 7 == await job.result()  # also with the old handle
    assert not proxy.counts["batch terminatejob"]
