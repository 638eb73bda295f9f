"""Workspaces of command jobs: uploaded by farcall, downloaded by the command."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from farcall.aws import buckets
from farcall.config.settings import Settings
from farcall.engine.session import Session
from farcall.model.commands import Nodes
from farcall.model.errors import SettingsError
from farcall.model.names import KUBERNETES
from farcall.model.start_script import HERE, Fetched, wrap
from farcall.payload.archive import Archive, Source, pack
from farcall.storage.packages import is_kept
from farcall.storage.store import Store
from farcall_runtime.contract import run_root

# --- Workspace store: archives in the bucket, each stored once, under its hash ------------------
#
# Archives have no owner: all users with the same files share one. So farcall deletes none; a
# lifecycle rule of the bucket does. A job verifies its download with the hash in its command.


_log = logging.getLogger("farcall")


def key_of(prefix: str, sha256: str) -> str:
    """Return the key of an archive."""
    return f"{run_root(prefix, 'workspaces')}/{sha256}.tar.gz"


async def put_once(store: Store, key: str, archive: Archive) -> bool:
    """Upload an archive, unless it exists.

    If two clients upload it at once, they store the same bytes twice, which is harmless.

    Returns:
        Whether it was uploaded now.

    Raises:
        SettingsError: The bucket does not exist.
        ServiceError: S3 refused a request or could not be reached.
    """
    if is_kept(await store.head(key), archive.size):
        return False
    _log.info(
        "storing the workspace, %.1f MB of %d files, as s3://%s/%s",
        *(archive.size / 1e6, archive.files, store.bucket, key),
    )
    await store.put(key, archive.pieces())
    return True


async def with_workspace(
    session: Session,
    settings: Settings,
    groups: Sequence[Nodes],
    workspace: str | os.PathLike[str],
    folder: str = HERE,
) -> tuple[Nodes, ...]:
    """Upload a local folder unless it exists, and make nodes run their commands in it.

    Args:
        session: The session that submits the job.
        settings: The options.
        groups: Commands of the job's nodes.
        workspace: The folder.
        folder: Path where it is unpacked; ``.`` for the image's working directory.

    Raises:
        SettingsError: A file cannot be read or is too large, a group has no command, or the
            options name no role or no existing bucket.
        NoRoomError: The disk is too full for the archive.
        ServiceError: S3 refused a request or could not be reached.
    """
    archive, fetched = await _packed(settings, groups, workspace, folder)
    try:
        return _in_workspace(groups, await store(session, fetched, archive))
    finally:
        archive.close()


async def with_planned_workspace(
    settings: Settings,
    groups: Sequence[Nodes],
    workspace: str | os.PathLike[str],
    folder: str = HERE,
) -> tuple[Nodes, ...]:
    """Return the commands that nodes would run in a local folder, without an upload.

    Raises:
        SettingsError: See `with_workspace`.
        NoRoomError: The disk is too full for the archive.
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
                f"{group.name or f'groups[{place}]'}: a command is required, because an "
                "image's own command cannot run in a workspace. Specify a command.",
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
    """Return a command's download as far as the options determine it; no requests.

    Args:
        settings: The options.
        archive: The workspace.
        folder: Path where it is unpacked; ``.`` for the image's working directory.

    Raises:
        SettingsError: There is no bucket, the job could not download from it, or the folder is not
            a container path.
    """
    if not settings.s3_bucket_name:
        raise SettingsError(
            "s3_bucket_name is empty, but a workspace is uploaded to the bucket. Set "
            "s3_bucket_name, or submit without a workspace.",
            option="s3_bucket_name",
        )
    _check_rights(settings)
    if folder != HERE and not folder.startswith("/"):
        raise SettingsError(
            f"the container folder of a workspace is {folder!r}. Use an absolute path, or none "
            "for the image's working directory.",
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
    """Reject a job without credentials for downloading a workspace."""
    if settings.backend == KUBERNETES:
        if not settings.s3_secret and not settings.service_account:
            raise SettingsError(
                "s3_secret and service_account are empty, but the job downloads a workspace "
                "from the bucket with the keys of a Secret or the permissions of a service "
                "account. Set one of them.",
                option="s3_secret",
            )
    elif not settings.batch_job_role_name:
        raise SettingsError(
            "batch_job_role_name is empty, but the job downloads a workspace from the bucket "
            "with the job role. Set it to a role that can read the bucket.",
            option="batch_job_role_name",
        )


async def store(session: Session, fetched: Fetched, archive: Archive) -> Fetched:
    """Upload a workspace, unless it exists.

    Returns:
        The command's download, with the known region and URL.

    Raises:
        SettingsError: The bucket does not exist.
        ServiceError: S3 refused a request or could not be reached.
    """
    await put_once(session.stores.of(fetched.bucket), fetched.key, archive)
    return located(session, fetched)


async def stored(session: Session, fetched: Fetched) -> Fetched:
    """Check that a workspace exists; return the command's complete download.

    Raises:
        SettingsError: The workspace or the bucket does not exist.
        ServiceError: S3 refused a request or could not be reached.
    """
    if await session.stores.of(fetched.bucket).head(fetched.key) is None:
        raise SettingsError(
            f"workspace s3://{fetched.bucket}/{fetched.key} does not exist. Submit from the "
            "machine that has its folder; after a dry run, repeat the dry run first.",
            option="workspace",
        )
    return located(session, fetched)


def located(session: Session, fetched: Fetched) -> Fetched:
    """Return a command's download, with the session's region and URL."""
    url, region = session.aws.place(fetched.bucket)
    return fetched._replace(region=region, url=url)
