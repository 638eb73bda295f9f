"""Synced packages in the container: import, integrity and rejection.

Starts the runtime as a process, because packages change the import path before the task starts.
"""

import re
import subprocess
import tempfile
import zipfile
import zlib
from pathlib import Path

import cloudpickle
import pytest

from farcall_runtime.contract import PACKAGES, ExitCode
from tests.service.attempt import value_of
from tests.support.distributions import (
    distribution,
    entry,
    fact,
    manifest,
    stored,
    zipped,
)


@pytest.fixture
def home():
    """The container's temporary folder, with a short path for forkserver's socket."""
    with tempfile.TemporaryDirectory(prefix="farcall-test-") as folder:
        yield Path(folder)


@pytest.fixture
def run(attempt, home):
    """Return a function that stores packages and creates an attempt with them."""

    def make(function, *distributions, args=(), document=None, **options):
        document = document or manifest(*distributions)
        made = attempt(function, *args, facts={PACKAGES: fact(document)}, **options)
        made.put(made.where.package_key(fact(document)[0]), document)
        for each in distributions:
            made.put(made.where.package_key(each.sha256), each.data)
        return made

    return make


@pytest.fixture
def value(run, home):
    """Return a function that runs a task with packages and returns its result."""

    def get(function, *distributions, **options):
        made = run(function, *distributions, **options)
        code, stderr = made.start(environment={"TMPDIR": str(home)}).end()
        outcome = made.outcome()
        assert code == 0, (stderr, outcome.meta)
        return value_of(outcome)

    return get


@pytest.fixture
def refusal(run, home):
    """Return a function that runs a rejected attempt and returns exit code and reason."""

    def get(made, **options):
        environment = {"TMPDIR": str(home)}
        code, _ = made.start(environment=environment, **options).end()
        outcome = made.outcome()
        assert outcome.meta["status"] == "refused", (outcome.meta, bytes(outcome.stderr))
        assert outcome.meta["code"] == code
        assert [*home.iterdir()] == []  # nothing is left
        return code, outcome.meta["detail"]

    return get


# --- imports, scripts and child processes -----------------------------------------------------


@pytest.mark.core
def test_synced_packages_are_imported(value):
    def task():
        import importlib.metadata

        import left.inner
        import right

        return left.inner.NAME, right.__version__, importlib.metadata.version("right-one")

    left = distribution("left", {"left/__init__.py": "", "left/inner.py": "NAME = 'inner'"})
    right = distribution("right-one", {"right.py": "__version__ = '2.5'"}, "2.5")
    assert value(task, left, right) == ("inner", "2.5", "2.5")


def test_entry_points_become_scripts(value):
    def task():

        return [
            subprocess.run([name, "x"], capture_output=True, text=True, check=True).stdout
            for name in ("say", "shout", "old")
        ]

    points = "[console_scripts]\nsay = tool.main:say\nbad/../name = tool.main:say\n"
    points += "[gui_scripts]\nshout = tool.main:Loud.shout [extra]\n[other]\nno = tool:no\n"
    main = "import sys\ndef say():\n    print('say', sys.argv[1:])\n"
    main += "class Loud:\n    @staticmethod\n    def shout():\n        print('SHOUT')\n"
    files = {
        "tool/__init__.py": "",
        "tool/main.py": main,
        # As on the client, whose Python has a different path.
        "/bin/say": "#!/home/me/venv/bin/python\nraise SystemExit(7)\n",
        "/bin/old": "#!/home/me/venv/bin/python -E\nimport tool.main; print('old')\n",
    }
    tool = distribution("tool", files, entry_points=points)
    assert value(task, tool) == ["say ['x']\n", "SHOUT\n", "old\n"]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_child_processes_have_packages(value, method):
    def task(method):
        import multiprocessing
        import sys

        import thing

        code = "import sys, thing, hooked; print(thing.NAME, sys.prefix)"
        by_name, by_path = (
            subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
            for python in ("python3", sys.executable)
        )
        with multiprocessing.get_context(method).Pool(1) as pool:
            in_pool = pool.apply(thing.name)
        said = f"thing {sys.prefix}\n"
        return in_pool, by_name.stdout == said, by_path.stdout == said

    files = {
        "thing.py": "NAME = 'thing'\ndef name():\n    import hooked\n    return NAME",
        "thing.pth": "further\n",
        "further/hooked.py": "",
    }
    assert value(task, distribution("thing", files), args=(method,)) == ("thing", True, True)


# --- packages that the runtime also has -------------------------------------------------------


def test_task_packages_shadow_runtime_packages(value):
    """The supervisor uses the image's packages; this obstore could not store anything."""

    def task():

        import cloudpickle
        import obstore
        import typing_extensions

        code = "import cloudpickle; print(cloudpickle.__version__)"
        done = subprocess.run(["python3", "-c", code], capture_output=True, text=True, check=True)
        versions = cloudpickle.__version__, done.stdout.strip()
        return *versions, obstore.OWN, typing_extensions.OWN, lambda: 7

    folder = Path(cloudpickle.__file__).parent
    files = {f"cloudpickle/{each.name}": each.read_text() for each in folder.glob("*.py")}
    files["cloudpickle/__init__.py"] += "\n__version__ = '3.999'\n"
    *found, function = value(
        task,
        distribution("cloudpickle", files, "3.999"),
        distribution("obstore", {"obstore/__init__.py": "OWN = 'obstore'"}),
        distribution("typing_extensions", {"typing_extensions.py": "OWN = 'extensions'"}),
    )
    assert found == ["3.999", "3.999", "obstore", "extensions"]
    assert function() == 7


