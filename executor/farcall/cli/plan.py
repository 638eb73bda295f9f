"""Requests as JSON, for ``--dry-run`` of ``farcall run`` and ``farcall launch``."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farcall.aws.access import Access
from farcall.aws.clients import Aws
from farcall.aws.error_translation import CODE_NO_CREDENTIALS
from farcall.backends import open_backend
from farcall.backends.base import Backend
from farcall.cli.printing import echo
from farcall.client.command_job import name_of
from farcall.client.console import Console
from farcall.config.settings import Settings
from farcall.engine.launcher import command_of
from farcall.engine.packages import TaskPackages, planned_runtime
from farcall.engine.session import session_for
from farcall.engine.submitter import job_of
from farcall.engine.worker_threads import WorkerThreads
from farcall.model import names
from farcall.model.commands import Nodes
from farcall.model.errors import ServiceError
from farcall.model.workflows import Workflow
from farcall.packages.environment import is_wanted
from farcall.payload import pickling, sources
from farcall.payload.bundle import Bundle
from farcall.payload.call_texts import CallTexts, is_secret
from farcall.payload.project import Pickling
from farcall_runtime.contract import ENV_OUTCOME_KEY, run_root

_SECRET = "(a secret, generated for each job)"  # noqa: S105  # a placeholder
_HIDDEN = "***"
_RUN = "RUN"


def show(document: Mapping[str, Any]) -> None:
    """Print requests, with colors on a terminal."""
    text = json.dumps(document, indent=2)
    if sys.stdout.isatty():
        Console().print_json(text, ensure_ascii=True)
    else:
        echo(text)


async def with_account(
    planned: Callable[[bool], Awaitable[dict[str, Any]]], *, offline: bool
) -> dict[str, Any]:
    """Return planned requests; without credentials, those of ``--offline``.

    Args:
        planned: Returns the requests; the argument says whether no AWS calls are made.
        offline: Whether no AWS calls are made.
    """
    try:
        return await planned(offline)
    except ServiceError as error:
        if error.code != CODE_NO_CREDENTIALS:
            raise
        echo("farcall: no AWS credentials were found, so this is --offline", err=True)
        return await planned(True)


async def of_call(
    settings: Settings, function: Any, bound: inspect.BoundArguments, *, offline: bool
) -> dict[str, Any]:
    """Return the requests that would submit a call, and the uploads.

    Raises:
        TaskNotPicklableError: The function or its arguments cannot be pickled.
        ServiceError: An AWS call failed.
    """
    settings = _without_secrets(settings)
    pickling.check_callable(function)
    call = bound.args, bound.kwargs
    to_text = CallTexts(function).of if settings.store_call_summaries else None
    using = Pickling.of(settings)
    arguments = next(pickling.pack_calls([[call]], settings.cache_dir, to_text, using=using))
    task = pickling.pack_function(function, using=using), arguments
    access, backend = await _opened(settings, offline=offline)
    try:
        most = backend.capabilities.largest_array
        name = getattr(function, "__name__", "task")
        root = run_root(settings.prefix, _RUN)
        workflow = Workflow(settings.workflow_name)
        tasks = iter([task])
        packages, fact = await _packages(settings, offline=offline)
        bundle = Bundle(*(settings, root, name, tasks, workflow, None), most=most, packages=fact)
        size_bytes = sum(map(len, bundle.pieces()))
        runtime = await planned_runtime(backend, access, settings, root, offline=offline)
        job = job_of(bundle, settings, access, size=bundle.size, runtime=runtime)
        shown = {**job.environment, ENV_OUTCOME_KEY: _SECRET}
        planned = await backend.plan(replace(job, environment=shown), offline=offline)
    finally:
        if offline:
            await access.close()
    about = {"url": bundle.where.url, "size_bytes": size_bytes, "tasks": bundle.size}
    return {"bundle": about, **_sources(settings), **packages, **planned}


def _without_secrets(settings: Settings) -> Settings:
    """Return settings without the values of variables whose names suggest secrets."""
    shown = {
        name: _HIDDEN if is_secret(name) else value
        for name, value in settings.with_environment().variables.items()
    }
    return settings.with_options(environment=shown)


def _sources(settings: Settings) -> dict[str, Any]:
    """Return the project files that would be uploaded."""
    project = sources.find(settings.sources, settings.exclude_sources)
    if project is None:
        return {}
    about = {
        "size_bytes": len(project.archive),
        "files": [{"path": each.path, "size_bytes": each.size} for each in project.files],
        "stays_here": [{"path": each.path, "why": each.why} for each in project.left_out],
    }
    return {"sources": about}


async def _packages(
    settings: Settings, *, offline: bool
) -> tuple[dict[str, Any], list[str | int] | None]:
    """Return the packages that would be synced, and the bundle's record of them."""
    if not is_wanted(settings):
        return {}, None
    root = run_root(settings.prefix, _RUN)
    if offline:
        threads = WorkerThreads()
        try:
            package_set, sealed, shown = await TaskPackages(threads).plan(None, root, settings)
        finally:
            threads.close()
    else:
        session = await session_for(settings)
        store = session.stores.of(settings.s3_bucket_name)
        package_set, sealed, shown = await session.packages.plan(store, root, settings)
    about: dict[str, Any] = {
        "for": str(package_set.target),
        "size_bytes": sum(each.packed.size for each in shown),
    }
    if not offline:
        about["to_send_bytes"] = sum(p.size for p, is_stored in shown if not is_stored)
    about["distributions"] = [
        {
            "name": packed.name,
            "version": packed.version,
            "size_bytes": packed.size,
            **({} if is_stored is None else {"is_stored": is_stored}),
        }
        for packed, is_stored in shown
    ]
    about["stays_here"] = [{"name": stays.name, "why": stays.why} for stays in package_set.stays]
    return {"packages": about}, sealed and sealed.fact


async def of_command(
    settings: Settings, groups: Sequence[Nodes], name: str | None, *, offline: bool
) -> dict[str, Any]:
    """Return the requests that would submit a command job.

    Args:
        settings: The options.
        groups: Commands of the job's nodes.
        name: The job's name; None for the image's name.
        offline: Whether no AWS calls are made.

    Raises:
        SettingsError: The options do not make a job that the platform accepts.
        TaskTooLargeError: Commands and variables exceed a limit.
        ServiceError: An AWS call failed.
    """
    settings = _without_secrets(settings)
    unique = names.unique(name or name_of(groups), "command")
    if not offline:
        session = await session_for(settings)
        await session.check(settings)
        return await session.backend.plan(command_of(settings, groups, unique, session.run))
    access, backend = await _opened(settings, offline=True)
    try:
        return await backend.plan(command_of(settings, groups, unique, _RUN), offline=True)
    finally:
        await access.close()


async def _opened(settings: Settings, *, offline: bool) -> tuple[Access, Backend]:
    if offline:
        access = await Aws.configured(settings)
        return access, open_backend(settings, access)
    session = await session_for(settings)
    await session.submitter(settings)  # checks that all resources exist
    return session.aws, session.backend
