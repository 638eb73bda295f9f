"""Decorated function, which runs on Batch when it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, Callable, Collection, Coroutine, Iterable, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from farcall.client import arguments, blocking_calls
from farcall.client.awaitable import Unawaited
from farcall.client.call_reader import Inputs
from farcall.client.frames import frames_hidden
from farcall.client.job import Job
from farcall.client.sweep import Sweep
from farcall.engine.fetcher import Output
from farcall.model.errors import SettingsError
from farcall.model.option_signatures import shows_options
from farcall.payload import pickling
from farcall_runtime import pickles

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from farcall.model.settings import Options, Settings

P = ParamSpec("P")
R = TypeVar("R")

_OF_MAPS = ("chunksize", "return_exceptions", "progress", "output")


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

    def submit_calls(
        self,
        function: Callable[..., R],
        calls: Sequence[pickling.Call],
        output: Output = Output.SMALL,
        /,
    ) -> Coroutine[Any, Any, Job[R]]:
        """Submit calls as one task, and give its job, which fetches so much of its output."""


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

    @functools.cached_property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __repr__(self) -> str:
        return f"<Task {getattr(self.function, '__qualname__', self.function)}>"

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the function on Batch; awaiting the call gives its value.

        The call owns its job: cancelling the await terminates it. With the option ``nodes`` it
        gives the list of all nodes' values, which its type does not tell.

        Raises:
            TypeError: The arguments don't fit the function.
            Exception: See `Job.result`.
        """
        with frames_hidden():
            self._bind(args, kwargs)
        return Unawaited(
            self.name,
            f"call of {self.name}",
            f"write await {self.name}(...), or in code without async {self.name}.run(...)",
            functools.partial(self.executor.run_call, self.function, args, kwargs),
        )

    def run(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function on Batch and wait for its value, in code without ``async``.

        All such calls of a process share one event loop in a thread, on which clients stay open.
        For several calls at a time see `BatchPoolExecutor`. Ctrl-C ends the job.

        Raises:
            RuntimeError: An event loop runs here, as in a notebook; await the call there.
            TypeError: The arguments don't fit the function.
            Exception: See `Job.result`.
        """
        with frames_hidden():
            blocking_calls.refuse_running_loop(f"{self.name}.run(...)", f"await {self.name}(...)")
            self._bind(args, kwargs)
            return blocking_calls.run(self.executor, self.function, (args, kwargs))

    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R]]:
        """Submit a call and return its job as soon as Batch has accepted it.

        Raises:
            TypeError: The arguments don't fit the function.
            SubmissionError: Batch did not accept the job.
            SettingsError: Something the options name does not exist.
            ServiceError: AWS refused a call.
        """
        with frames_hidden():
            return self.submission(f"{self.name}.submit(...)", args, kwargs)

    def submission(
        self, form: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Job[R]]:
        """Return a submission to be awaited, for `BatchExecutor`.

        Args:
            form: What the user wrote.
            args: Positional arguments.
            kwargs: Keyword arguments.

        Raises:
            TypeError: The arguments don't fit the function.
        """
        self._bind(args, kwargs)
        return Unawaited(
            self.name,
            f"submission of {self.name}",
            f"write job = await {form} and then await job.result(), or in code "
            "without async BatchPoolExecutor().submit(...).result()",
            functools.partial(self.executor.submit_calls, self.function, [(args, kwargs)]),
        )

    def map(
        self,
        /,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        chunksize: int = 1,
        return_exceptions: bool = False,
        progress: bool = False,
        output: bool | None = None,
        **fixed: Any,
    ) -> Sweep[R]:
        """Call the function with each item, as array jobs of up to 10,000 tasks.

        ::

            values = await simulate.map(range(1000), steps=10)
            async for index, value in simulate.map(rows_of_a_cursor()): ...

        Lists, ranges and other containers are read and submitted at once. Anything else may be
        slow or endless, so it is read block by block while the first calls run: a plain iterable
        in one thread of its own, an async one on the event loop. What has come is submitted after
        ``linger_s``, later on after a tenth of the time gone by, at most 5 s. What can be used in
        one thread alone, such as a cursor of sqlite3, needs an async generator around it.

        With the option ``nodes`` each task is a job of its own, one submitted after the other:
        Batch has no arrays of such jobs. So a thousand of them take minutes to submit.

        Args:
            *iterables: Arguments, as for the built-in ``map``; the shortest ends them. Some may
                be async iterables.
            chunksize: Calls in one task, which run one after the other in one process. Small calls
                are cheaper together: a task costs the start of a container. ``time_limit`` and
                attempts are the task's. Where its process dies, the calls before have their
                values; that call and those after it have the error, after the last attempt.
            return_exceptions: Give exceptions as values instead of raising the first.
            progress: Show on stderr how many calls are queued, running, done and failed, and how
                fast they are: a bar on a terminal or in a notebook, elsewhere a line now and then.
            output: Show what the tasks print, while they run, on stdout and stderr here, each line
                with the function's name and the call's number before it, up to 200 lines a second
                of all; by default as the option ``output`` says.
            **fixed: Keywords of the function that are the same in all calls; they are uploaded
                once for each array. One that is named like an option above goes by
                ``functools.partial``.

        Returns:
            To be awaited for a list in the order of the arguments, or iterated over with
            ``async for`` for pairs of index and value as they come, or, by its ``results()``, for
            a `farcall.CallResult` of each call. What an iterable raises is raised there, and ends
            the jobs.

        Raises:
            TypeError: The arguments don't fit the function, or there are none.
            SettingsError: ``chunksize`` is below 1, or an option is of another type.
        """
        with frames_hidden():
            if not iterables:
                arguments.refuse_none(self.name)
            # What fits does not depend on the values.
            self._bind((None,) * len(iterables), fixed, _OF_MAPS)
            inputs = Inputs(iterables)
            return self._sweep(inputs, fixed, chunksize, return_exceptions, progress, output)

    def starmap(
        self,
        iterable: Iterable[Iterable[Any]] | AsyncIterable[Iterable[Any]],
        /,
        *,
        chunksize: int = 1,
        return_exceptions: bool = False,
        progress: bool = False,
        output: bool | None = None,
        **fixed: Any,
    ) -> Sweep[R]:
        """Call the function with the elements of each item, as `itertools.starmap` does.

        ::

            values = await area.starmap([(1, 2), (3, 4)])

        Args:
            iterable: Of the positional arguments of each call; read as `map` reads its own.
            chunksize: See `map`, as for the others.
            return_exceptions: Give exceptions as values instead of raising the first.
            progress: Show on stderr how far it is.
            output: Show what the tasks print.
            **fixed: Keywords of the function that are the same in all calls.

        Returns:
            See `map`.

        Raises:
            TypeError: An item of a list or tuple does not fit the function; one of another
                iterable is told when it is read.
            SettingsError: ``chunksize`` is below 1, or an option is of another type.
        """
        fitting: set[int] = set()

        def spread(number: int, item: tuple[Any, ...]) -> tuple[Any, ...]:
            __tracebackhide__ = True
            if not isinstance(item[0], Iterable):
                raise TypeError(
                    f"item {number} of starmap is a {type(item[0]).__name__}; a tuple of the "
                    "arguments of one call is allowed, and map takes single arguments"
                )
            args = tuple(item[0])
            if len(args) not in fitting:
                self._bind(args, fixed, _OF_MAPS)
                fitting.add(len(args))
            return args

        with frames_hidden():
            inputs = Inputs((iterable,), spread)
            if isinstance(iterable, list | tuple):  # items may be iterators, for one reading
                inputs = Inputs((list(inputs.at_hand()),), lambda _number, row: row[0])
            return self._sweep(inputs, fixed, chunksize, return_exceptions, progress, output)

    def _sweep(
        self,
        inputs: Inputs,
        fixed: dict[str, Any],
        chunksize: int,
        return_exceptions: bool,
        progress: bool,
        output: bool | None,
    ) -> Sweep[R]:
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
            raise SettingsError(
                f"chunksize is {chunksize!r}; a whole number of at least 1 is allowed",
                option="chunksize",
            )
        output = self.executor.settings.output if output is None else output
        flags = {"return_exceptions": return_exceptions, "progress": progress, "output": output}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise SettingsError(f"{name} is {flag!r}; True or False is allowed", option=name)
        return Sweep(
            self.executor.settings,
            self.function,
            inputs,
            fixed,
            chunksize=chunksize,
            return_exceptions=return_exceptions,
            progress=progress,
            output=output,
        )

    def local(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now.

        With the option ``nodes`` it runs once, as on one node, and the value is in a list, as it
        is on Batch.
        """
        value: Any = self.function(*args, **kwargs)
        if self.executor.settings.nodes > 1:
            value = _listed(value) if inspect.iscoroutine(value) else [value]
        return value  # type: ignore[no-any-return]

    @shows_options
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

    def _bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], own: Collection[str] = ()
    ) -> None:
        """Let a wrong call fail here, and not after minutes in a queue; see `arguments.bind`."""
        if self._signature is not None:
            arguments.bind(self.name, self._signature, args, kwargs, own)

    @functools.cached_property
    def _signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self.function)
        except (TypeError, ValueError):  # a built-in that does not tell
            return None


async def _listed(coroutine: Coroutine[Any, Any, R]) -> list[R]:
    return [await coroutine]
