"""Deadlines of an attempt, up to the moment when its outcome is abandoned."""

from __future__ import annotations

import math
import os
import signal
import time

_CLEAN_UP_S = 20.0
"""Time from SIGTERM to the task's SIGKILL, in seconds."""

_GRACE_S = 27.0
"""Time from SIGTERM to the supervisor's exit, in seconds; Batch sends SIGKILL after 30 s."""

_EXIT_S = 10.0
"""Time from the last result to the task's SIGKILL, in seconds: for its atexit handlers."""

_WARNING_SHARE, _MOST_WARNING_S = 0.1, 30.0
_LEAVE_S = 2.0
_KILL_S = 5.0
_END_S = 600.0
_FLUSH_S = 10.0


class Times:
    """Deadlines of one attempt, in seconds of `time.monotonic`.

    Batch counts the time limit from the container's start. When it expires, Batch sends SIGTERM,
    and SIGKILL 30 s later. The function is interrupted before the limit by a tenth of it, at most
    30 s. After half of that time its process is killed, so that the other half is left to store
    the outcome.

    Args:
        end_s: Maximum time for storing an outcome.
        grace_s: Maximum time from SIGTERM to the supervisor's exit.
        exit_s: Maximum time that the task's process may run after its last result.

    Attributes:
        started: Start time of the process.
        limit_s: The job's time limit, once it is known.
        terminated_at: Arrival time of SIGTERM.
        timed_out: Whether the function was interrupted because of the time limit.
        stopped_at: Time of the call of `stop`.
        done_at: Arrival time of the last result; infinite before.

    Source:
        https://docs.aws.amazon.com/batch/latest/userguide/job_timeouts.html
    """

    def __init__(
        self, end_s: float = _END_S, grace_s: float = _GRACE_S, exit_s: float = _EXIT_S
    ) -> None:
        self.started = time.monotonic() - process_age_s()
        self.limit_s: float | None = None
        self.terminated_at: float | None = None
        self.stopped_at: float | None = None
        self._stopped_for = ""
        self.timed_out = False
        self._end_s, self._grace_s, self._exit_s = end_s, grace_s, exit_s
        self._kill_at: float | None = None  # known once the function was interrupted, or is done
        self._killed_at = math.inf
        self.done_at = math.inf
        self._ended_at: float | None = None

    def due(self) -> signal.Signals | None:
        """Return the signal that the task's process must get now.

        Each signal is returned once, because another SIGTERM would interrupt the function's
        cleanup.
        """
        now = time.monotonic()
        if self._kill_at is not None:
            if now <= self._kill_at:
                return None
            self._kill_at, self._killed_at = math.inf, now
            return signal.SIGKILL
        if self.terminated_at is not None:
            self._kill_at = self.terminated_at + _CLEAN_UP_S
            return signal.SIGTERM
        warning_at, kill_at = self._limit()
        if self.stopped_at is not None:
            self._kill_at = min(self.stopped_at + _CLEAN_UP_S, kill_at)
            return signal.SIGTERM
        if now > warning_at:
            self.timed_out = True
            self._kill_at = kill_at
            return signal.SIGTERM
        return None

    def stop(self, why: str) -> None:
        """Stop the function for a reason that farcall gives."""
        if self.stopped_at is None:
            self.stopped_at, self._stopped_for = time.monotonic(), why

    def leave_at(self) -> float:
        """Return when to stop waiting for other nodes. SIGTERM changes it."""
        return self._limit()[0] if self.terminated_at is None else self.terminated_at

    def _limit(self) -> tuple[float, float]:
        """Return when the time limit interrupts the function, and when it kills it."""
        if self.limit_s is None:
            return math.inf, math.inf
        warning_s = min(self.limit_s * _WARNING_SHARE, _MOST_WARNING_S)
        end = self.started + self.limit_s
        return end - warning_s, end - warning_s / 2

    def until_due(self, most_s: float) -> float:
        """Return the seconds until `due` must be checked again, at most ``most_s``."""
        at = self._limit()[0] if self._kill_at is None else self._kill_at
        return min(most_s, max(0.0, at - time.monotonic()))

    def is_unkillable(self) -> bool:
        """Return whether SIGKILL had no effect, as on a process blocked in the kernel."""
        return time.monotonic() > self._killed_at + _KILL_S

    @property
    def was_stopped(self) -> bool:
        """Whether SIGTERM arrived while the task still had work to do."""
        until = min(self.done_at, math.inf if self._ended_at is None else self._ended_at)
        return self.terminated_at is not None and self.terminated_at < until

    def done(self) -> None:
        """Record that the last result has arrived.

        Its process has little time to exit from now on. That time does not reduce the outcome's
        time, which begins where a function would be interrupted.
        """
        if self.done_at < math.inf:
            return
        self.done_at = time.monotonic()
        warning_at, _ = self._limit()
        latest = warning_at if self._kill_at is None else self._kill_at
        self._kill_at = min(self.done_at + self._exit_s, latest)

    def reason(self) -> str:
        """Return why the function must stop, and the time it has, after a signal of `due`."""
        if self.timed_out:
            why = f"the job reached its time limit of {self.limit_s:g} s"
        elif self.terminated_at is None:
            why = self._stopped_for
        else:
            why = "AWS Batch is stopping this job (cancelled, terminated, or its host reclaimed)"
        left_s = max(0.0, (self._kill_at or 0.0) - time.monotonic())
        return f"{why}; its process is killed in {left_s:.2g} s"

    def end(self, most_s: float = math.inf) -> None:
        """Record that only storing the outcome is left to do.

        Args:
            most_s: Maximum time that it is worth, in seconds.
        """
        self._ended_at = time.monotonic()
        self._end_s = min(self._end_s, most_s)

    def give_up_at(self) -> float:
        """Return when to abandon all requests. SIGTERM changes it.

        Before the function begins, SIGTERM ends the attempt, because there is nothing to lose.
        Afterwards the outcome may take its time, but not beyond the time limit: Batch would kill
        the container, and the user would see a job that timed out. A function that did time out
        may use Batch's grace period too.
        """
        if self._ended_at is None:
            return math.inf if self.terminated_at is None else self.terminated_at
        until = self._ended_at + self._end_s
        if self.limit_s is not None:
            over = self._grace_s if self.timed_out else 0.0
            until = min(until, self.started + self.limit_s + over - _LEAVE_S)
        if self.terminated_at is not None:
            until = min(until, self.terminated_at + self._grace_s)
        return until

    def left_to_flush_s(self) -> float:
        """Return the maximum time for flushing the container's streams, in seconds.

        Only the exit code is not in the bucket by then, and SIGKILL would replace it.
        """
        if self.terminated_at is None:
            return _FLUSH_S
        return min(_FLUSH_S, self.terminated_at + self._grace_s + _LEAVE_S - time.monotonic())

    def give_up_streams_at(self) -> float:
        """Return when to abandon storing output: half of the time is left for the outcome."""
        if self._ended_at is None:
            return math.inf
        return (self._ended_at + self.give_up_at()) / 2


def process_age_s() -> float:
    """Return the age of this process in seconds: in a container, the container's age.

    It includes the interpreter's start. Zero if the kernel does not report it.

    Source:
        https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    try:
        with open("/proc/self/stat") as file:  # noqa: PTH123  # see memory.py
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # not Linux
        return 0.0
    return max(0.0, age) if ticks else 0.0
