"""Unpickling: results back to objects. No I/O.

If this process has a class or can import it, its own class is used, so ``isinstance`` and
``except`` work as in a local call.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import cloudpickle.cloudpickle as _internals

from farcall.payload.sources import local_path, localized
from farcall_runtime import pickles, sources
from farcall_runtime.envelope import Buffer


def load(parts: Sequence[Buffer]) -> Any:
    """Unpickle a value from a verified outcome.

    Raises:
        Exception: Raised by the value's own unpickling code.
    """
    return pickles.load(parts, _HomeUnpickler)


def load_pieces(parts: Sequence[Sequence[Buffer]]) -> Any:
    """Unpickle a value whose parts are in pieces; see `load`."""
    return pickles.load_pieces(parts, _HomeUnpickler)


class _HomeUnpickler(pickle.Unpickler):
    """Unpickler that reads a container's pickle with the classes of this process.

    A class that was sent by value comes back by value, as a copy. If this process has the
    original, or can import it, the original is used and stays unchanged.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._made: set[type] = set()

    def load(self) -> Any:
        try:
            return super().load()
        finally:
            # It contains methods of this object, a cycle that the garbage collector does not see.
            self.memo.clear()

    def find_class(self, module: str, name: str) -> Any:
        if module == sources.__name__ and name in _HERE:
            return _HERE[name]
        if (module, name) == ("_pickle", "loads"):  # an element of a Covalent collection
            return _load_whole
        if module == _internals.__name__:
            if name == "_make_skeleton_class":
                return self._make_class
            if name == "_make_skeleton_enum":
                return self._make_enum
            if name == "_class_setstate":
                return self._fill
        return super().find_class(module, name)

    def _make_class(
        self, kind: Any, name: str, bases: Any, namespace: dict[str, Any], tracker: str, extra: Any
    ) -> Any:
        where = namespace.get("__module__", ""), namespace.get("__qualname__", name)
        make = _internals._make_skeleton_class
        return self._known(tracker, *where) or self._new(
            make(kind, name, bases, namespace, tracker, extra)
        )

    def _make_enum(
        self, bases: Any, name: str, qualname: str, members: Any, module: str, *rest: Any
    ) -> Any:
        make = _internals._make_skeleton_enum
        return self._known(rest[0], module, qualname) or self._new(
            make(bases, name, qualname, members, module, *rest)
        )

    def _known(self, tracker: str, module: str, qualname: str) -> type | None:
        """Return the class that was sent from here, or this process's class of that name."""
        sent = _internals._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)
        if isinstance(sent, type) and sent not in _copies:
            return sent
        return _find(module, qualname) or sent

    def _new(self, made: type) -> type:
        self._made.add(made)
        _copies.add(made)
        return made

    def _fill(self, made: type, state: Any) -> Any:
        return _internals._class_setstate(made, state) if made in self._made else made


def _load_whole(pickled: Buffer) -> Any:
    return load([pickled])


def _main_global(name: str, copy: bytes | None) -> Any:
    """Return the local script's variable of a name, or else the copy."""
    try:
        return sources.global_of(sources.MAIN, name)
    except AttributeError:
        if copy is None:
            raise
    return load([copy])


def _prepared(_entered: None, _values: Any, function: Any) -> Any:
    return function


_HERE: dict[str, Any] = {
    "enter": lambda _archive, _plan: None,
    "file_at": local_path,
    "in_project": lambda place, rest="": f"{place}{rest}",
    "main_global": _main_global,
    "prepared": _prepared,
    "text_here": localized,
}
"""Replacements for functions of `farcall_runtime.sources`, which act in a job."""

_copies: WeakSet[type] = WeakSet()
"""Classes that a result contained; cloudpickle returns them for later results."""


def _find(module: str, qualname: str) -> type | None:
    """Import a class by its name; return None if it cannot be imported."""
    if "<locals>" in qualname or not module:
        return None
    try:
        # A module that another thread is importing may be waiting for this result.
        part: Any = sys.modules.get(module) or importlib.import_module(module)
        for name in qualname.split("."):
            part = getattr(part, name)
    except BaseException:  # the module's own code, such as sys.exit()
        return None
    return part if isinstance(part, type) else None
