"""JOB arguments: whole IDs, beginnings of IDs, names, or nothing for the newest job.

What is not an ID is said on stderr with the job that it means.
"""

from __future__ import annotations

from collections.abc import Collection

from farcall.cli import tables
from farcall.cli.printing import say
from farcall.engine.session import Session, this_user
from farcall.model.errors import UnknownError
from farcall.model.settings import Settings
from farcall.operations import json_view
from farcall.operations.catalog import Entry
from farcall.operations.finding import Finder


async def job_id(
    settings: Settings, session: Session, reference: str | None, *, quiet: bool = False
) -> str:
    """Return the ID of the job that an argument means; without one, of the user's newest.

    Args:
        settings: Which queue is looked in, and where it names a ``workflow`` of which the newest
            job is taken.
        session: The event loop's session.
        reference: The argument, or None.
        quiet: Do not say which job it is.

    Raises:
        UnknownError: There is none, or there are several.
        ServiceError: AWS refused a call.
    """
    finder = Finder(session.backend, [settings.queue], this_user())
    if reference is not None:
        return await _one(finder, reference, quiet=quiet)
    newest = await finder.newest(settings.workflow or None)
    if not quiet:
        _tell("the newest", newest)
    return newest.detail.job_id


async def job_ids(
    settings: Settings, session: Session, references: Collection[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the IDs of the jobs that some arguments mean; without any, of the user's newest.

    Returns:
        The IDs, each once, and of those arguments that mean no job, why.

    Raises:
        UnknownError: There is no newest job.
        ServiceError: AWS refused a call.
    """
    if not references:
        return [await job_id(settings, session, None)], {}
    return await found(Finder(session.backend, [settings.queue], this_user()), references)


async def found(
    finder: Finder, references: Collection[str], *, to_end: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Do the same with a finder of one's own.

    Args:
        finder: The finder.
        references: The arguments.
        to_end: Whether the jobs are to be ended; see `Finder.find`.
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
        _tell(reference, named)
    return job_id


def _tell(reference: str, entry: Entry) -> None:
    detail = entry.detail
    state = json_view.state(detail)
    say(
        f"{reference}: job {detail.job_id} ({detail.name}), {state}, submitted "
        f"{tables.age(detail.created_at)} ago",
        err=True,
    )
