"""Pickling of submitted calls, in batches and in threads.

Without batches, ten thousand simultaneous submissions would need ten thousand round trips to a
thread and pickle the same function as often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from farcall.config.settings import Settings
from farcall.engine.batcher import Batcher
from farcall.engine.worker_threads import WorkerThreads
from farcall.payload import pickling
from farcall.payload.call_texts import CallTexts
from farcall.payload.code_digests import CodeDigests
from farcall.payload.pickling import Call, Packed
from farcall.payload.project import Pickling
from farcall.payload.shared import Digests

_TOGETHER = 256
"""Maximum calls pickled in one batch.

Their callers resume together, which blocks the event loop.
"""


@dataclass(frozen=True, eq=False, slots=True)
class FunctionCall:
    """Calls of a function that one task makes.

    Attributes:
        function: The function.
        calls: Arguments of each call.
        settings: Options of the job.
    """

    function: Callable[..., Any]
    calls: Sequence[Call]
    settings: Settings

    @property
    def name(self) -> str:
        """Name of the function."""
        return getattr(self.function, "__name__", "task")

    async def pack(self, session: Packing) -> tuple[Packed, Packed]:
        """Pickle the function and the arguments.

        Raises:
            TaskNotPicklableError: The function or an argument cannot be pickled.
            NoRoomError: ``cache_dir`` has no room.
        """
        return await session.packer.pack(self)


class Packing(Protocol):
    """The session's interface to calls."""

    packer: Packer


class Packer:
    """Pickles functions and arguments of one event loop."""

    def __init__(self, threads: WorkerThreads) -> None:
        self._batcher: Batcher[FunctionCall, tuple[Packed, Packed]] = Batcher(
            partial(threads.run, _pack_all), _TOGETHER
        )

    async def pack(self, call: FunctionCall) -> tuple[Packed, Packed]:
        """Pickle a function and the arguments of the calls that one task makes.

        Raises:
            TaskNotPicklableError: The function or an argument cannot be pickled; the message names
                it.
            NoRoomError: ``cache_dir`` has no room.
        """
        return await self._batcher.add(call)


def rules_for(settings: Settings) -> tuple[Pickling, CodeDigests | None]:
    """Return how the project is pickled, and for the option ``cache`` the digests of its code.

    Raises:
        SettingsError: A folder of the option ``sources`` does not exist.
    """
    using = Pickling.of(settings)
    version = settings.cache if isinstance(settings.cache, str) else ""
    return using, CodeDigests(using, version) if settings.cache else None


def _pack_all(some: list[FunctionCall]) -> list[tuple[Packed, Packed] | Exception]:
    """Pickle a batch; an unpicklable call gets its error in place of its pickles."""
    functions: dict[tuple[int, str], Packed] = {}
    texts: dict[int, CallTexts] = {}
    digests = Digests()  # the calls of a batch are concurrent
    done: list[tuple[Packed, Packed] | Exception] = []
    rules: dict[str, tuple[Pickling, CodeDigests | None]] = {}
    for wanted in some:
        function, settings = wanted.function, wanted.settings
        option = repr((settings.sources, settings.exclude_sources, settings.cache))
        key = id(function), option
        try:
            if option not in rules:
                rules[option] = rules_for(settings)
            using, codes = rules[option]
            if key not in functions:
                functions[key] = pickling.pack_function(
                    function, None, digests, using=using, codes=codes
                )
                texts[id(function)] = CallTexts(function)
            to_text = texts[id(function)].of if settings.store_call_summaries else None
            packed = pickling.pack_calls(
                [wanted.calls], settings.cache_dir, to_text, digests, using=using, codes=codes
            )
            call = next(packed)
            done.append((functions[key], call))
        except Exception as error:  # the caller receives it
            done.append(error)
    return done
