"""Condition that Ctrl-C cannot leave locked."""

from __future__ import annotations

import threading
from typing import Any


class Condition(threading.Condition):
    """Condition variable for locks that the main thread takes.

    The methods ``__enter__`` and ``__exit__`` of `threading.Condition` are Python functions. If
    KeyboardInterrupt is raised in one of them, the lock is never released
    (https://github.com/python/cpython/issues/74174), and farcall's event loop waits for it
    forever. Here ``with`` calls the lock's own methods, which are not interrupted.
    """

    @property
    def __enter__(self) -> Any:
        return self._lock.__enter__  # type: ignore[attr-defined]

    @property
    def __exit__(self) -> Any:  # noqa: PYI036  # a property
        return self._lock.__exit__  # type: ignore[attr-defined]
