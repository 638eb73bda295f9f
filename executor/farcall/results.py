"""Outcomes and endings to values and errors. No I/O."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from farcall import errors, payload
from farcall.states import JobDetail, JobStatus, ending
from farcall.tracebacks import with_source
from farcall_runtime import envelope, failures
from farcall_runtime.contract import CallStatus, OutcomeStatus
from farcall_runtime.envelope import Buffer

_TAIL_LINES = 20
_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError", "AttributeError", "MissingError")
_SIGNAL_EXIT = 128  # a shell's way to tell a signal by an exit code


@dataclass(frozen=True)
class Result:
    """What came of one call.

    Attributes:
        value: The function's value; None where there is an error.
        error: What to raise; None where the function returned.
    """

    value: Any = None
    error: BaseException | None = None

    def unwrap(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True)
class About:
    """What every error says of its job; see `farcall.errors.JobError` for the attributes."""

    job_id: str
    name: str
    reason: str = ""
    attempts: int = 0
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)
    log_url: str | None = None

    def fields(self, exit_code: int | None = None) -> dict[str, Any]:
        """Return the keyword arguments of an error about this job."""
        return {
            "job_id": self.job_id,
            "reason": self.reason,
            "exit_code": exit_code,
            "attempts": self.attempts,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "log_url": self.log_url,
        }

    def tell(self, sentence: str, remedy: str) -> str:
        """Write a message: what happened, to which job, what to do, and the end of its stderr."""
        text = f"{sentence}: job {self.job_id} ({self.name})"
        if self.reason:
            text += f", Batch says {self.reason!r}"
        text += f". To do: {remedy}."
        tail = self.stderr.rstrip().splitlines()[-_TAIL_LINES:]
        if tail:
            text += "\nThe end of its stderr:\n" + "\n".join(f"  {line}" for line in tail)
        if self.log_url:
            text += f"\nIts log: {self.log_url}"
        return text


def is_success(meta: dict[str, Any]) -> bool:
    """Tell whether an outcome holds a value for each call."""
    return meta["status"] == OutcomeStatus.DONE and all(
        record["status"] == CallStatus.RETURNED for record in meta["results"]
    )


def read(meta: dict[str, Any], value: Buffer, job: About) -> list[Result]:
    """Turn a verified outcome into results: one for each call, or one for all of them.

    Args:
        meta: The outcome's description.
        value: The packed pickles.
        job: What errors say of the job.
    """
    status = meta["status"]
    if status == OutcomeStatus.DONE:
        parts = envelope.unpack(value)
        return [
            _read_one(record, parts[record["first"] : record["first"] + record["count"]], job)
            for record in meta["results"]
        ]
    if status == OutcomeStatus.REFUSED:
        return [Result(error=_refused(meta, job))]
    return [Result(error=_broken(meta, job))]


def lost(job: About) -> errors.JobLostError:
    """Say that Batch no longer knows a job."""
    return errors.JobLostError(
        job.tell(
            "Batch no longer lists the job, and it left no outcome",
            "submit it again; Batch forgets jobs some days after their end",
        ),
        **job.fields(),
    )


def taken(job: About) -> errors.OutcomeMissingError:
    """Say that an outcome was there and is no longer."""
    return errors.OutcomeMissingError(
        job.tell(
            "the outcome was there and was deleted before it was fetched",
            "find out who deletes; a second client that waits for the same job does, unless "
            "keep_artifacts is set",
        ),
        **job.fields(),
    )


def unusable(error: envelope.EnvelopeError, job: About) -> errors.OutcomeError:
    """Say that an outcome was refused unopened."""
    if isinstance(error, envelope.VersionMismatchError):
        return errors.VersionMismatchError(
            job.tell(str(error), "use the same farcall on both sides"), **job.fields()
        )
    return errors.IntegrityError(
        job.tell(
            f"the outcome is not what the job wrote ({error}); it was not unpickled",
            "find out who else writes to the bucket",
        ),
        **job.fields(),
    )


def ended(job: About, detail: JobDetail, *, stuck: bool) -> errors.FarcallError:
    """Say why a job ended that left no outcome."""
    if stuck and detail.status is JobStatus.FAILED:
        return errors.JobStuckError(
            job.tell(
                "the job could not be placed for stuck_timeout_s and was ended",
                "ask for fewer vcpu, memory or num_gpus, or enlarge the compute environment",
            ),
            **job.fields(),
        )
    row = ending(detail)
    sentence = row.sentence
    if row.error is errors.JobError and detail.exit_code is not None:
        sentence += f" (exit code {detail.exit_code})"
    return row.error(job.tell(sentence, row.remedy), **job.fields(detail.exit_code))


def _read_one(record: dict[str, Any], parts: Sequence[Buffer], job: About) -> Result:
    status = record["status"]
    if status == CallStatus.RETURNED:
        try:
            return Result(payload.load(parts))
        except Exception as error:  # the value's own code
            sentence = (
                f"the function's value cannot be unpickled here ({type(error).__name__}: {error})"
            )
            remedy = "install here what the value's class needs"
            return Result(error=_not_picklable(sentence, remedy, job, error))
    if status == CallStatus.RAISED:
        return Result(error=_raised(record, parts, job))
    return Result(error=explain(record, job))


def explain(record: dict[str, Any], job: About) -> errors.FarcallError:
    """Say why a call has no value although the function did not raise; it unpickles nothing."""
    first = record["chain"][0]
    why = f"{first['type']}: {first['message']}"
    if record["status"] == CallStatus.UNPICKLABLE:
        sentence = (
            f"the function returned a {record['value_type']}, which cannot be pickled ({why})"
        )
        remedy = "return plain data; of a generator or an iterator, a list of what it gives"
        return _not_picklable(sentence, remedy, job)
    if first["type"].endswith("envelope.VersionMismatchError"):
        remedy = "build the image with the same versions as here"
        return errors.VersionMismatchError(job.tell(first["message"], remedy), **job.fields())
    remedy = "install what they import in the image, in the same version as here"
    if not first["type"].endswith(_IMPORT_ERRORS):
        remedy = "see the traceback: their own code fails where they are read"
    return errors.TaskError(
        job.tell(f"the image cannot read the function or its arguments ({why})", remedy)
        + f"\n{record['traceback']}",
        **job.fields(),
    )


def _not_picklable(
    sentence: str, remedy: str, job: About, cause: BaseException | None = None
) -> errors.ResultNotPicklableError:
    error = errors.ResultNotPicklableError(job.tell(sentence, remedy), **job.fields())
    error.__cause__ = cause
    return error


# --- exceptions ------------------------------------------------------------------------------


def _raised(record: dict[str, Any], parts: Sequence[Buffer], job: About) -> BaseException:
    """Rebuild the exception the function raised, with its chain and its remote traceback."""
    chain = record["chain"]
    members = [_member(link, parts) for link in chain]
    for link, behind, member in zip(chain[1:], members, members[1:], strict=False):
        # By the base class's own attributes: a class may refuse to have any set.
        if link["relation"] == failures.CAUSE:
            BaseException.__cause__.__set__(behind, member)  # type: ignore[union-attr]
        else:
            BaseException.__context__.__set__(behind, member)  # type: ignore[union-attr]
    note = (
        f"Raised in AWS Batch job {job.job_id} ({job.name}), attempt {job.attempts}:\n"
        f"{with_source(record['traceback'])}"
    )
    if isinstance(members[0], _Unknown):
        text = f"the function raised {members[0]}\n{note}"
        known = errors.TaskError(text, **job.fields())
        known.__cause__, known.__context__ = members[0].__cause__, members[0].__context__
        return known
    _add_note(members[0], members[-1], note)
    return members[0]


class _Unknown(errors.TaskError):
    """Stands for a member of the chain that cannot be an object here."""


def _member(link: dict[str, Any], parts: Sequence[Buffer]) -> BaseException:
    if link["part"] is not None:
        try:
            error = payload.load([parts[link["part"]]])
        except Exception:  # a class this process lacks, or whose own code fails here
            error = None
        if isinstance(error, Exception):
            return error
    return _Unknown(f"{link['type']}: {link['message']}")


def _add_note(error: BaseException, last: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):
        notes = vars(error).get("__notes__", ())
        vars(error)["__notes__"] = [*(notes if isinstance(notes, list) else ()), note]
    elif last.__cause__ is None:  # Python 3.10 shows no notes, but it shows causes
        last.__cause__ = errors.TaskError(note)


# --- ends of the process ---------------------------------------------------------------------


def _broken(meta: dict[str, Any], job: About) -> errors.JobError:
    """Say how the task's process ended where it did not come back."""
    status, code = meta["status"], meta["child_status"]
    usage = meta["usage"]
    if status == OutcomeStatus.OUT_OF_MEMORY:
        # The container's peak where the kernel tells it: the process's own is but a part.
        peak = meta.get("memory_peak_bytes") or usage.get("peak_memory_bytes") or 0
        limit = usage.get("memory_limit_bytes")
        within = f" of {limit / 2**20:.0f} MiB" if limit else ""
        return errors.OutOfMemoryError(
            job.tell(
                f"the task was killed for its memory ({peak / 2**20:.0f} MiB{within} in use)",
                "raise memory",
            ),
            **job.fields(_exit_code(code)),
        )
    if status == OutcomeStatus.TIMED_OUT:
        return errors.JobTimeoutError(
            job.tell("the task ran longer than time_limit", "raise time_limit"),
            **job.fields(_exit_code(code)),
        )
    if status == OutcomeStatus.EXITED:
        sentence = f"the task's process left with exit code {code} before the function returned"
        remedy = "something called os._exit, or C code called exit; see its output"
    else:
        sentence = f"the task's process was killed by {_signal_name(-code)}"
        remedy = "see its output; SIGSEGV comes from C code, SIGKILL most often from the kernel"
    return errors.ChildKilledError(job.tell(sentence, remedy), **job.fields(_exit_code(code)))


def _refused(meta: dict[str, Any], job: About) -> errors.FarcallError:
    """Say why the container refused to run the task."""
    row = ending(JobDetail(job.job_id, job.name, status=JobStatus.FAILED, exit_code=meta["code"]))
    return row.error(
        job.tell(f"{row.sentence} ({meta['detail']})", row.remedy), **job.fields(meta["code"])
    )


def _exit_code(status: int | None) -> int | None:
    return _SIGNAL_EXIT - status if status is not None and status < 0 else status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
