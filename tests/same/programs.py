"""Programs that run calls in several places, and the comparison of their outcomes."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.program import stdout_of

_HERE = Path(__file__).parent
_GUARD = (
    '\nif __name__ == "__main__":\n    import bed\n    bed.run(calls, globals().get("check"))\n'
)


def _read():
    """Yield name, options and files of each program."""
    for path in sorted((_HERE / "programs").glob("*.txt")):
        for block in re.split(r"^##### ", path.read_text(), flags=re.M)[1:]:
            head, _, body = block.partition("\n")
            name, _, said = head.partition("|")
            parts = re.split(r"^=== ", body, flags=re.M)[1:]
            files = dict(part.split("\n", 1) for part in parts)
            yield name.strip(), dict(each.partition("=")[::2] for each in said.split()), files


PROGRAMS = {name: (options, files) for name, options, files in _read()}


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
"""Programs that are also tested without a guard and as a notebook cell."""

NAMES = [
    *PROGRAMS,
    *(f"{name}-{mode}" for name in _ALSO for mode in ("unguarded", "cell")),
]


class Runner:
    """Runs programs, each in its own folder.

    Args:
        top: An empty folder.
        variables: Environment variables of the programs, such as the emulator's.
        timeout_s: Time limit of a program in one place, in seconds.
    """

    def __init__(self, top, variables, timeout_s=300):
        self._timeout_s = timeout_s
        self._top = top
        self._installed = top / "site-packages"
        self._installed.mkdir()
        shutil.copy(_HERE / "bed.py", self._installed)
        self._environment = {
            **{n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "FARCALL_"))},
            **variables,
            "HOME": str(top),
        }

    def run_all(self, names, place="job"):
        """Run programs locally and elsewhere, three at a time; return the outcomes by name."""
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            found = pool.map(lambda name: self.run(name, ("here", place)), names)
            return dict(zip(names, found, strict=True))

    def run(self, name, places):
        """Run a program in several places; return the outcomes of its calls by place."""
        program, _, mode = name.partition("-")
        options, files = PROGRAMS[program]
        root = self._top / name
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
        path = str(self._installed)
        if "path" in options:
            path += f":{root / options['path']}"
        variables = {**self._environment, "PYTHONPATH": path}
        return [self._run_in(place, root, script, variables) for place in places]

    def _run_in(self, place, root, script, environment):
        out = root.with_name(f"{root.name}.{place}")
        stdout_of(
            *(sys.executable, script),
            cwd=root,
            env={**environment, "SAME_OUT": str(out), "SAME_WHERE": place, "SAME_ROOT": str(root)},
            stdin=subprocess.DEVNULL,
            timeout=self._timeout_s,
        )
        return [json.loads(line) for line in out.read_text().splitlines()]


def without_addresses(said):
    """Return an outcome without the addresses that differ between processes."""
    plain = said.get("repr", "").startswith("<")
    return {key: value for key, value in said.items() if not (key == "repr" and plain)}


_EXPLAINED = {
    "exc_ctrl_c",  # an exception that would end this process arrives as a TaskError
}


def compare(here, job, name):
    """Assert that a job's outcomes are the local ones."""
    assert len(here) == len(job)
    for local, remote in zip(here, job, strict=True):
        if "error" in local:
            _compare_errors(local, remote, name)
        else:
            assert without_addresses(remote) == without_addresses(local)


def compare_electrons(here, electrons):
    """Assert that electrons' outcomes are the local ones; Covalent keeps an error as a text."""
    assert len(here) == len(electrons)
    for local, remote in zip(here, electrons, strict=True):
        if "error" not in local:
            assert without_addresses(remote) == without_addresses(local)
            continue
        assert remote["error"] == "bed.ElectronError", remote
        parts = [local["error"].rpartition(".")[2], local["text"].partition("\n")[0]]
        assert [*parts, *local.get("place", ())] == [
            each for each in (*parts, *local.get("place", ())) if each in remote["text"]
        ]


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
