"""TorchX scheduler base: TorchX's calls, answered by farcall; a class below for each platform.

TorchX waits in each call, and follows logs with a thread for each replica. All of that is served
by one event loop in one thread of the process, and by the sessions that are open there.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import re
import socket
import sys
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, ClassVar, Generic, NamedTuple, Protocol

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, runopts

from farcall.backends.base import raise_first
from farcall.client.loop_thread import LoopThread
from farcall.engine.session import Session, session_for
from farcall.model import terminal
from farcall.model.errors import FarcallError, SettingsError, UnknownError
from farcall.model.settings import Settings
from farcall.torchx import request, states
from farcall.torchx.apps import App, Apps, Places, Wanted, listed
from farcall.torchx.options import Options
from farcall.torchx.request import Request
from farcall.torchx.workspace import FarcallWorkspaceMixin

# --- App logs: the lines of a replica, as TorchX asks for them ----------------------------------
#
# The replicas whose logs a process follows share requests; see `farcall.engine.logs.nodes`.


class Selection(NamedTuple):
    """Which lines.

    Attributes:
        pattern: What they hold; None for all.
        since: Written at this moment or later.
        until: Written before this moment.
        follow: Whether those are waited for that are yet to be written.
    """

    pattern: re.Pattern[str] | None
    since: datetime | None
    until: datetime | None
    follow: bool


def selection(
    regex: str | None,
    since: datetime | None,
    until: datetime | None,
    streams: Stream | None,
    *,
    follow: bool,
) -> Selection:
    """Check what TorchX says of the lines it wants. Moments without a zone are local ones.

    Raises:
        SettingsError: The expression is none, or one of both streams is asked for.
    """
    if streams not in (None, Stream.COMBINED):
        raise SettingsError(
            f"streams is {Stream(streams).value}: both streams are one log; use combined",
            option="streams",
        )
    try:
        pattern = re.compile(regex) if regex else None
    except re.error as error:
        raise SettingsError(
            f"regex is {regex!r}, which is no regular expression: {error}", option="regex"
        ) from None
    return Selection(pattern, _aware(since), _aware(until), follow)


async def lines(app: App, node: int, wanted: Selection) -> AsyncIterator[str]:
    """Yield the lines of a node, each with its end.

    Control characters are shown, as TorchX prints what it gets; colours stay.

    Raises:
        ServiceError: A service refused a call.
    """
    batches = app.session.node_logs.batches(
        app.detail.job_id,
        [node],
        follow=wanted.follow,
        since=wanted.since,
        until=wanted.until,
    )
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for line in batch:
                if wanted.pattern is None or wanted.pattern.search(line.text):
                    yield f"{terminal.output(line.text)}\n"


def _aware(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone()


# --- TorchX's command line: farcall's errors in it are one sentence each, and botocore is quiet
#
# The command catches few errors. Of all others it prints the traceback, in each of its threads and
# again at the end; and it shows what every library has to say of its work. Programs that import
# TorchX keep the hooks and levels they have.


_COMMAND = "torchx.cli.main"
_CHATTY = ("botocore", "aiobotocore")

_errors_log = logging.getLogger("torchx.farcall")
_told: set[str] = set()


def install() -> None:
    """Have farcall's errors told in a sentence where this process is TorchX's command.

    With ``--log_level DEBUG`` there are tracebacks, and all that botocore says.
    """
    if not _is_command() or sys.excepthook is _tell or _errors_log.isEnabledFor(logging.DEBUG):
        return
    sys.excepthook = _tell
    threading.excepthook = _tell_of_thread
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _is_command() -> bool:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == _COMMAND:  # python -m torchx.cli.main
        return True
    command = getattr(sys.modules.get(_COMMAND), "main", None)
    return command is not None and getattr(main, "main", None) is command


def _tell(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not isinstance(error, FarcallError):
        sys.__excepthook__(kind, error, traceback)
        return
    text = str(error)
    if text not in _told:  # by the thread in which it was raised first
        _told.add(text)
        _errors_log.error("%s", text)


def _tell_of_thread(args: threading.ExceptHookArgs) -> None:
    if isinstance(args.exc_value, FarcallError):
        _tell(type(args.exc_value), args.exc_value, args.exc_traceback)
    else:
        threading.__excepthook__(args)


_log = logging.getLogger("farcall")


class Planned(Protocol):
    """An app as a job of a platform, whose request is yet to be written."""

    @property
    def warnings(self) -> Sequence[str]:
        """What the app asks for and does not get."""


class FarcallScheduler(FarcallWorkspaceMixin, Scheduler[Options], Generic[Options]):
    """Runs TorchX's apps as command jobs; a class for each platform.

    All errors are farcall's own: `farcall.FarcallError`, and of it `farcall.SettingsError`, a
    ValueError, for what is wrong in a call.

    Attributes:
        NAME: The scheduler's name.
        PLACES: What stands before the colon of an app's ID.
    """

    NAME: ClassVar[str]
    PLACES: ClassVar[Places]

    def __init__(self, session_name: str) -> None:
        super().__init__(backend=self.NAME, session_name=session_name)
        install()
        self._loop = LoopThread()
        self._apps = Apps(self.PLACES)

    # --- what a platform makes of it ----------------------------------------------------------

    @abstractmethod
    def _planned(self, app: AppDef, cfg: Options) -> Planned:
        """Map an app, which stays as it is.

        Raises:
            SettingsError: An option is wrong, or the platform would refuse the job.
        """

    @abstractmethod
    async def _written(self, planned: Any) -> Request:
        """Write the request of an app that `_planned` returned; nobody is asked for anything.

        Raises:
            SettingsError: The platform would refuse the job.
            TaskTooLargeError: Commands and variables exceed a limit.
        """

    @abstractmethod
    def _read_back(self, requests: dict[str, Any], app: App, settings: Settings) -> Request:
        """Return what `Backend.requests_of` says of an app as a request."""

    async def _check(self, session: Session, wanted: Request) -> None:
        """See, before anything is submitted, that the platform takes a request.

        Raises:
            SettingsError: It does not.
            ServiceError: A service refused a call.
        """

    def close(self) -> None:
        """End what is under way here; whoever follows a log is told its end. Apps go on."""
        self.close_workspaces()
        self._loop.close()

    # --- before an app runs -------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        return self.OPTIONS.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        self._planned(app, self._options(cfg))

    def _submit_dryrun(self, app: AppDef, cfg: Options) -> AppDryRunInfo[Request, Options]:
        images = self.dryrun_push_images(app, cfg)
        planned = self._planned(app, cfg)
        for warning in planned.warnings:
            _log.warning("%s", warning)
        wanted = self._loop.run(self._written(planned))
        wanted.images_to_push = images
        return AppDryRunInfo(wanted, str)

    def schedule(self, dryrun_info: AppDryRunInfo[Any, Any]) -> str:
        """Submit a request as it is now, exactly once, and return the app's ID.

        Raises:
            SettingsError: Something the request names does not exist.
            SubmissionError: The platform did not accept the job.
            ServiceError: A service refused a call.
        """
        wanted: Request = dryrun_info.request
        self.push_images(wanted.images_to_push)

        async def submit() -> None:
            settings = wanted.settings()
            session = await session_for(settings)
            with self.OPTIONS.in_words():
                await self._check(session, wanted)
                await self.store_workspaces(session, wanted.commands())
                job_id = await request.submit(session, wanted)
            self._apps.note(wanted.app_id, settings, job_id, session)

        self._loop.run(submit())
        return wanted.app_id

    # --- apps that there are ------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what there is to know of an app, by two requests at most; None if there is none.

        Of more than 99 nodes the first 99 have states of their own, and others the app's.

        Raises:
            SettingsError: There is no such place.
            ServiceError: A service refused a call.
        """
        app = self._loop.run(self._apps.look(app_id))
        if app is None:
            return None
        return states.describe(app_id, app.detail, app.nodes, app.ui_url, app.note)

    def describe_native(self, app_id: str) -> AppDryRunInfo[Request, Any] | None:
        """Return the requests that would submit an app as it is; None if there is none.

        Raises:
            SettingsError: There is no such place.
            ServiceError: A service refused a call.
        """

        async def read() -> Request | None:
            app = await self._apps.look(app_id)
            if app is None:
                return None
            found = await app.session.backend.requests_of(app.detail.job_id)
            return (
                None if found is None else self._read_back(found, app, self._apps.settings(app_id))
            )

        found = self._loop.run(read())
        return None if found is None else AppDryRunInfo(found, str)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """List apps, the newest of each queue first.

        Args:
            cfg: Which: ``queue``, a name or a pattern with ``*``, by default all queues; ``user``
                for those of one user; ``states``; and the options that say where they are.

        Raises:
            SettingsError: There is no such queue or state.
            ServiceError: A service refused a call.
        """
        asked = cfg or {}
        wanted = Wanted(
            queue=str(asked.get("queue") or ""),
            user=str(asked.get("user") or ""),
            states=_states(asked.get("states")),
        )

        async def read() -> list[ListAppResponse]:
            found = listed(self.PLACES, self.PLACES.asked(asked), wanted)
            return [
                ListAppResponse(
                    app_id=app_id,
                    state=states.state_of(detail),
                    name=states.name_of(detail) or detail.name,
                )
                async for app_id, detail in found
            ]

        return self._loop.run(read())

    def cancel(self, app_id: str) -> None:
        """End an app, and wait for nothing; one that has ended stays as it is.

        Raises:
            SettingsError: There is no such place.
            ServiceError: A service refused a call.
        """
        self._loop.run(self._end(app_id, "cancelled"))

    def delete(self, app_id: str) -> None:
        """End an app, and do away with what the platform keeps of it, as far as that can be.

        Raises:
            SettingsError: There is no such place.
            ServiceError: A service refused a call.
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
        app = await self._apps.look(app_id)
        if app is not None and not app.detail.status.is_final:
            reason = f"{what} by {_user()} on {socket.gethostname()}, with TorchX"
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
        """Iterate over what a replica has written: of each attempt, or from the last one on.

        Args:
            app_id: The app.
            role_name: The replica's role.
            k: The replica's number in its role, from 0.
            regex: What lines are to hold.
            since: Only what was written at this moment or later; local time where it has no zone.
            until: Only what was written until this moment.
            should_tail: Whether to go on until the replica writes no more, from its last attempt.
            streams: ``combined`` alone: the platform keeps both streams in one.

        Raises:
            SettingsError: There is no such role or replica, it names those there are; or another
                argument is wrong.
            UnknownError: There is no such app.
            ServiceError: A service refused a call.
        """
        wanted = selection(regex, since, until, streams, follow=should_tail)
        app = self._loop.run(self._apps.look(app_id))
        if app is None:
            raise UnknownError(f"there is no app {app_id}; `torchx list` shows those there are")
        node = states.node_of(app.detail, role_name, k)
        return self._loop.stream(lines(app, node, wanted))


def _states(given: Any) -> frozenset[AppState]:
    names = [given] if isinstance(given, str | AppState) else given or ()
    found = set()
    for name in names:
        try:
            found.add(name if isinstance(name, AppState) else AppState[str(name).upper()])
        except KeyError:
            allowed = " or ".join(state.name for state in AppState)
            raise SettingsError(f"states has {name!r}: use {allowed}", option="states") from None
    return frozenset(found)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user in a container with a bare uid
        return "somebody"
