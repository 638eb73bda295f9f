"""JOB arguments: full IDs, prefixes of IDs, names, or none for the newest job.

If an argument is not an ID, its job is printed to stderr.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from farcall.cli import tables
from farcall.cli.printing import echo
from farcall.config.settings import Settings
from farcall.engine.session import Session, this_user
from farcall.model.errors import UnknownError
from farcall.operations.catalog import Catalog, Entry
from farcall.operations.finding import Finder


async def job_id(
    settings: Settings, session: Session, reference: str | None, *, quiet: bool = False
) -> str:
    """Return the job ID for an argument, or the user's newest job without one.

    Args:
        settings: The queue to search, and the ``workflow`` whose newest job is used if it is set.
        session: The event loop's session.
        reference: The argument, or None.
        quiet: Whether not to print the job.

    Raises:
        UnknownError: No job matches, or several do.
        ServiceError: An AWS call failed.
    """
    finder = Finder(session.backend, [settings.queue], this_user())
    if reference is not None:
        return await _one(finder, reference, quiet=quiet)
    newest = await finder.newest(settings.workflow or None)
    if not quiet:
        _print_job("the newest", newest)
    return newest.detail.job_id


async def described(session: Session, job_id: str) -> Entry:
    """Return Batch's description of a job.

    Raises:
        UnknownError: Batch does not know the job, or farcall did not submit it.
    """
    known = await Catalog(session.backend).describe([job_id])
    if job_id not in known:
        await session.describe(job_id)  # its error names the tasks of an array job
    return recognized(known, job_id, session)


def recognized(known: Mapping[str, Entry | None], job_id: str, session: Session) -> Entry:
    """Return one of the jobs that `Catalog.describe` found.

    Raises:
        UnknownError: Batch does not know the job, or farcall did not submit it.
    """
    if job_id not in known:
        raise UnknownError(session.backend.unknown(job_id))
    entry = known[job_id]
    if entry is None:
        raise UnknownError(f"job {job_id} was not submitted by farcall")
    return entry


async def found(
    finder: Finder, references: Collection[str], *, to_end: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Return the job IDs for arguments with a custom finder.

    Args:
        finder: The finder.
        references: The arguments.
        to_end: Whether the jobs will be cancelled; see `Finder.find`.
    """
    job_ids, missing = [], {}
    for reference in dict.fromkeys(references):
        try:
            job_ids.append(await _one(finder, reference, to_end=to_end))
        except UnknownError as error:
            missing[reference] = str(error)
    return list(dict.fromkeys(job_ids)), missing


async def _one(
    finder: Finder, reference: str, *, to_end: bool = False, quiet: bool = False
) -> str:
    job_id, named = await finder.find(reference, to_end=to_end)
    if named is not None and not quiet:
        _print_job(reference, named)
    return job_id


def _print_job(reference: str, entry: Entry) -> None:
    detail = entry.detail
    echo(
        f"{reference}: job {detail.job_id} ({detail.name}), {tables.word(detail)}, submitted "
        f"{tables.age(detail.created_at)} ago",
        err=True,
    )
