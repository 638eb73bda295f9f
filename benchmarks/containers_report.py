"""What `benchmarks.containers` measured, as tables and as a part of ``RESULTS.md``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks import containers, report
from benchmarks.containers import Containers

TITLE = "What a container costs"

_HEADINGS = (
    "what",
    "CPU s up to the function",
    "wall s up to the function",
    "of it the engine's",
    "CPU s of the whole container",
)
_IMAGE_HEADINGS = ("image", "MB", "MB above the base", "packages", "packages above the base")
_DIGITS = 3

_METHOD = """\
Every start is a real container of a docker engine on this machine, with one processor and the
machine's network. The images were built in the same run: farcall's by the repository's Dockerfile,
the peer's by the steps of the peer's own (`peer.Dockerfile`), both on the same base. Each kind was
started once uncounted, and then all in turns. Figures are medians of the starts, which follow in
brackets. Other programs share the machine, so CPU is the figure to look at.

**CPU up to the function:** from the start of the interpreter to the first line of the user's
function, which reads the clocks of all the container's processes. Imports, credentials, the
fetching and verifying of function and arguments, and their unpickling are all in it. A container's
first process is docker's own until it executes the image's program, and its clock goes on: what
docker leaves in it was seen in the floors, where a shell is the first process, and its median is
taken off ({share}).

**Wall time up to the function** begins when the engine creates the container, its image being on
the machine. The engine's part of it ends when it says that the program runs, which can be some
milliseconds late.

**The whole container:** CPU that its control group counted up to about a millisecond before its
end, storing the outcome and docker's share included.

**Real:** the images, the containers and all that runs in them, the clients, the job definitions,
and role credentials that the container fetches from an endpoint as on ECS. **Played:** S3 and
Batch by the local AWS emulator on the same machine, over HTTP without TLS.

**Floors:** an interpreter in a container that imports the modules named, and nothing else.

**Peer:** covalent-awsbatch-plugin 0.42.0 from PyPI, `AWSBatchExecutor.run` driven directly
against the same local AWS emulator; in its image the `exec.py` of covalent-aws-plugins 0.19.0,
unchanged. A function that needs nothing of Covalent is its best case. A Covalent server gives
its executor the function in Covalent's own wrapper (`wrapper_fn`), which brings Covalent with it
in the container; this was measured the same way, without a server. farcall's containers import
no Covalent.
"""


def rows(found: Containers) -> list[report.Row]:
    """Hold the measurements against the figure to be reached."""
    what = "real container: CPU from interpreter start to the call of the function"
    peer = found.cpu_s(containers.PEER) if containers.PEER in found.costs else None
    return [report.Row(what, 0.12, found.cpu_s(containers.FARCALL), "s", peer)]


def tables(found: Containers) -> list[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """Return title, headings and lines of each table."""
    starts: list[Sequence[str]] = [
        (
            name,
            _numbers(costs.cpu_s),
            _numbers(costs.wall_s),
            f"{statistics.median(costs.engine_s):.3f}",
            _numbers(costs.life_s) if all(costs.life_s) else "not to be seen",
        )
        for name, costs in found.costs.items()
    ]
    base = found.images[0]
    images: list[Sequence[str]] = [
        (
            image.name,
            f"{image.size / 1e6:.0f}",
            "" if image is base else f"{(image.size - base.size) / 1e6:.0f}",
            str(image.packages),
            "" if image is base else str(image.packages - base.packages),
        )
        for image in found.images
    ]
    return [("Starts", _HEADINGS, starts), ("Images", _IMAGE_HEADINGS, images)]


def part(found: Containers, *, options: str) -> report.Part:
    """Return the part of the page."""
    told = tables(found)
    starts, images = (report.table(headings, lines) for _, headings, lines in told)
    share = f"{1000 * statistics.median(found.shares):.0f} ms here"
    pieces = [
        starts,
        "\n".join(f"* {line}" for line in _ratios(found)),
        "## Their images",
        f"The base is {found.images[0].system}.",
        images,
        "## How the containers were measured",
        _METHOD.format(share=share),
    ]
    return report.part(TITLE, rows(found), pieces, options=options, tables=told)


def _ratios(found: Containers) -> list[str]:
    """Say how the starts compare, in CPU up to the function."""
    own = found.cpu_s(containers.FARCALL)
    floor = own / found.cpu_s(containers.FLOOR)
    bare = own / found.cpu_s(containers.BARE)
    told = [f"farcall: {floor:.2f} times its floor, {bare:.1f} times Python alone."]
    others = (containers.PEER_FLOOR, containers.PEER_PLAIN, containers.PEER)
    told += [
        f"{name}: {found.cpu_s(name) / own:.1f} times as much CPU as farcall."
        for name in others
        if name in found.costs
    ]
    return told


def _numbers(values: Sequence[float]) -> str:
    runs = ", ".join(f"{value:.{_DIGITS}f}" for value in values)
    return f"{statistics.median(values):.{_DIGITS}f} ({runs})"
