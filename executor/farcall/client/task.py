"""Decorated function, which runs on Batch when it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from farcall.client.job import Job
from farcall.client.sweep import Sweep
from farcall.model.errors import SettingsError
from farcall.payload import pickling
from farcall_runtime import pickles

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from farcall.model.settings import Options, Settings

P = ParamSpec("P")
R = TypeVar("R")


class Executor(Protocol):
    """What a task asks of the `BatchExecutor` that it runs on."""

    @property
    def settings(self) -> Settings:
        """The options."""

    def with_options(self, **options: Unpack[Options]) -> Executor:
        """Return the same with other options."""

    def run_call(
        self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> Coroutine[Any, Any, R]:
        """Run a call, and give its value."""

    def submit_call(
        self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> Coroutine[Any, Any, Job[R]]:
        """Submit a call, and give its job."""


class Task(Generic[P, R]):
    """What `BatchExecutor.task` makes of a function.

    Inside a job it is the plain function: a task that calls another runs it on the spot.

    Args:
        function: The function.
        executor: Where it runs.

    Attributes:
        function: The function itself.
        executor: Where it runs.
    """

    def __init__(self, function: Callable[P, R], executor: Executor) -> None:
        pickling.check_callable(function)
        # Its attributes stay its own: of a class they would be methods called like ours.
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.executor = executor

    def __repr__(self) -> str:
        return f"<Task {getattr(self.function, '__qualname__', self.function)}>"

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the function on Batch; awaiting the call gives its value.

        The call owns its job: cancelling the await terminates it.

        Raises:
            TypeError: The arguments don't fit the function.
            Exception: See `Job.result`.
        """
        self._bind(args, kwargs)
        return self.executor.run_call(self.function, args, kwargs)

    async def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a call and return its job as soon as Batch has accepted it.

        Raises:
            TypeError: The arguments don't fit the function.
            SubmissionError: Batch did not accept the job.
            SettingsError: Something the options name does not exist.
            ServiceError: AWS refused a call.
        """
        self._bind(args, kwargs)
        return await self.executor.submit_call(self.function, args, kwargs)

    def map(
        self,
        *iterables: Iterable[Any],
        chunksize: int = 1,
        return_exceptions: bool = False,
        progress: bool = False,
    ) -> Sweep[R]:
        """Call the function with each item, as array jobs of up to 10,000 tasks.

        Args:
            *iterables: Arguments, as for the built-in ``map``; the shortest ends them.
            chunksize: Calls in one task, which run one after the other in one process. Small calls
                are cheaper together: a task costs the start of a container. ``time_limit`` and
                attempts are the task's. Where its process dies, the calls before have their
                values; that call and those after it have the error, after the last attempt.
            return_exceptions: Give exceptions as values instead of raising the first.
            progress: Show on stderr how many calls are queued, running, done and failed, and how
                fast they are: a bar on a terminal or in a notebook, elsewhere a line now and then.

        Returns:
            To be awaited for a list in the order of the arguments, or iterated over with
            ``async for`` for pairs of index and value as they come, or, by its ``results()``, for
            a `farcall.CallResult` of each call.

        Raises:
            TypeError: The arguments don't fit the function, or there are none.
            SettingsError: ``chunksize`` is below 1, or an option is of another type.
            Exception: What an iterable raises.
        """
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
            raise SettingsError(
                f"chunksize is {chunksize!r}; a whole number of at least 1 is allowed",
                option="chunksize",
            )
        for name, flag in (("return_exceptions", return_exceptions), ("progress", progress)):
            if not isinstance(flag, bool):
                raise SettingsError(f"{name} is {flag!r}; True or False is allowed", option=name)
        if not iterables:
            raise TypeError("map needs at least one iterable of arguments")
        calls: list[pickling.Call] = [(args, {}) for args in zip(*iterables, strict=False)]
        for args, kwargs in calls[:1]:
            self._bind(args, kwargs)
        return Sweep(
            self.executor.settings,
            self.function,
            calls,
            chunksize=chunksize,
            return_exceptions=return_exceptions,
            progress=progress,
        )

    def local(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return self.function(*args, **kwargs)

    def with_options(self, **options: Unpack[Options]) -> Task[P, R]:
        """Return the same function with other options, such as ``vcpu=16``.

        Raises:
            SettingsError: A value is wrong, or an option is unknown.
        """
        return Task(self.function, self.executor.with_options(**options))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method to its instance, as a function does."""
        if instance is None:
            return self
        return Task(MethodType(self.function, instance), self.executor)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickles.itself, (self.function,)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let a wrong call fail here, and not after minutes in a queue."""
        signature = self._signature
        if signature is not None:
            signature.bind(*args, **kwargs)

    @functools.cached_property
    def _signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self.function)
        except (TypeError, ValueError):  # a built-in that does not tell
            return None
