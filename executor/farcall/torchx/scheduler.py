"""Base class of the TorchX schedulers, with one subclass per platform.

TorchX blocks in each call, and follows logs with one thread per replica. One event loop in one
thread of the process serves all calls, with the sessions that are open there.
"""

from __future__ import annotations

import logging
import socket
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar, Generic

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, runopts

from farcall.backends.base import raise_first
from farcall.client.loop_thread import LoopThread
from farcall.config.settings import Settings
from farcall.engine.session import Session, session_for
from farcall.model.errors import SettingsError, UnknownError
from farcall.torchx import app_logs, command_line, request, roles, states
from farcall.torchx.apps import App, Apps, Places, Wanted, listed
from farcall.torchx.options import Options, refuse_found_config
from farcall.torchx.request import Request
from farcall.torchx.roles import Planned
from farcall.torchx.workspace import FarcallWorkspaceMixin

_log = logging.getLogger("farcall")


class FarcallScheduler(FarcallWorkspaceMixin, Scheduler[Options], Generic[Options]):
    """Scheduler that runs TorchX apps as command jobs; one subclass per platform.

    All errors are `farcall.FarcallError`. Wrong arguments raise its subclass
    `farcall.SettingsError`, which is also a ValueError.

    Attributes:
        NAME: The scheduler's name.
        PLACES: Type of the queues or namespaces before the colon of an app's ID.
    """

    NAME: ClassVar[str]
    PLACES: ClassVar[Places]

    def __init__(self, session_name: str) -> None:
        super().__init__(backend=self.NAME, session_name=session_name)
        command_line.install()
        self._loop = LoopThread()
        self._apps = Apps(self.PLACES)

    # --- platform-specific conversion ---------------------------------------------------------

    @abstractmethod
    def _planned(self, app: AppDef, cfg: Options) -> Planned[Options]:
        """Map an app to a job without changing the app.

        Raises:
            SettingsError: An option is wrong, or the platform would reject the job.
        """

    @abstractmethod
    def _request(self, planned: Planned[Options], requests: dict[str, Any]) -> Request:
        """Convert the return value of `Backend.plan` into an app's request.

        Raises:
            SettingsError: A role's overlay cannot be merged.
        """

    @abstractmethod
    def _read_back(self, requests: dict[str, Any], app: App, settings: Settings) -> Request:
        """Convert the return value of `Backend.requests_of` into a request."""

    async def _check(self, session: Session, wanted: Request) -> None:
        """Check before the submission that the platform accepts a request.

        Raises:
            SettingsError: The platform would reject the request.
            ServiceError: A call to a service failed.
        """

    def close(self) -> None:
        """Stop this process's calls and log followers. Apps continue."""
        self.close_workspaces()
        self._loop.close()

    # --- submission ---------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        return self.OPTIONS.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        self._planned(app, self._options(cfg))

    def _submit_dryrun(self, app: AppDef, cfg: Options) -> AppDryRunInfo[Request, Options]:
        images = self.dryrun_push_images(app, cfg)
        planned = self._planned(app, cfg)
        for warning in planned.warnings:
            _log.warning("%s", warning)
        requests = self._loop.run(request.write(planned))
        wanted = self._request(planned, requests)
        wanted.images_to_push = images
        return AppDryRunInfo(wanted, str)

    def schedule(self, dryrun_info: AppDryRunInfo[Any, Any]) -> str:
        """Submit a request in its current state exactly once; return the app's ID.

        Raises:
            SettingsError: A resource that the request names does not exist.
            SubmissionError: The platform did not accept the job.
            ServiceError: A call to a service failed.
        """
        wanted: Request = dryrun_info.request
        self.push_images(wanted.images_to_push)

        async def submit() -> None:
            settings = wanted.settings()
            session = await session_for(settings)
            await self._check(session, wanted)
            await self.store_workspaces(session, wanted.commands())
            job_id = await request.submit(session, wanted)
            self._apps.note(wanted.app_id, settings, job_id, session)

        self._loop.run(submit())
        return wanted.app_id

    # --- existing apps ------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Describe an app with at most two requests; return None if it does not exist.

        The first 99 nodes have their own states; further nodes have the app's state.

        Raises:
            SettingsError: The queue or namespace does not exist.
            ServiceError: A call to a service failed.
        """
        app = self._loop.run(self._apps.find(app_id))
        return None if app is None else states.describe(app_id, app)

    def describe_native(self, app_id: str) -> AppDryRunInfo[Request, Any] | None:
        """Return the requests that would submit an app; None if it does not exist.

        Raises:
            SettingsError: The queue or namespace does not exist.
            ServiceError: A call to a service failed.
        """

        async def read() -> Request | None:
            app = await self._apps.find(app_id)
            if app is None:
                return None
            requests = await app.session.backend.requests_of(app.detail.job_id)
            return (
                None
                if requests is None
                else self._read_back(requests, app, self._apps.settings(app_id))
            )

        app_request = self._loop.run(read())
        return None if app_request is None else AppDryRunInfo(app_request, str)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """List apps, newest first in each queue.

        Args:
            cfg: The filter: ``queue``, a name or a pattern with ``*``, by default all queues;
                ``user`` for one user's apps; ``states``; and the options for region or cluster.

        Raises:
            SettingsError: The queue or state does not exist.
            ServiceError: A call to a service failed.
        """
        refuse_found_config()
        requested = cfg or {}
        wanted = Wanted(
            queue=str(requested.get("queue") or ""),
            user=str(requested.get("user") or ""),
            states=_states(requested.get("states")),
        )

        async def read() -> list[ListAppResponse]:
            apps = listed(self.PLACES, self.PLACES.settings(requested), wanted)
            return [
                ListAppResponse(
                    app_id=app_id,
                    state=states.state_of(detail),
                    name=states.name_of(detail) or detail.name,
                )
                async for app_id, detail in apps
            ]

        return self._loop.run(read())

    def cancel(self, app_id: str) -> None:
        """Terminate an app without waiting; a finished app does not change.

        Raises:
            SettingsError: The queue or namespace does not exist.
            ServiceError: A call to a service failed.
        """
        self._loop.run(self._end(app_id, "cancelled"))

    def delete(self, app_id: str) -> None:
        """Terminate an app, and delete its record if the platform supports that.

        Raises:
            SettingsError: The queue or namespace does not exist.
            ServiceError: A call to a service failed.
        """

        async def delete() -> None:
            app = await self._end(app_id, "deleted")
            if app is not None:
                await app.session.backend.forget(app.detail)
                self._apps.forget(app_id)

        self._loop.run(delete())

    def _cancel_existing(self, app_id: str) -> None:
        self.cancel(app_id)

    async def _end(self, app_id: str, what: str) -> App | None:
        app = await self._apps.find(app_id)
        if app is not None and not app.detail.status.is_final:
            reason = f"{what} by {roles.login()} on {socket.gethostname()}, with TorchX"
            raise_first(await app.session.terminations.end([app.detail.job_id], reason))
        return app

    # --- logs ---------------------------------------------------------------------------------

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Iterate over a replica's output: each attempt, or from the last attempt on.

        Args:
            app_id: The app.
            role_name: The replica's role.
            k: The replica's number in its role, from 0.
            regex: Regular expression that lines must match.
            since: Earliest time of a line; local if it has no zone.
            until: Latest time of a line; local if it has no zone.
            should_tail: Whether to start at the last attempt and follow until the replica stops
                writing.
            streams: Only ``combined``, because the platform merges both streams.

        Raises:
            SettingsError: The role or replica does not exist (the error names the existing ones),
                or another argument is wrong.
            UnknownError: The app does not exist.
            ServiceError: A call to a service failed.
        """
        pattern = app_logs.compiled(regex, streams)
        app = self._loop.run(self._apps.find(app_id))
        if app is None:
            raise UnknownError(f"app {app_id} does not exist. Run `torchx list` to list the apps.")
        node = states.node_of(app.detail, role_name, k)
        batches = app.session.logs.lines(
            app.detail.job_id,
            [node],
            follow=should_tail,
            since=app_logs.aware(since),
            until=app_logs.aware(until),
            # TorchX's own scheduler submits jobs without farcall's mark.
            detail=replace(app.detail, is_command=True),
        )
        return self._loop.stream(app_logs.matching(batches, pattern))


def _states(given: Any) -> frozenset[AppState]:
    names = [given] if isinstance(given, str | AppState) else given or ()
    wanted = set()
    for name in names:
        try:
            wanted.add(name if isinstance(name, AppState) else AppState[str(name).upper()])
        except KeyError:
            allowed = " or ".join(state.name for state in AppState)
            raise SettingsError(f"states has {name!r}: use {allowed}", option="states") from None
    return frozenset(wanted)
