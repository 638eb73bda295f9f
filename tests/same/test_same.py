"""Functions of small projects behave in a job as they do here.

Starts the local AWS emulator, and two processes for each project.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_GUARD = (
    '\nif __name__ == "__main__":\n    import bed\n    bed.run(calls, globals().get("check"))\n'
)


def _programs():
    """Yield name, options and files of each program."""
    for path in sorted((_HERE / "programs").glob("*.txt")):
        for block in re.split(r"^##### ", path.read_text(), flags=re.M)[1:]:
            head, _, body = block.partition("\n")
            name, _, said = head.partition("|")
            parts = re.split(r"^=== ", body, flags=re.M)[1:]
            files = dict(part.split("\n", 1) for part in parts)
            yield name.strip(), dict(each.partition("=")[::2] for each in said.split()), files


_ALL = {name: (options, files) for name, options, files in _programs()}


_UNGUARDED = """
import bed
bed.run(calls, globals().get("check"))
"""
_CELL = """
import linecache, sys
import __main__
del __main__.__file__
source = open("cell.txt").read()
linecache.cache["<cell 1>"] = len(source), None, source.splitlines(True), "<cell 1>"
exec(compile(source, "<cell 1>", "exec"), vars(__main__))
"""
_ALSO = ("type_hints", "abc_registration", "contextvars", "import_main")
"""Programs that are tried without a guard and as a notebook's cell, too."""

_NAMES = [
    *_ALL,
    *(f"{name}-{mode}" for name in _ALSO for mode in ("unguarded", "cell")),
]


@pytest.fixture(scope="module")
def outcomes(embedded, tmp_path_factory):
    """What came of each program's calls, here and in jobs; several programs run at once."""
    top = tmp_path_factory.mktemp("same")
    installed = top / "site-packages"
    installed.mkdir()
    shutil.copy(_HERE / "bed.py", installed)
    environment = {
        **{n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "FARCALL_"))},
        **embedded.environment,
        "HOME": str(top),
    }

    def run(name):
        program, _, mode = name.partition("-")
        options, files = _ALL[program]
        root = top / name
        script = options.get("script", "main.py")
        for file, text in files.items():
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if file == script and mode == "cell":
                (root / "cell.txt").write_text(text + _UNGUARDED)
                text = _CELL
            elif file == script:
                text += _UNGUARDED if mode else _GUARD
            path.write_text(text)
        path = f"{installed}:{root / options['path']}" if "path" in options else str(installed)
        variables = {**environment, "PYTHONPATH": path}
        return [_run(root, script, where, variables) for where in ("here", "job")]

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        yield dict(zip(_NAMES, pool.map(run, _NAMES), strict=True))


def _run(root, script, where, environment):
    out = root.with_name(f"{root.name}.{where}")
    done = subprocess.run(
        [sys.executable, script],
        cwd=root,
        env={**environment, "SAME_OUT": str(out), "SAME_WHERE": where, "SAME_ROOT": str(root)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in out.read_text().splitlines()]


_EXPLAINED = {
    "exc_ctrl_c",  # what would end this process arrives as a TaskError
}


@pytest.mark.parametrize("name", _NAMES)
def test_job_behaves_as_a_local_call(outcomes, name):
    here, job = outcomes[name]
    assert len(here) == len(job)
    for local, remote in zip(here, job, strict=True):
        if "error" in local:
            _compare_errors(local, remote, name)
        else:
            assert _without_addresses(remote) == _without_addresses(local)


def _without_addresses(said):
    """Return an outcome without what differs between processes by its nature."""
    plain = said.get("repr", "").startswith("<")
    return {key: value for key, value in said.items() if not (key == "repr" and plain)}


def _compare_errors(local, remote, name):
    assert "error" in remote, remote
    if name in _EXPLAINED:
        assert local["error"].rpartition(".")[2] in remote["text"]
        return
    assert local["error"] in remote["bases"]
    assert not remote["is_copy"]
    same = ("text", "args", "check")
    assert [remote.get(key) for key in same] == [local.get(key) for key in same]
    for part in local.get("place", ()):
        assert part in remote["traceback"]
    assert "farcall-sources" not in remote["traceback"]
