"""A session on a scripted Batch in virtual time, and a server that answers like Covalent's."""

import contextlib
import http.server
import json
import threading
from types import SimpleNamespace

import pytest

from farcall.aws.buckets import place
from farcall.covalent import task_groups
from farcall.engine import calls, run
from farcall.engine.session import Session
from farcall.model.timing import Timing
from tests.unit.covalent.account import SETTINGS, Account, Bucket
from tests.unit.fakes import ScriptedBatch


@pytest.fixture
async def account(clock):
    return Account()


@pytest.fixture
async def opened(account, monkeypatch):
    """Session of the current event loop."""

    async def close():
        """Open no connections."""

    access = SimpleNamespace(
        timing=Timing(),
        region="us-east-1",
        has_console=False,
        overruled="",
        place=lambda bucket: place(bucket, "us-east-1"),
        close=close,
    )

    made = Session(access, ScriptedBatch(account.client))
    monkeypatch.setattr(made.stores, "_open", {SETTINGS.s3_bucket_name: Bucket()})

    async def find(settings):
        return made

    for module in (task_groups, run, calls):
        monkeypatch.setattr(module, "session_for", find)
    # Work in a thread would take no virtual time, or an infinite one.
    monkeypatch.setattr(made.threads, "run", lambda function, *args: _at_once(function, *args))
    yield made
    for event in account.open.values():
        event.set()
    await made.close()


async def _at_once(function, *args):
    return function(*args)


@pytest.fixture
def answering():
    """Start a server that gives each request the same answer.

    `answering(status, body)` returns its address. `answering.received` has the paths and bodies
    of the PUT requests.
    """
    with contextlib.ExitStack() as stack:

        def serve(status, body):
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(body)

                def do_PUT(self):
                    length = int(self.headers["Content-Length"])
                    serve.received.append((self.path, json.loads(self.rfile.read(length))))
                    self.do_GET()

                def log_message(self, *_):
                    pass

            server = stack.enter_context(http.server.HTTPServer(("127.0.0.1", 0), Handler))
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        serve.received = []
        yield serve
