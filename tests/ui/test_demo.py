"""``farcall demo --page`` until Ctrl-C.

Starts the command, which starts the web UI and the local AWS emulator. Slow, because the demo
runs all of its jobs before it shows the address.
"""

import os
import re
import signal
import subprocess
import urllib.request

import pytest

from tests.support.commands import FARCALL
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.fixture
def demo():
    process = subprocess.Popen(
        [FARCALL, "demo", "--page", "--port", "0"],
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_stops_all_servers(demo):
    said = ""
    while "#token=" not in said:
        line = demo.stdout.readline()
        assert line, demo.stderr.read()
        said += line
    page = re.search(r"(http://\S+)/#token=", said)[1]
    aws = re.search(r"export AWS_ENDPOINT_URL=(\S+)", said)[1]
    with urllib.request.urlopen(page, timeout=PATIENCE_S) as answer:
        assert b"<title>farcall</title>" in answer.read()

    demo.send_signal(signal.SIGINT)
    _, complaints = demo.communicate(timeout=PATIENCE_S)

    assert (0, "") == (demo.returncode, complaints)
    for url in (page, aws):
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(url, timeout=PATIENCE_S)
