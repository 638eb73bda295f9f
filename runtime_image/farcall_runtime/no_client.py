"""Stand-ins for the packages ``farcall`` and ``covalent``, which most images lack.

A project's module may import them and decorate its functions with an executor's ``task``, or with
``electron``. In a job, such a function is the plain one, so the client is not needed: its classes
can be instantiated and named there, and any other use of them raises an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

_DECORATORS = ("electron", "lattice")
_SUBMODULES = ("executor", "triggers", "fs", "fs_strategies")
"""Modules of Covalent that are attributes of its package."""


def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
    """Find a client's package or a module in it; None if an installed client lacks it."""
    top, _, rest = name.partition(".")
    if rest and ("." in rest or not isinstance(sys.modules.get(top), _StandIn)):
        return None
    return ModuleSpec(name, _Loader(), is_package=not rest)


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = self._attribute(self.__name__.partition(".")[0], name)
        setattr(self, name, value)
        return value

    def _attribute(self, top: str, name: str) -> Any:
        if top == "covalent" and name in _DECORATORS:
            return _undecorated
        if top == "covalent" and name in _SUBMODULES:
            return _StandIn(f"{top}.{name}")
        if name[0].islower():
            return lambda *_args, **_options: _refuse(f"{top}.{name}", top)
        base: type = Exception if name.endswith("Error") else _Client
        return type(name, (base,), {"__module__": top})


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: attributes are created on access."""


def _undecorated(function: Callable[..., Any] | None = None, **_options: object) -> Any:
    """Return the function itself."""
    return function if function is not None else lambda function: function


class _Client:
    """Stand-in for a class of the client."""

    def __init__(self, *args: object, **options: object) -> None:
        """Accept any arguments."""

    def __class_getitem__(cls, _item: object) -> type:
        return cls

    def task(self, function: Callable[..., Any] | None = None, **options: object) -> Any:
        """Return the function itself."""
        return _undecorated(function, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f"{type(self).__name__}.{name}")

    def __enter__(self) -> NoReturn:
        self._refuse(type(self).__name__)

    __aenter__ = __iter__ = __enter__

    def __exit__(self, *_: object) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...

    def _refuse(self, what: str) -> NoReturn:
        _refuse(what, type(self).__module__)


def _refuse(what: str, package: str) -> NoReturn:
    raise RuntimeError(
        f"{what} cannot be used in a job, because its image has no {package} client: submit jobs "
        "where the workflow runs"
    )
