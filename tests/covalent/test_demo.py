"""``make demo-covalent``'s script from start to end.

Starts the script, which starts a Covalent server and the local AWS emulator. Slow,
because the Covalent server takes seconds to start and keeps a core busy.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, ROOT / "examples" / "covalent_demo" / "run.py"]

pytestmark = [
    pytest.mark.skipif(sys.version_info >= (3, 13), reason="Covalent 0.240 is for 3.11 and 3.12"),
    pytest.mark.slow,
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the home and temporary directories that the demo uses."""
    for name in os.environ:
        if name.startswith("COVALENT_"):
            monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path


@pytest.fixture
def start(place):
    """Return a function that starts the demo; it is killed when the test ends."""
    started = []

    def demo(*options, **environment):
        started.append(
            subprocess.Popen(
                [*COMMAND, *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
            )
        )
        return started[-1]

    yield demo
    for process in started:
        process.kill()
        process.communicate()


def demo_processes(place):
    """Return the processes that use the demo's temporary folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(str(place)):
                found.append(process)
    return [each for each in found if each.pid != os.getpid()]


def assert_nothing_left(place):
    assert [] == demo_processes(place)
    cache = place / "home" / ".cache"  # uv's cache; uv resolves the packages of jobs
    left = [*(place / "home").rglob("*"), *(place / "tmp").rglob("*")]
    assert [] == [
        each for each in left if each != cache and cache / "uv" not in [each, *each.parents]
    ]


def test_demo_prints_score_and_cleans_up(start, place):
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # the port may already be in use
            stack.enter_context(socket.create_server(("127.0.0.1", 48008)))
        demo = start()
        shown, complaints = demo.communicate()

    assert 0 == demo.returncode, complaints
    assert "" == complaints
    score = re.search(r"svm\.py\n(0\.\d+|1\.0)\nThe model was trained", shown)
    assert score is not None, shown
    assert float(score[1]) > 0.5
    for expected in (
        r"status: FAILED",
        r"stdout: 150 flowers for 0 vases",
        r"ZeroDivisionError: division by zero",
        r"Covalent's page: http://127\.0\.0\.1:\d+",
    ):
        assert re.search(expected, shown), shown
    assert_nothing_left(place)
