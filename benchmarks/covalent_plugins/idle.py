"""Covalent's floor, the older way: an executor that runs nothing and answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covalent._workflow.transportable_object import TransportableObject
from covalent.executor.base import AsyncBaseExecutor

EXECUTOR_PLUGIN_NAME = "IdleExecutor"
_EXECUTOR_PLUGIN_DEFAULTS = {"answer": ""}


class IdleExecutor(AsyncBaseExecutor):
    """Answers every electron with the same value, from memory.

    Args:
        answer: File with the value's archive; None is the value without.
    """

    def __init__(self, answer: str = "") -> None:
        super().__init__()
        self.answer = answer

    async def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        task_metadata: Mapping[str, Any],
    ) -> TransportableObject:
        """Return the value."""
        if not self.answer:
            return TransportableObject(None)
        return TransportableObject.deserialize(await asyncio.to_thread(_read, self.answer))


def _read(name: str) -> bytes:
    return Path(name).read_bytes()
