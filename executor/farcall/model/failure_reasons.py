"""Errors of jobs without a result: their texts and facts. No I/O."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from farcall.model import errors, output, terminal
from farcall.model.names import BATCH, KUBERNETES, PLATFORMS
from farcall.model.output import Bytes
from farcall_runtime import envelope
from farcall_runtime.contract import OutcomeStatus

_TAIL_LINES = 20
_FATAL_FRAME = re.compile(
    r'(?P<margin>\s*)File "(?P<file>(?:[^"]*/farcall-sources-[0-9a-f]+/\d+/)?(?P<place>[^"]+))"'
    r"(?=, line \d+ in )"
)
_TAIL_BYTES = 64 * 1024
_TAIL_CHARACTERS = 1000
"""Maximum characters of a line in the end of stderr."""

_LINE_CHARACTERS = 300
_MOST_NODES = 10
_SIGNAL_EXIT = 128  # added by shells to the number of a signal

LOST = "raise retry_attempts, or run the job on capacity that is not reclaimed (on-demand)"
MEMORY = "raise memory"
TIME_LIMIT = "raise time_limit, or run it again with `farcall retry JOB --time-limit 1h`"
SUBNET = "the subnets of the queue's compute environment need a route to"
"""Remedies for more than one kind of failure."""

OWN_REASON = "farcall: "
"""Prefix of the reason with which farcall terminates a job."""

STUCK = "stuck for "
"""Continuation of such a reason if the job could not be placed."""

NO_INSTANCE = "no instance for "
"""Continuation of such a reason if the job moves to the next queue."""

WITHDRAWN = "withdrawn: its request was not answered, and the job was not listed"
"""Continuation of such a reason if a job appeared after it had been replaced."""


MAP_FAILED = "map failed: "
"""Continuation of such a reason if a map's calls were stopped after a call's error."""


_FORGETS = {
    PLATFORMS[BATCH]: "region and account are the ones it was submitted in; Batch forgets jobs "
    "some days after they finish",
    PLATFORMS[KUBERNETES]: "context and namespace are the ones it was submitted in; finished jobs "
    "are deleted after ttl",
}
"""Place and period in which a platform retains a job."""


class About(NamedTuple):
    """Facts about a job for its errors; see `farcall.model.errors.JobError`."""

    job_id: str
    name: str
    reason: str = ""
    platform_reason: str = ""
    """The informative part of the reason."""
    attempts: int = 0
    stdout: Bytes = b""
    stderr: Bytes = b""
    log_url: str | None = None
    earlier: tuple[str, ...] = ()
    """Failure of each attempt before the last one."""
    left_out: tuple[int, int] = (0, 0)
    """Number of bytes of each stream before the ones here."""
    platform: str = PLATFORMS[BATCH]
    """The platform's name in texts."""

    def of(self, stdout: Bytes, stderr: Bytes, left_out: tuple[int, int] = (0, 0)) -> About:
        """Return the same facts for a call with this part of the job's output."""
        return self._replace(stdout=stdout, stderr=stderr, left_out=left_out)

    def part(self, begin: Sequence[int], end: Sequence[int | None] = (None, None)) -> About:
        """Return the same facts for a call whose output is between these positions.

        Args:
            begin: First byte in each stream, from the start of the job's output.
            end: End in each stream; None for the end of the output.
        """
        shares, left = [], []
        for data, out, first, last in zip(
            (self.stdout, self.stderr), self.left_out, begin, end, strict=True
        ):
            stop = len(data) if last is None else max(0, last - out)
            shares.append(data[max(0, first - out) : stop])
            left.append(max(0, min(out, out if last is None else last) - first))
        return self.of(shares[0], shares[1], (left[0], left[1]))

    def fields(self, exit_code: int | None = None) -> dict[str, Any]:
        """Return the keyword arguments of an error about this job."""
        return {
            "job_id": self.job_id,
            "reason": self.reason,
            "exit_code": exit_code,
            "attempts": self.attempts,
            "stdout": output.decoded(self.stdout, self.left_out[0]),
            "stderr": output.decoded(self.stderr, self.left_out[1]),
            "log_url": self.log_url,
        }

    def earlier_lines(self) -> list[str]:
        """Return a line for each attempt before the last one."""
        return [f"Attempt {n} failed with {how}" for n, how in enumerate(self.earlier, 1)]

    def message(self, sentence: str, remedy: str) -> str:
        """Return a message: the failure, the job, the remedy, and the end of its stderr."""
        text = f"{sentence}: job {self.job_id} ({self.name})"
        if self.platform_reason:
            text += f", {self.platform} reported {self.platform_reason!r}"
        text += f". To do: {remedy}."
        text += "".join(f"\n{line}" for line in self.earlier_lines())
        written = self.stderr[-_TAIL_BYTES:].decode(errors="replace").replace("\r\n", "\n")
        tail = [output.last_state(line) for line in written.rstrip().split("\n")]
        if any(tail):
            lines = map(_shortened, _of_user(tail)[-_TAIL_LINES:])
            text += "\nEnd of stderr:\n" + "\n".join(f"  {line}" for line in lines)
        if self.log_url:
            text += f"\nIts log: {self.log_url}"
        return text


class Dwell(NamedTuple):
    """Grace periods of a blocked job.

    Attributes:
        reported_s: Time in seconds after which the caller is notified.
        ended_s: Time in seconds after which the job is terminated; None for ``stuck_timeout_s``.
    """

    reported_s: float = 0.0
    ended_s: float | None = None


