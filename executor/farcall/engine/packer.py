"""Pickling batcher: what many coroutines submit at once is pickled together, in one thread.

Ten thousand submissions of a moment would otherwise be ten thousand ways to a thread and back,
and the same function pickled as often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from farcall.engine.batcher import Batcher
from farcall.engine.worker_threads import WorkerThreads
from farcall.model.settings import Settings
from farcall.payload import pickling
from farcall.payload.call_texts import CallTexts
from farcall.payload.pickling import Call, Packed
from farcall.payload.project import Pickling
from farcall.payload.shared import Digests

_TOGETHER = 256
"""Calls pickled in one go; those that wait for them go on together, which holds up the loop."""


@dataclass(frozen=True, eq=False, slots=True)
class _Wanted:
    function: Callable[..., Any]
    calls: Sequence[Call]
    settings: Settings


class Packer:
    """Pickles functions and arguments of one event loop."""

    def __init__(self, threads: WorkerThreads) -> None:
        self._batcher: Batcher[_Wanted, tuple[Packed, Packed]] = Batcher(
            partial(threads.run, _pack_all), _TOGETHER
        )

    async def pack(
        self,
        function: Callable[..., Any],
        calls: Sequence[Call],
        settings: Settings,
    ) -> tuple[Packed, Packed]:
        """Pickle a function and the arguments of the calls that one task makes.

        Raises:
            TaskNotPicklableError: Something cannot be pickled; the message says what.
            NoRoomError: There is no room in that folder.
        """
        return await self._batcher.ask(_Wanted(function, calls, settings))


def _pack_all(some: list[_Wanted]) -> list[tuple[Packed, Packed] | Exception]:
    """Pickle; what cannot be pickled has its error in the place of its pickles."""
    functions: dict[tuple[int, str], Packed] = {}
    texts: dict[int, CallTexts] = {}
    digests = Digests()  # they came within a moment
    done: list[tuple[Packed, Packed] | Exception] = []
    using: dict[str, Pickling] = {}
    for wanted in some:
        function, settings = wanted.function, wanted.settings
        option = repr((settings.sources, settings.exclude_sources))
        key = id(function), option
        try:
            if option not in using:
                using[option] = Pickling.of(settings)
            if key not in functions:
                functions[key] = pickling.pack_function(
                    function, None, digests, using=using[option]
                )
                texts[id(function)] = CallTexts(function)
            to_text = texts[id(function)].of if settings.call_texts else None
            call = pickling.pack_call(
                wanted.calls, settings.cache_dir, to_text, digests, using=using[option]
            )
            done.append((functions[key], call))
        except Exception as error:  # the caller is to have it
            done.append(error)
    return done
