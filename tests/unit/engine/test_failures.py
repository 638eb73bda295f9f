"""Facts about jobs in errors, in addition to the failure reason."""

from datetime import UTC, datetime, timedelta

import pytest

from farcall.backends.base import LogEvent
from farcall.backends.batch.describe import BatchJob
from farcall.engine import failures
from farcall.model.errors import CommandError, ServiceError
from farcall.model.failure_reasons import About
from farcall.model.jobs import Attempt, JobStatus
from farcall.model.timing import Timing

NOW = datetime.now(UTC)
TRIED = [
    Attempt("Host EC2 (instance i-1) terminated."),
    Attempt("Essential container in task exited", "", 3, "log/2"),
]
ENDED = BatchJob(
    "job-1",
    "hello",
    JobStatus.FAILED,
    status_reason=TRIED[1].status_reason,
    exit_code=3,
    tried=tuple(TRIED),
    stopped_at=NOW,
    log_stream="log/2",
    is_command=True,
)


class Backend:
    """Backend with one log, or with a log that may not be read."""

    name = "batch"

    def __init__(self, clock, lines):
        self._clock = clock
        self._lines = lines
        self.asked = []

    def links(self, detail):
        return {"log": f"https://console/{detail.log_stream}"}

    def log(self, group, stream):
        self.asked.append((stream, self._clock.now()))
        return self

    async def last(self, number):
        if self._lines is None:
            raise ServiceError("not authorized")
        return [LogEvent(NOW, text) for text in self._lines][-number:]


async def test_command_error_explains_each_attempt(clock):
    found = await failures.of_command(Backend(clock, ["one", "two"]), Timing(), ENDED)
    assert isinstance(found, CommandError)
    assert (found.exit_code, found.attempts, found.stdout) == (3, 2, "one\ntwo\n")
    assert found.reason == "Essential container in task exited"
    assert found.log_url == "https://console/log/2"
    assert "Attempt 1 failed with HostLostError" in str(found)
    assert "Attempt 2" not in str(found)


async def test_unreadable_log_does_not_hide_error(clock):
    found = await failures.of_command(Backend(clock, None), Timing(), ENDED)
    assert (type(found), found.stdout) == (CommandError, "")


@pytest.mark.parametrize(("ago_s", "waits_s"), [(3600, 0.0), (-3600, 2.0)])
async def test_last_lines_wait_for_log_delay(clock, ago_s, waits_s):
    """The clock may differ from Batch's, so the wait has a maximum."""
    backend = Backend(clock, [])
    detail = BatchJob(
        "job-1",
        "hello",
        JobStatus.FAILED,
        log_stream="a",
        stopped_at=NOW - timedelta(seconds=ago_s),
    )
    begun = clock.now()
    await failures.of_command(backend, Timing(log_settle_s=2.0), detail)
    ((stream, at),) = backend.asked
    assert stream == "a"
    assert at - begun == pytest.approx(waits_s, abs=0.01)


def test_running_job_has_no_failure_reason(clock):
    detail = BatchJob("job-1", "hello", JobStatus.RUNNING, status_reason="said")
    found = failures.about_job(Backend(clock, []), About("job-1", "hello"), detail, 1)
    assert (found.reason, found.platform_reason) == ("", "")