@dataclass(frozen=True)
class FailureReason:
    """Reason why a task's process did not finish, or never started.

    Attributes:
        kind: Class of the error.
        sentence: The failure in a sentence.
        remedy: The remedy.
        exit_code: Exit code of the process or the container; None if there is none.
    """

    kind: type[errors.JobError]
    sentence: str
    remedy: str
    exit_code: int | None = None

    def error(self, job: About) -> errors.FarcallError:
        """Return the error of a call."""
        return self.kind(job.message(self.sentence, self.remedy), **job.fields(self.exit_code))


def _of_user(lines: Sequence[str]) -> list[str]:
    """Return lines with the project's paths, and without farcall's frames in fatal errors.

    The frames of https://docs.python.org/3/library/faulthandler.html begin with the innermost one.
    """
    shown: list[str] = []
    is_own = False
    for line in lines:
        frame = _FATAL_FRAME.match(line)
        is_own = frame is not None and (is_own or "/farcall_runtime/" in frame["file"])
        if not is_own:
            shown.append(_FATAL_FRAME.sub(r'\g<margin>File "\g<place>"', line))
    return shown


def _shortened(line: str) -> str:
    more = len(line) - _TAIL_CHARACTERS
    return f"{line[:_TAIL_CHARACTERS]}... ({more} more characters)" if more > 0 else line


def lost(job: About) -> errors.JobLostError:
    """Return the error of a job or array task that the platform does not list."""
    parent, is_child, _ = job.job_id.partition(":")
    whole = f"run `farcall describe {parent}` to see the whole array; " if is_child else ""
    return errors.JobLostError(
        job.message(
            f"{job.platform} does not list the job, and it has no stored result",
            f"{whole}submit it again, if {_FORGETS[job.platform]}",
        ),
        **job.fields(),
    )


def taken(job: About) -> errors.OutcomeMissingError:
    """Return the error of an outcome that existed and was deleted."""
    return errors.OutcomeMissingError(
        job.message(
            "the stored result was deleted before it was fetched",
            "find out who deletes it; a second client that waits for the same job does so, unless "
            "keep_artifacts is set",
        ),
        **job.fields(),
    )


def unusable(error: envelope.EnvelopeError) -> FailureReason:
    """Return why an outcome was rejected before it was opened."""
    if isinstance(error, envelope.VersionMismatchError):
        return FailureReason(
            errors.VersionMismatchError, str(error), "use the same farcall on both sides"
        )
    return FailureReason(
        errors.IntegrityError,
        f"the stored result is not what the job wrote: another client wrote or changed it "
        f"({error}). It was not unpickled",
        "find out who else writes to the bucket",
    )


def of_process(meta: dict[str, Any]) -> FailureReason:
    """Return how the task's process ended without a result, from its outcome."""
    status, code = meta["status"], meta["child_status"]
    usage = meta["usage"]
    if status == OutcomeStatus.OUT_OF_MEMORY:
        # The container's peak if the kernel reports it, because the process's own is only a part.
        peak = meta.get("memory_peak_bytes") or usage.get("peak_memory_bytes") or 0
        limit = usage.get("memory_limit_bytes")
        within = f" of {limit / 2**20:.0f} MiB" if limit else ""
        sentence = f"the task ran out of memory ({peak / 2**20:.0f} MiB{within} in use)"
        return FailureReason(errors.OutOfMemoryError, sentence, "raise memory", _exit_code(code))
    if meta.get("missing"):
        nodes = ", ".join(map(str, meta["missing"][:_MOST_NODES]))
        sentence = f"the main node waited until time_limit for nodes without a result ({nodes})"
        remedy = "see the output of these nodes: their hosts were lost, or time_limit is too short"
        return FailureReason(errors.JobTimeoutError, sentence, remedy, _exit_code(code))
    if status == OutcomeStatus.TIMED_OUT:
        limit = f"={meta['time_limit_s']:g} s" if "time_limit_s" in meta else ""
        sentence = f"the task was interrupted so that it could clean up before time_limit{limit}"
        return FailureReason(errors.JobTimeoutError, sentence, TIME_LIMIT, _exit_code(code))
    if status == OutcomeStatus.EXITED and meta.get("detail"):
        sentence = f"the task's process could not hand over its result: {meta['detail']}"
        remedy = (
            "see its output; a function must not close or replace descriptors that it did not "
            "open, and must leave enough memory to hand over its result"
        )
    elif status == OutcomeStatus.EXITED:
        sentence = f"the task's process exited with code {code} before the function returned"
        remedy = (
            "see its output; the code called os._exit or os.exec, or C code called exit or exec"
        )
    else:
        sentence = f"the task's process was killed by {_signal_name(-code)}"
        remedy = "see its output; SIGSEGV comes from C code, SIGKILL most often from the kernel"
    return FailureReason(errors.ChildKilledError, sentence, remedy, _exit_code(code))


def in_a_line(kind: str, text: str) -> str:
    """Return an error in the format of a traceback's last line."""
    first = next(iter(text.splitlines()), "")
    line = terminal.in_a_line(f"{kind}: {first}" if first else kind)
    return line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]}..."


def _exit_code(status: int | None) -> int | None:
    return _SIGNAL_EXIT - status if status is not None and status < 0 else status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
