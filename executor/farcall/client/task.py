"""Decorated function that runs as a job when it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, Callable, Collection, Coroutine, Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from farcall.client import arguments, blocking_calls
from farcall.client.awaitable import Unawaited
from farcall.client.call_reader import Inputs
from farcall.client.frames import frames_hidden
from farcall.client.job import Job
from farcall.client.sweep import Sweep
from farcall.config.help import shows_options
from farcall.model.errors import SettingsError
from farcall.payload import pickling
from farcall_runtime import pickles

if TYPE_CHECKING:
    from farcall.client.executor import BatchExecutor
    from farcall.config.settings import Options

P = ParamSpec("P")
R = TypeVar("R")

_OF_MAPS = ("chunksize", "return_exceptions", "progress", "output")


class Task(Generic[P, R]):
    """Function decorated with `BatchExecutor.task`.

    Inside a job it is the plain function: a task that calls another task runs it in the same
    process.

    Attributes:
        function: The plain function.
        executor: The executor that runs it.
    """

    def __init__(self, function: Callable[P, R], executor: BatchExecutor) -> None:
        pickling.check_callable(function)
        # The function's attributes are not copied: a class may have methods with the same names.
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.executor = executor

    @functools.cached_property
    def name(self) -> str:
        """Name of the function."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __repr__(self) -> str:
        return f"<Task {getattr(self.function, '__qualname__', self.function)}>"

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the function as a job; awaiting the call returns its result.

        Cancelling the await terminates the job. With the option ``nodes``, the call returns the
        list of all nodes' results, although its type does not say so.

        Raises:
            TypeError: The arguments do not fit the function's signature.
            Exception: See `Job.result`.
        """
        with frames_hidden():
            self._bind(args, kwargs)
        return Unawaited(
            self.name,
            f"call of {self.name}",
            f"write await {self.name}(...), or in code without async, {self.name}.run(...)",
            functools.partial(self.executor._run_call, self.function, args, kwargs),
        )

    def run(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function as a job and wait for its result, in code without ``async``.

        All blocking calls of a process share one event loop in a thread, which keeps connections
        open. For several calls at a time, use `BatchPoolExecutor`. Ctrl-C terminates the job.

        Raises:
            RuntimeError: An event loop is running, as in a notebook; await the call instead.
            TypeError: The arguments do not fit the function's signature.
            Exception: See `Job.result`.
        """
        with frames_hidden():
            blocking_calls.refuse_running_loop(f"{self.name}.run(...)", f"await {self.name}(...)")
            self._bind(args, kwargs)
            return blocking_calls.run(self.executor, self.function, (args, kwargs))

    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R]]:
        """Submit a call, and return its job when Batch has accepted it.

        Raises:
            TypeError: The arguments do not fit the function's signature.
            SubmissionError: Batch did not accept the job.
            SettingsError: A resource that the options name does not exist.
            ServiceError: AWS refused a call.
        """
        with frames_hidden():
            return self._submission(f"{self.name}.submit(...)", args, kwargs)

    def _submission(
        self, form: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Job[R]]:
        """Return an awaitable submission, for `BatchExecutor`.

        Args:
            form: The user's expression, for error messages.
            args: Positional arguments.
            kwargs: Keyword arguments.

        Raises:
            TypeError: The arguments do not fit the function's signature.
        """
        self._bind(args, kwargs)
        return Unawaited(
            self.name,
            f"submission of {self.name}",
            f"write job = await {form} and then await job.result(), or in code "
            "without async, BatchPoolExecutor().submit(...).result()",
            functools.partial(self.executor._submit_calls, self.function, [(args, kwargs)]),
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

        Containers such as lists and ranges are read and submitted at once. Other iterables may be
        slow or endless, so farcall reads them in blocks while the first calls run: a plain
        iterable in one separate thread, an async iterable on the event loop. The first block ends
        after ``linger_s`` seconds (an option), later ones after a tenth of the time since the
        start of the map, at most 5 s. Wrap an object that only works in one thread, such as a
        sqlite3 cursor, in an async generator.

        With the option ``nodes``, each task is a separate job, because Batch has no arrays of
        multi-node jobs. Submitting a thousand of them takes minutes.

        Args:
            *iterables: Arguments, as for the built-in ``map``; the shortest one ends the map. Some
                of them can be async iterables.
            chunksize: Number of calls in one task. They run one after the other in one process,
                which is cheaper for short calls because a task costs the start of a container.
                The options ``time_limit`` and ``retry_attempts`` apply to the task as a whole. If
                its process dies in its last attempt, the calls before keep their results, and the
                running call and the later ones fail with the error of that attempt.
            return_exceptions: Return exceptions as values instead of raising the first one.
            progress: Show on stderr how many calls are queued, running, done and failed, and their
                rate: a bar on a terminal or in a notebook, otherwise a line from time to time.
            output: Print the tasks' output on stdout and stderr while they run, each line prefixed
                with the function's name and the call's index, up to 200 lines per second in total.
                The default is the executor's option ``output``.
            **fixed: Keyword arguments that are the same in all calls; they are uploaded once per
                array. If the function has a parameter with the name of one above, such as
                ``output``, pass it with ``functools.partial``.

        Returns:
            A sweep. Await it for a list in the order of the arguments, iterate with ``async for``
            over pairs of index and value as they arrive, or use its ``results()`` for a
            `farcall.CallResult` of each call. An exception of an iterable is raised there and
            terminates the jobs.

        Raises:
            TypeError: No iterable was given, or the arguments do not fit the function's signature.
            SettingsError: ``chunksize`` is below 1, or an argument has the wrong type.
        """
        with frames_hidden():
            if not iterables:
                arguments.refuse_none(self.name)
            # The check does not depend on the values.
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
            iterable: Positional arguments of each call; see `map` for how it is read.
            chunksize: See `map`.
            return_exceptions: Return exceptions as values instead of raising the first one.
            progress: Show progress on stderr.
            output: Print the tasks' output.
            **fixed: Keyword arguments that are the same in all calls.

        Returns:
            See `map`.

        Raises:
            TypeError: An item of a list or tuple does not fit the function's signature. For other
                iterables the error is raised when the item is read.
            SettingsError: ``chunksize`` is below 1, or an argument has the wrong type.
        """
        fitting: set[int] = set()

        def spread(number: int, item: tuple[Any, ...]) -> tuple[Any, ...]:
            __tracebackhide__ = True
            if not isinstance(item[0], Iterable):
                raise TypeError(
                    f"item {number} of starmap is a {type(item[0]).__name__}; use a tuple of "
                    "the arguments of one call, or map for single arguments"
                )
            args = tuple(item[0])
            if len(args) not in fitting:
                self._bind(args, fixed, _OF_MAPS)
                fitting.add(len(args))
            return args

        with frames_hidden():
            inputs = Inputs((iterable,), spread)
            if isinstance(iterable, list | tuple):  # items may be one-time iterators
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
        arguments.check_chunksize(chunksize)
        output = self.executor.settings.output if output is None else output
        flags = {"return_exceptions": return_exceptions, "progress": progress, "output": output}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise SettingsError(f"{name} is {flag!r}; use True or False", option=name)
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
        """Call the function in this process.

        With the option ``nodes`` it runs once, as on one node, and the result is a list, as on
        Batch.
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
        """Bind a method to its instance, as functions do."""
        if instance is None:
            return self
        return Task(MethodType(self.function, instance), self.executor)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickles.itself, (self.function,)

    def _bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], own: Collection[str] = ()
    ) -> None:
        """Raise an error for arguments that do not fit, before a job is queued."""
        if self._signature is not None:
            arguments.bind(self.name, self._signature, args, kwargs, own)

    @functools.cached_property
    def _signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self.function)
        except (TypeError, ValueError):  # a built-in without a signature
            return None


async def _listed(coroutine: Coroutine[Any, Any, R]) -> list[R]:
    return [await coroutine]
