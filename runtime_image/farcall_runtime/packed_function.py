"""Functions that only a job unpickles.

Covalent's client packs an electron's function together with the caller's project. The server, and
any process without the project, passes the function on as bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from farcall_runtime import sources
from farcall_runtime.envelope import Buffer

PROJECTS = "projects"
"""Key of the packed projects, base64 by digest, in the header of a lattice's function."""

projects: dict[str, Buffer] = {}
"""Packed projects of this job by digest; see `farcall_runtime.sources.pack`."""


class PackedFunction:
    """Function of a project, as bytes.

    Args:
        pickled: Pickle of the function, whose first step is `enter_project`.
        facts: JSON for Covalent's server: ``project``, ``packages``, ``python``, ``cloudpickle``.
        name: Name of the function.
        doc: Documentation of the function.
        text: The function's ``str``.
        parameters: Name and kind of each parameter.
    """

    def __init__(
        self,
        pickled: bytes,
        facts: Mapping[str, Any],
        name: str,
        doc: str | None,
        text: str,
        parameters: Sequence[tuple[str, int]],
    ) -> None:
        self.facts = facts
        self.__name__ = self.__qualname__ = name
        self.__doc__ = doc
        self._pickled = pickled
        self._text = text
        self._parameters = parameters

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            *(self._pickled, self.facts, self.__name__, self.__doc__, self._text),
            self._parameters,
        )

    def __str__(self) -> str:
        return self._text

    @property
    def __signature__(self) -> Any:
        from inspect import Parameter, Signature, _ParameterKind

        return Signature(
            [Parameter(name, _ParameterKind(kind)) for name, kind in self._parameters]
        )

    def load(self) -> Any:
        """Enter the project, and return the function.

        Raises:
            LookupError: This process is not the function's job.
            Exception: Any exception of the function's own unpickling code.
        """
        return pickle.loads(self._pickled)  # noqa: S301  # the bundle was verified

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.load()(*args, **kwargs)


def enter_project(digest: str, plan: Mapping[str, Any]) -> None:
    """Enter the project of a `PackedFunction`; see `farcall_runtime.sources.enter`.

    Raises:
        LookupError: This process is not the function's job.
    """
    if digest not in projects:
        raise LookupError(
            "the function's project is missing: Covalent packed this electron for a farcall job, "
            "and no other executor can run it. Dispatch the workflow again"
        )
    sources.enter(projects[digest], plan)


def in_project_of(other: PackedFunction, function: Any) -> Any:
    """Enter the project of another function, and return the function."""
    other.load()
    return function


class Unpickler(pickle.Unpickler):
    """Unpickler that uses the job's own classes in place of copies by value.

    Covalent's server has no project, so it pickles the classes of a value by value.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return a global, or this module's replacement for one of cloudpickle's functions."""
        if module == "cloudpickle.cloudpickle" and name in _REPLACED:
            return _REPLACED[name]
        return super().find_class(module, name)


def _make_class(kind: Any, name: str, bases: Any, namespace: dict[str, Any], *rest: Any) -> Any:
    from cloudpickle import cloudpickle as internals

    qualname = namespace.get("__qualname__", name)
    own = sources.own_class(namespace.get("__module__"), qualname)
    return own or internals._make_skeleton_class(kind, name, bases, namespace, *rest)


def _make_enum(bases: Any, name: str, qualname: str, members: Any, module: str, *rest: Any) -> Any:
    from cloudpickle import cloudpickle as internals

    own = sources.own_class(module, qualname)
    return own or internals._make_skeleton_enum(bases, name, qualname, members, module, *rest)


def _fill(made: type, state: Any) -> Any:
    from cloudpickle import cloudpickle as internals

    is_own = sources.own_class(made.__module__, made.__qualname__) is made
    return made if is_own else internals._class_setstate(made, state)


_REPLACED = {
    "_make_skeleton_class": _make_class,
    "_make_skeleton_enum": _make_enum,
    "_class_setstate": _fill,
}
