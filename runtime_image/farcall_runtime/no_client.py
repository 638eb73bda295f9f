"""Stand-ins for the packages ``farcall`` and ``covalent``, which most images lack.

A project's module may import them and decorate its functions with an executor's ``task``, or with
``electron``. In a job, such a function is the plain one, so the client is not needed: its classes
can be instantiated and named there, and any other use of them raises an error.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

_COVALENT = "covalent"
_DEPTH_OF_REAL = 2
"""Dots in the names of modules that have no stand-in, such as ``covalent._workflow.electron``."""

_DECORATORS = ("electron", "lattice")
_SUBMODULES = ("executor", "triggers", "fs", "fs_strategies")
"""Modules of Covalent that are attributes of its package."""


def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
    """Find a client's package or a module in it; None if an installed client lacks it."""
    top, _, rest = name.partition(".")
    if rest and ("." in rest or not isinstance(sys.modules.get(top), _StandIn)):
        return None
    return ModuleSpec(name, _Loader(), is_package=not rest)


class CovalentFinder:
    """Import hook that finds the stand-in even if the image has Covalent.

    Importing Covalent takes longer than many electrons. It is imported when code uses it.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find ``covalent``, or a module that only the installed package has."""
        if name.partition(".")[0] != _COVALENT:
            return None
        if name.count(".") < _DEPTH_OF_REAL:
            return find_spec(name, path, target)
        _import_real(_COVALENT)
        return importlib.util.find_spec(name) if CovalentFinder not in sys.meta_path else None


def _import_real(top: str) -> ModuleType | None:
    """Import an installed client in place of its stand-in; return None if there is none."""
    with contextlib.suppress(ValueError):
        sys.meta_path.remove(CovalentFinder)
    if importlib.machinery.PathFinder.find_spec(top) is None:
        return None
    for name in [each for each in sys.modules if each.partition(".")[0] == top]:
        if isinstance(sys.modules[name], _StandIn):
            del sys.modules[name]
    return importlib.import_module(top)


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = self._attribute(self.__name__.partition(".")[0], name)
        setattr(self, name, value)
        return value

    def _attribute(self, top: str, name: str) -> Any:
        if top == _COVALENT and name in _DECORATORS:
            return _undecorated
        if top == _COVALENT and name in _SUBMODULES:
            return _StandIn(f"{top}.{name}")
        if name[0].islower():
            return functools.partial(_use, self.__name__, name)
        base: type = Exception if name.endswith("Error") else _Client
        return type(name, (base,), {"__module__": top})


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: attributes are created on access."""


def _use(module: str, name: str, *args: Any, **options: Any) -> Any:
    """Call a function of the client, if it is installed."""
    top = module.partition(".")[0]
    if _import_real(top) is None:
        _refuse(f"{module}.{name}", top)
    return getattr(importlib.import_module(module), name)(*args, **options)


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
