"""CPU time of real containers before the call: farcall's, the peer's and floors."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import statistics
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import report
from benchmarks.harness import ROOT, Settings, Stage, emulated
from benchmarks.meter import probe
from benchmarks.report import Part, Row

TITLE = "What a container costs"
FARCALL = "farcall"
PEER_PLAIN, PEER = "peer, a function that needs no Covalent", "peer, as Covalent dispatches"

_PEER = Path(__file__).with_name("peer.Dockerfile")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
#: Build arguments, whose values docker takes from the environment.
_ARGUMENTS = ("PIP_INDEX_URL", *_PROXIES, *map(str.lower, _PROXIES))
_BUILD = ("build", "--network=host", "--force-rm", *(f"--build-arg={n}" for n in _ARGUMENTS))


class NoEngineError(Exception):
    """Error if there is no docker engine or an image could not be built."""


def measure(settings: Settings) -> Part:
    """Build the images, start each of them in turn, and remove images and containers.

    Raises:
        NoEngineError: There is no docker engine, or an image could not be built.
    """
    costs: dict[str, list[float]] = {}
    shares: list[float] = []
    settings.say("images ...")
    with _images(peer=bool(settings.peer)) as images, emulated(docker=True) as stage:
        place = replace(
            stage, environment={**stage.environment, "FARCALL_IMAGE": images["farcall"]}
        )
        for number in range(settings.starts + 1):
            settings.say(f"containers, start {number} of {settings.starts} ...")
            for name, (cpu_s, share_s) in _turn(place, images, settings.peer).items():
                if number:  # skip the first start, which reads the image's files from disk
                    costs.setdefault(name, []).append(cpu_s)
                    shares += [share_s] if share_s else []
    share_s = statistics.median(shares)
    for name in {FARCALL, PEER_PLAIN, PEER} & costs.keys():
        costs[name] = [cpu_s - share_s for cpu_s in costs[name]]
    medians = {name: statistics.median(values) for name, values in costs.items()}
    headings = ("what", "CPU s up to the function", "times farcall's")
    lines = [
        (name, report.runs(values, ".3f"), f"{medians[name] / medians[FARCALL]:.2f}")
        for name, values in costs.items()
    ]
    what = "real container: CPU from interpreter start to the call of the function"
    rows = [Row(what, 0.12, medians[FARCALL], "s", medians.get(PEER))]
    return Part(TITLE, rows, headings, lines, f"docker's share is {1000 * share_s:.0f} ms.")


def _turn(stage: Stage, images: dict[str, str], peer: str) -> dict[str, tuple[float, float]]:
    """Start each container once; return its CPU time, and docker's share if known."""
    label = images["label"]
    found = {
        "base: Python alone": _floor(images["base"], "sys", label),
        "farcall's image: imports": _floor(images["farcall"], "cloudpickle, obstore", label),
        FARCALL: (sum(stage.measure("starts", 1, vcpu=1).result[0]), 0.0),
    }
    if peer:
        found["peer's image: imports"] = _floor(images["peer"], "cloudpickle, boto3", label)
        for name, form in ((PEER_PLAIN, "plain"), (PEER, "dispatched")):
            run = stage.measure(form, 1, python=peer, image=images["peer"])
            found[name] = sum(run.result[0]), 0.0
    return found


def _floor(image: str, modules: str, label: str) -> tuple[float, float]:
    """Start an interpreter below a shell, to which docker's share is attributed."""
    code = f"import json, {modules}\n{inspect.getsource(probe)}\nprint(json.dumps(probe()))"
    limits = ("--network=host", "--cpus=1", f"--label={label}", "--entrypoint=sh")
    done = _docker("run", "--rm", *limits, image, "-c", 'python3 -c "$0"; exit $?', code)
    cpu_s, share_s = json.loads(done)
    return cpu_s, share_s


@contextlib.contextmanager
def _images(*, peer: bool) -> Iterator[dict[str, str]]:
    """Build the images, yield their names and their common label, and remove them."""
    python = f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
    base = os.environ.get("BENCHMARK_BASE_IMAGE") or os.environ.get("TEST_BASE_IMAGE") or python
    run = uuid.uuid4().hex[:12]
    label = f"farcall.benchmark={run}"
    images = {"base": base, "label": label}
    try:
        _docker("version")
        for name, file in {
            "farcall": ROOT / "Dockerfile",
            **({"peer": _PEER} if peer else {}),
        }.items():
            images[name] = f"farcall-benchmark-{name}:{run}"
            named = (f"--tag={images[name]}", f"--label={label}", f"--build-arg=BASE_IMAGE={base}")
            _docker(*_BUILD, *named, f"--file={file}", str(ROOT))
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoEngineError(
            f"No docker engine responds, or no image can be built on {base}. {error} "
            "BENCHMARK_BASE_IMAGE names another base image, which needs Python and pip."
        ) from error
    try:
        yield images
    finally:
        if containers := _docker("ps", "--all", "--quiet", f"--filter=label={label}").split():
            _docker("rm", "--force", "--volumes", *containers)
        _docker("rmi", "--force", *(images[name] for name in images.keys() & {"farcall", "peer"}))


def _docker(*arguments: str) -> str:
    """Run a docker command, and return its stdout."""
    return subprocess.check_output(["docker", *arguments], text=True)
