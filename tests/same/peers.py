"""``python -m tests.same.peers``: compare the programs in farcall, spawn and loky."""

import concurrent.futures
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import farcall_local
from tests.same.programs import PROGRAMS, Runner, without_addresses

PLACES = {
    "job": "farcall",
    "spawn": "concurrent.futures with the start method spawn",
    "loky": "loky",
}


def main():
    """Print which programs behave as they do locally, by the place where their calls run."""
    found = {place: {} for place in PLACES}
    with farcall_local.start() as aws, tempfile.TemporaryDirectory() as top:
        runner = Runner(Path(top), aws.environment, timeout_s=120)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for name, ends in zip(
                PROGRAMS, pool.map(partial(_ends, runner), PROGRAMS), strict=True
            ):
                for place, end in ends.items():
                    found[place].setdefault(end, []).append(name)
    for place, names in found.items():
        print(PLACES[place])
        for end, those in names.items():
            print(f"  {end} {len(those)}" + f": {', '.join(those)}" * (end != "same"))


def _ends(runner, name):
    (here,) = runner.run(name, ["here"])
    return {place: _end(runner, name, place, here) for place in PLACES}


def _end(runner, name, place, here):
    try:
        (there,) = runner.run(name, [place])
    except (AssertionError, subprocess.TimeoutExpired):
        return "error"
    pairs = list(zip(here, there, strict=False))
    if len(here) != len(there) or any("error" in b and "error" not in a for a, b in pairs):
        return "error"
    return "same" if all(_is_same(a, b) for a, b in pairs) else "different"


def _is_same(here, there):
    if "error" not in here:
        return without_addresses(here) == without_addresses(there)
    keys = ("error", "text", "args", "check", "is_copy")
    return [here.get(key) for key in keys] == [there.get(key) for key in keys]


if __name__ == "__main__":
    main()
