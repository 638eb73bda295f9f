"""Stand-in for the package ``farcall``, which most images lack.

A project's module may import it and decorate its functions with an executor's ``task``. In a job,
such a function is the plain one, so the client is not needed: its classes can be instantiated and
named there, and any other use of them raises an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

_NAME = "farcall"


def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
    """Find ``farcall`` or a module in it; None if an installed farcall lacks it."""
    rest = name.partition(".")[2]
    if rest and ("." in rest or not isinstance(sys.modules.get(_NAME), _StandIn)):
        return None
    return ModuleSpec(name, _Loader(), is_package=not rest)


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        base: type = Exception if name.endswith("Error") else _Client
        made = type(name, (base,), {"__module__": _NAME})
        setattr(self, name, made)
        return made


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: attributes are created on access."""


class _Client:
    """Stand-in for a class of the client."""

    def __init__(self, *args: object, **options: object) -> None:
        """Accept any arguments."""

    def __class_getitem__(cls, _item: object) -> type:
        return cls

    def task(self, function: Callable[..., Any] | None = None, **_options: object) -> Any:
        """Return the function itself."""
        return function if function is not None else lambda function: function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"{type(self).__name__}.{name}")

    def __enter__(self) -> NoReturn:
        _refuse(type(self).__name__)

    __aenter__ = __iter__ = __enter__

    def __exit__(self, *_: object) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(
        f"{what} cannot be used in a job, because its image has no farcall client: submit jobs "
        "where the workflow runs"
    )
