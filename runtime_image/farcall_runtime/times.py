"""When a function is told to stop, when it is killed, and when its outcome is given up."""

from __future__ import annotations

import math
import os
import signal
import time

_CLEAN_UP_S = 20.0
"""From SIGTERM to the task's SIGKILL."""

_GRACE_S = 27.0
"""From SIGTERM to the supervisor's exit; Batch's SIGKILL comes after 30 s."""

_EXIT_S = 10.0
"""From the hand-over of the last value to the task's SIGKILL: for its atexit handlers."""

_WARNING_SHARE, _MOST_WARNING_S = 0.1, 30.0
_LEAVE_S = 2.0
_KILL_S = 5.0
_END_S = 600.0
_FLUSH_S = 10.0


class Times:
    """What one attempt has to do when, in seconds of `time.monotonic`.

    Batch counts the time limit from the container's start, sends SIGTERM when it is over and
    SIGKILL 30 s later. The function is told a tenth of the limit before, at most 30 s, and its
    process is killed when half of that is over, so that the other half is there to store in.

    Args:
        end_s: For how long an outcome is tried to be stored.
        grace_s: How long after SIGTERM the process leaves at the latest.
        exit_s: How long the task's process may stay once it has handed over its last value.

    Attributes:
        started: When the process was started.
        limit_s: The job's time limit, once it is known.
        terminated_at: When SIGTERM came.
        timed_out: Whether the function was told that its time is up.
        stopped_at: When `stop` was called.
        done_at: When the last value was there; infinite before.

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
        self._kill_at: float | None = None  # known once the function was told, or is done
        self._killed_at = math.inf
        self.done_at = math.inf
        self._ended_at: float | None = None

    def due(self) -> signal.Signals | None:
        """Return the signal that the task's process must get now.

        Each is told once: another SIGTERM would cut off the function's cleaning up.
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
        """Have the function told to stop, for a reason of farcall's own."""
        if self.stopped_at is None:
            self.stopped_at, self._stopped_for = time.monotonic(), why

    def leave_at(self) -> float:
        """Return when not to wait any longer for others. SIGTERM changes it."""
        return self._limit()[0] if self.terminated_at is None else self.terminated_at

    def _limit(self) -> tuple[float, float]:
        """Return when the function is told that its time is up, and when it is killed."""
        if self.limit_s is None:
            return math.inf, math.inf
        warning_s = min(self.limit_s * _WARNING_SHARE, _MOST_WARNING_S)
        end = self.started + self.limit_s
        return end - warning_s, end - warning_s / 2

    def until_due(self, most_s: float) -> float:
        """Return how long to wait before `due` is asked again, in seconds, at most ``most_s``."""
        at = self._limit()[0] if self._kill_at is None else self._kill_at
        return min(most_s, max(0.0, at - time.monotonic()))

    def is_beyond_reach(self) -> bool:
        """Return whether SIGKILL was of no use: a process in the kernel's hands can outlive it."""
        return time.monotonic() > self._killed_at + _KILL_S

    @property
    def was_stopped(self) -> bool:
        """Whether SIGTERM came while there was still something to do for the task."""
        until = min(self.done_at, math.inf if self._ended_at is None else self._ended_at)
        return self.terminated_at is not None and self.terminated_at < until

    def done(self) -> None:
        """Note that the last value is there, so that its process has little time to leave.

        None of what the outcome needs: that begins where a function would be told to stop.
        """
        if self.done_at < math.inf:
            return
        self.done_at = time.monotonic()
        warning_at, _ = self._limit()
        latest = warning_at if self._kill_at is None else self._kill_at
        self._kill_at = min(self.done_at + self._exit_s, latest)

    def reason(self) -> str:
        """Say why the function must stop, once `due` says that it must, and how long it has."""
        if self.timed_out:
            why = f"the job's time limit of {self.limit_s:g} s is over"
        elif self.terminated_at is None:
            why = self._stopped_for
        else:
            why = "AWS Batch is stopping this job (cancelled, terminated, or its host taken away)"
        left_s = max(0.0, (self._kill_at or 0.0) - time.monotonic())
        return f"{why}; its process is killed in {left_s:.2g} s"

    def end(self, most_s: float = math.inf) -> None:
        """Note that from now on everything there is to do is storing the outcome.

        Args:
            most_s: For how long at most that is worth it.
        """
        self._ended_at = time.monotonic()
        self._end_s = min(self._end_s, most_s)

    def give_up_at(self) -> float:
        """Return when no request is to be waited for any longer. SIGTERM changes it.

        Before the function begins SIGTERM is the end: there is nothing to lose. Afterwards the
        outcome has its time, but not beyond the time limit: Batch would kill the container, and
        the user would hear of a job that took too long. One that did may use Batch's grace, too.
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
        """Return for how long the container's own streams may be waited for at the end.

        All that counts is in the bucket by then, except the exit code: SIGKILL has its own.
        """
        if self.terminated_at is None:
            return _FLUSH_S
        return min(_FLUSH_S, self.terminated_at + self._grace_s + _LEAVE_S - time.monotonic())

    def give_up_streams_at(self) -> float:
        """The same of output, of which the outcome tells: half of the time is the outcome's."""
        if self._ended_at is None:
            return math.inf
        return (self._ended_at + self.give_up_at()) / 2


def process_age_s() -> float:
    """Return how long ago this process was started: in a container, the container.

    The interpreter's own start is in it. Zero where the kernel doesn't tell.

    Source:
        https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    try:
        with open("/proc/self/stat") as file:  # noqa: PTH123  # see memory.py
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # no Linux
        return 0.0
    return max(0.0, age) if ticks else 0.0