# --- rejected packages ------------------------------------------------------------------------


@pytest.fixture
def witness(tmp_path):
    """A file that exists if package code has run, a task, and the package that creates it."""
    path = tmp_path / "has-run"
    line = f"import pathlib; pathlib.Path({str(path)!r}).touch()"
    files = {"bad.pth": f"{line}\n", "bad.py": line, **{f"x{n}.py": "1" for n in range(20)}}
    bad = distribution("bad", files)

    def task():
        import bad  # noqa: F401

    yield path, task, bad
    assert not path.exists()


def test_witness_detects_executed_package(run, tmp_path):
    path = tmp_path / "has-run"
    line = f"import pathlib; pathlib.Path({str(path)!r}).touch()\n"
    assert run(lambda: 7, distribution("bad", {"bad.pth": line})).start().end()[0] == 0
    assert path.exists()


CHANGES = {
    "a byte": lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
    "the end": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "another": lambda data: distribution("other", {"bad.py": "1"}).data,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("of", ["archive", "manifest"])
def test_changed_package_is_not_run(run, refusal, witness, change, of):
    _, task, bad = witness
    document = manifest(bad)
    made = run(task, bad)
    key, data = (bad.sha256, bad.data) if of == "archive" else (fact(document)[0], document)
    made.put(made.where.package_key(key), change(data))

    code, detail = refusal(made)
    assert ExitCode.INTEGRITY == code
    assert key in detail


@pytest.mark.parametrize("of", ["archive", "manifest"])
def test_deleted_package_is_reported(run, refusal, witness, of):
    _, task, bad = witness
    made = run(task, bad, distribution("good", {"good.py": ""}))
    digest = bad.sha256
    if of == "manifest":
        digest = fact(manifest(bad, distribution("good", {"good.py": ""})))[0]
    made.delete(made.where.package_key(digest))

    code, detail = refusal(made)
    assert ExitCode.PACKAGES_MISSING == code
    assert digest in detail


LINK = (entry("lib/link", 0o120777), "/etc/passwd")
TEXT = b"some text " * 20
DEFLATED = zlib.compress(TEXT, wbits=-15)


def packed(name):
    """Return a zip file with one compressed file."""
    info = entry(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    return zipped((info, TEXT))


UNFIT = {
    "absolute": zipped((entry("/etc/evil"), "x")),
    "above": zipped((entry("lib/../../../evil"), "x")),
    "a folder of its own": zipped((entry("lib/folder/"), "")),
    "backslash": zipped((entry("lib\\..\\evil"), "x")),
    "link": zipped(LINK, (entry("lib/link/x"), "x")),
    "device": zipped((entry("lib/device", 0o020666), "")),
    "twice": zipped((entry("lib/a"), "x"), (entry("lib/b"), "x")).replace(b"lib/b", b"lib/a"),
    "file and folder": zipped((entry("lib/a"), "x"), (entry("lib/a/b"), "x")),
    "no zip file": b"PK\x03\x04 and so on",
    "broken deflate": packed("lib/a").replace(DEFLATED, bytes([DEFLATED[0] | 6, *DEFLATED[1:]])),
}


@pytest.mark.parametrize("data", UNFIT.values(), ids=UNFIT)
def test_malformed_archive_is_rejected(run, refusal, witness, data):
    """Even if the manifest contains its digest."""
    _, task, bad = witness
    code, detail = refusal(run(task, bad, stored("odd", data, unpacked=1000)))
    assert ExitCode.INTEGRITY == code
    assert "odd 1.0" in detail


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({"python": "3.2"}, "for Python 3.2, but this image runs Python 3"),
        ({"architecture": "riscv64"}, "for riscv64, but this machine is"),
        ({"format": "zstd"}, "'zstd', which this image's farcall does not support"),
    ],
    ids=["python", "architecture", "format"],
)
def test_packages_for_other_machine_are_rejected(run, refusal, witness, differs, said):
    _, task, bad = witness
    code, detail = refusal(run(task, bad, document=manifest(bad, **differs)))
    assert ExitCode.VERSION_MISMATCH == code
    assert said in detail


# --- disk space -------------------------------------------------------------------------------


def test_full_disk_is_detected_before_download(run, refusal, proxy):
    huge = distribution("huge", {"huge.py": ""}, unpacked=10**15)
    code, detail = refusal(run(lambda: 7, huge))
    assert ExitCode.DISK_FULL == code
    assert re.search(r"need 1,050,000,000\.0 MB in .+, but [\d,]+\.\d MB are free", detail)
    assert proxy.counts["s3 GET packages"] == 1
