"""Workspaces of command jobs: stored before a job is submitted, and fetched by its command."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from farcall.aws import buckets
from farcall.engine.session import Session
from farcall.model.commands import Nodes
from farcall.model.errors import SettingsError
from farcall.model.names import KUBERNETES
from farcall.model.settings import Settings
from farcall.model.start_script import HERE, Fetched, wrap
from farcall.payload.archive import Archive, Source, pack
from farcall.storage.store import Store
from farcall_runtime.contract import run_root

# --- Workspace store: archives in the bucket, each stored once, under its hash ------------------
#
# Nobody owns one: the jobs of whoever has the same files share it. So farcall deletes none, and a
# lifecycle rule of the bucket does. What a job fetches it compares with the hash that it was told.


_log = logging.getLogger("farcall")

FRESH = timedelta(days=7)
"""Age after which an archive is stored again, so that a lifecycle rule keeps what is in use."""


def key_of(prefix: str, sha256: str) -> str:
    """Return the key of an archive."""
    return f"{run_root(prefix, 'workspaces')}/{sha256}.tar.gz"


async def put_once(store: Store, key: str, archive: Archive) -> bool:
    """Store an archive, unless it is there.

    Two clients that do so at once store the same bytes twice, which harms nobody.

    Returns:
        Whether it was stored now.

    Raises:
        SettingsError: There is no such bucket.
        ServiceError: S3 refused or could not be reached.
    """
    found = await store.stored(key)
    if found is not None:
        size, at = found
        if size == archive.size and datetime.now(timezone.utc) - at < FRESH:
            return False
    _log.info(
        "storing the workspace, %.1f MB of %d files, as s3://%s/%s",
        *(archive.size / 1e6, archive.files, store.bucket, key),
    )
    await store.put(key, archive.pieces())
    return True


async def take_along(
    session: Session,
    settings: Settings,
    groups: Sequence[Nodes],
    workspace: str | os.PathLike[str],
    folder: str = HERE,
) -> tuple[Nodes, ...]:
    """Have nodes run their commands in a folder of this machine, stored unless it is there.

    Args:
        session: With which the job is submitted.
        settings: The options.
        groups: What the nodes run.
        workspace: The folder.
        folder: Where it is unpacked; ``.`` for the image's working directory.

    Raises:
        SettingsError: Something of it cannot be read or is too large, a group has no command, or
            the options name no role or no bucket that is there.
        NoRoomError: There is no room for the archive.
        ServiceError: S3 refused or could not be reached.
    """
    archive, fetched = await _packed(settings, groups, workspace, folder)
    try:
        return _in_workspace(groups, await store(session, fetched, archive))
    finally:
        archive.close()


async def plan_along(
    settings: Settings,
    groups: Sequence[Nodes],
    workspace: str | os.PathLike[str],
    folder: str = HERE,
) -> tuple[Nodes, ...]:
    """Return what nodes would run in a folder of this machine; nothing is stored.

    Raises:
        SettingsError: As of `take_along`.
        NoRoomError: There is no room for the archive.
    """
    archive, fetched = await _packed(settings, groups, workspace, folder)
    archive.close()
    return _in_workspace(groups, fetched)


async def _packed(
    settings: Settings,
    groups: Sequence[Nodes],
    workspace: str | os.PathLike[str],
    folder: str,
) -> tuple[Archive, Fetched]:
    for place, group in enumerate(groups):
        if not group.command:
            raise SettingsError(
                f"{group.name or f'groups[{place}]'}: there is no command, and an image's own "
                "cannot be run in a workspace; name one",
                option="command",
            )
    archive = await asyncio.to_thread(pack, [Source(Path(workspace))], settings.cache_dir)
    try:
        return archive, planned(settings, archive, folder)
    except BaseException:
        archive.close()
        raise


def _in_workspace(groups: Sequence[Nodes], fetched: Fetched) -> tuple[Nodes, ...]:
    return tuple(
        dataclasses.replace(group, command=wrap(group.command, fetched)) for group in groups
    )


def planned(settings: Settings, archive: Archive, folder: str = HERE) -> Fetched:
    """Return what a command fetches, as far as the options tell. Nobody is asked for anything.

    Args:
        settings: The options.
        archive: The workspace.
        folder: Where it is unpacked; ``.`` for the image's working directory.

    Raises:
        SettingsError: There is no bucket, the job could not fetch from it, or the folder is none
            of a container.
    """
    if not settings.s3_bucket_name:
        raise SettingsError(
            "a workspace goes by way of the bucket, and s3_bucket_name is empty; set it, or "
            "submit without a workspace",
            option="s3_bucket_name",
        )
    _check_rights(settings)
    if folder != HERE and not folder.startswith("/"):
        raise SettingsError(
            f"the folder of a workspace in the container is {folder!r}; use an absolute path, "
            "or none for the image's working directory",
            option="workspace",
        )
    addressing = buckets.Addressing(settings.endpoint_url)
    url, region = buckets.place(settings.s3_bucket_name, settings.region, addressing)
    return Fetched(
        region=region,
        url=url,
        bucket=settings.s3_bucket_name,
        key=key_of(settings.prefix, archive.sha256),
        sha256=archive.sha256,
        folder=folder,
    )


def _check_rights(settings: Settings) -> None:
    """Refuse a job that has nothing to fetch a workspace with."""
    if settings.backend == KUBERNETES:
        if not settings.s3_secret and not settings.service_account:
            raise SettingsError(
                "a workspace in the bucket is fetched with keys of a Secret or the rights of a "
                "service account, and s3_secret and service_account are empty; set one of them",
                option="s3_secret",
            )
    elif not settings.batch_job_role_name:
        raise SettingsError(
            "a workspace in the bucket is fetched with the job role, and batch_job_role_name is "
            "empty; set it to a role that may read the bucket",
            option="batch_job_role_name",
        )


async def store(session: Session, fetched: Fetched, archive: Archive) -> Fetched:
    """Store a workspace, unless it is there.

    Returns:
        What the command fetches, with region and URL as they are by now known to be.

    Raises:
        SettingsError: There is no such bucket.
        ServiceError: S3 refused or could not be reached.
    """
    await put_once(session.stores.of(fetched.bucket), fetched.key, archive)
    return located(session, fetched)


async def stored(session: Session, fetched: Fetched) -> Fetched:
    """See that a workspace is there; return what the command fetches, likewise.

    Raises:
        SettingsError: It is not there, or there is no such bucket.
        ServiceError: S3 refused or could not be reached.
    """
    if await session.stores.of(fetched.bucket).stored(fetched.key) is None:
        raise SettingsError(
            f"the workspace s3://{fetched.bucket}/{fetched.key} is not there; submit from where "
            "its folder is, after another dry run if there was one",
            option="workspace",
        )
    return located(session, fetched)


def located(session: Session, fetched: Fetched) -> Fetched:
    """Return what a command fetches, with region and URL as the session knows them."""
    url, region = session.aws.place(fetched.bucket)
    return fetched._replace(region=region, url=url)
