"""Jobs joined on the command line: ``farcall attach``, ``result`` and ``recover``, and ``run``.

Values are deleted from the bucket only when they lie in a file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farcall.cli.printing import Printer, say
from farcall.client.executor import BatchExecutor
from farcall.client.job import Job
from farcall.client.recovery import Recovered, Run
from farcall.model import endings
from farcall.model.errors import FarcallError
from farcall.model.files import replacing
from farcall.model.settings import Settings
from farcall.model.terminal import in_a_line
from farcall_runtime import failures, pickles
from farcall_runtime.contract import STDERR

_PARALLEL = 16
"""Values that are fetched and saved at a time."""


async def follow(job_id: str) -> bool:
    """Print what a job writes as it comes, and how it ends.

    Returns:
        Whether it gave a value.
    """
    job = _opened().attach(job_id)
    await stream(job)
    error = await job.exception()
    if error is not None:
        _show(error)
    else:
        say(f"{job.id} ({job.name}) returned", err=True)
    return error is None


async def stream(job: Job[Any], *, all_to_stderr: bool = False) -> None:
    """Print what a job writes as it comes, up to its end.

    Args:
        job: The job.
        all_to_stderr: Print what it writes to stdout there, too.
    """
    printer = Printer(only=STDERR if all_to_stderr else "")
    async for batch in job.lines(follow=True):
        printer.print(batch)


async def get(job_id: str, output: Path | None) -> bool:
    """Wait for a job, and print its value or save it.

    Returns:
        Whether it gave a value.
    """
    return await hand_over(_opened().attach(job_id), output, keeps=_keeps())


async def hand_over(
    job: Job[Any],
    output: Path | None,
    *,
    keeps: bool,
    show: Callable[[Any], str] = repr,
) -> bool:
    """Wait for a job's end, and print its value or save it, or show why there is none.

    What is saved is deleted from the bucket; what is printed stays there.

    Args:
        job: The job, of an executor with ``keep_artifacts``.
        output: File for the value as a pickle.
        keeps: Whether it stays in the bucket all the same.
        show: What to print of the value.

    Returns:
        Whether it gave a value.
    """
    error = await job.exception()
    if error is not None:
        _show(error)
        return False
    value = await job.result()
    if output is None:
        say(show(value))
    else:
        await _save(value, output)
        if not keeps:
            await job.delete_outcome()
    return True


async def list_runs() -> tuple[str, list[Run]]:
    """Return where runs leave their objects, and those that have left something."""
    executor = _opened()
    settings = executor.settings
    return f"s3://{settings.s3_bucket_name}/{settings.prefix}", await executor.runs()


async def recover(run: str, folder: Path | None) -> bool:
    """Print what came of each task of a run as it comes, and save values.

    Returns:
        Whether each gave a value, now or before.
    """
    executor = _opened()
    recovered = await executor.recover(run)
    say(f"{recovered.run}: {len(recovered.jobs)} tasks to be delivered", err=True)
    places = asyncio.Semaphore(_PARALLEL)
    waits = []
    while recovered.jobs:  # and nothing holds on to the value of a job that is through
        waits.append(_bring(recovered.jobs.pop(0), places, folder))
    all_well = all(await asyncio.gather(*waits))
    if folder is not None and not _keeps():
        await recovered.discard()
    return _tell_rest(recovered) and all_well


async def _bring(job: Job[Any], places: asyncio.Semaphore, folder: Path | None) -> bool:
    """Wait for a job, save its value, and tell what came of it.

    Whatever goes wrong with this one, the others are brought back all the same.

    Returns:
        Whether it gave a value, and that was saved if it was to be.
    """
    error: BaseException | None
    said = "returned"
    try:
        await job.wait()
        async with places:
            error = await job.exception()
            if error is None and folder is not None:
                path = folder / f"{job.id.replace(':', '-')}.pickle"
                await _save(await job.result(), path)
                said = f"saved as {path}"
                if not _keeps():
                    await job.delete_outcome()
    except FarcallError as trouble:
        error = trouble
    if error is not None:
        said = endings.in_a_line(type(error).__name__, failures.message(error))
    say(f"{job.id}  {in_a_line(job.name.rpartition('-')[0])}  {said}")
    return error is None


def _tell_rest(recovered: Recovered) -> bool:
    """Tell of the tasks that are no jobs; return whether there is none that gave no value."""
    if recovered.delivered:
        say(f"{recovered.delivered} tasks were delivered before")
    for bundle in recovered.unsubmitted:
        say(f"{bundle}  was not submitted: nothing of it has run")
    for bundle in recovered.forgotten:
        say(f"{bundle}  Batch tells of no job of it, as happens after seven days")
    return not recovered.unsubmitted and not recovered.forgotten


def _opened() -> BatchExecutor:
    """Return an executor; without a block of its own nothing is looked for but what is needed."""
    return BatchExecutor(keep_artifacts=True)


def _keeps() -> bool:
    return Settings().keep_artifacts


def _show(error: BaseException) -> None:
    """Show why there is no value; of the function's own error also where it was raised."""
    if isinstance(error, FarcallError):
        say(f"farcall: {error}", fg="red", err=True)
    else:
        text = failures.with_traceback(error, error.__traceback__)
        say(text.rstrip("\n"), err=True)


async def _save(value: object, path: Path) -> None:
    await asyncio.to_thread(_write, value, path)


def _write(value: object, path: Path) -> None:
    """Pickle a value into a file that is there only once it is whole."""
    try:
        with replacing(path) as file:
            pickles.dump_to(value, file)
    except Exception as error:  # the value's own code, or the disk
        raise FarcallError(
            f"the value was not saved as {path} ({failures.in_words(error)}); "
            "it is still in the bucket"
        ) from error
