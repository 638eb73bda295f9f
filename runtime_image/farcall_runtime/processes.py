"""`multiprocessing` in a function that was pickled by value.

multiprocessing passes functions and classes to its processes by name. Objects that were pickled by
value are in no module that could be imported here, so they are passed by value again. A class
stays the same class, and functions of one module share its variables, as they do if the module can
be imported: variables that a pool's ``initializer`` sets are visible to the pool's other
functions.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections import ChainMap
from types import FunctionType, MethodType
from typing import Any

from farcall_runtime import pickles

_REDUCTION = "multiprocessing.reduction"

_namespaces: dict[str, dict[str, Any]] = {}
"""Variables of modules that were pickled by value, by module name."""

_call: Any = None


def install() -> None:
    """Make processes receive functions and classes of no importable module by value.

    If `multiprocessing` is not imported yet, this takes effect when it is.
    """
    if _REDUCTION in sys.modules:
        _patch(sys.modules[_REDUCTION])
    elif _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def remember(call: Any) -> None:
    """Record this process's function, because forked processes inherit its variables."""
    global _call
    _call = call


class _Finder:
    """Import hook for `multiprocessing`, whose import is slower than many functions."""

    @classmethod
    def find_spec(cls, name: str, *_: Any) -> Any:
        if name != _REDUCTION:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(cls)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_patch(module: Any) -> None:
            execute(module)
            _patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def _patch(reduction: Any) -> None:
    # Patch the class itself: modules of multiprocessing hold it under names of their own.
    reduction.ForkingPickler.reducer_override = _reduce


def _reduce(pickler: Any, value: Any) -> Any:
    if not isinstance(value, (FunctionType, type)):
        return NotImplemented
    from cloudpickle import cloudpickle as internals

    here = pickles.rules_here()
    if here is not None and here.is_importable(value):
        return NotImplemented
    if internals._should_pickle_by_reference(value):
        return NotImplemented
    sink = io.BytesIO()
    ours = _pickler()(sink, protocol=5)
    # Locks and connections have their own reducers, which are needed for nested objects too.
    ours.dispatch_table = ChainMap(pickler._extra_reducers, ours.dispatch_table)
    with pickles.without_rules():  # the process does not have the script
        ours.dump(value)
    return load, (sink.getvalue(),)


def load(pickled: bytes) -> Any:
    """Unpickle a function or class in another process and install the reducers there."""
    install()
    return pickle.loads(pickled)  # noqa: S301  # the parent's


@functools.cache
def _pickler() -> Any:
    from cloudpickle import cloudpickle as internals

    class Pickler(pickles.pickler()):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            recipe = super().reducer_override(value)
            if type(value) is not FunctionType or not isinstance(recipe, tuple):
                return recipe
            variables = value.__globals__
            name = _shared_name(variables)
            if name is None or recipe[-1] is not internals._function_setstate:
                return recipe
            make, (code, _, *rest), *state, _ = recipe
            return make, (code, _Namespace(name, variables), *rest), *state, _add_state

    return Pickler


class _Namespace:
    """Placeholder for a module's variables in a pickle."""

    def __init__(self, name: str, variables: dict[str, Any]) -> None:
        names = ("__package__", "__name__", "__path__", "__file__")  # as cloudpickle does
        self._recipe = name, {each: variables[each] for each in names if each in variables}

    def __reduce__(self) -> Any:
        return namespace, self._recipe


def namespace(name: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Return a module's variables in this process; new ones are those of the pickle."""
    _register_modules()
    return _namespaces.setdefault(name, variables)


def _add_state(function: Any, state: Any) -> None:
    """Set a function's state, keeping module variables that exist in this process."""
    from cloudpickle import cloudpickle as internals

    attributes, slots = state
    there = function.__globals__
    new = {name: value for name, value in slots["__globals__"].items() if name not in there}
    internals._function_setstate(function, (attributes, {**slots, "__globals__": new}))


def _shared_name(variables: dict[str, Any]) -> str | None:
    """Return the name under which processes share a module's variables, if they do.

    A second module of the same name, as created by `exec`, keeps its own variables.
    """
    _register_modules()
    name = variables.get("__name__")
    if not isinstance(name, str) or _is_importable(name, variables):
        return None
    return name if _namespaces.setdefault(name, variables) is variables else None


def _is_importable(name: str, variables: dict[str, Any]) -> bool:
    return getattr(sys.modules.get(name), "__dict__", None) is variables


def _register_modules() -> None:
    """Register the modules that came with the call; forked processes have them too."""
    global _call
    left, _call = [_call], None
    seen: set[int] = set()
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        left += _inside(value)
        if not isinstance(value, FunctionType):
            continue
        variables = value.__globals__
        name = variables.get("__name__")
        if id(variables) not in seen and isinstance(name, str):
            seen.add(id(variables))
            if not _is_importable(name, variables):
                _namespaces.setdefault(name, variables)
                left += variables.values()


def _inside(value: Any) -> list[Any]:
    """Return the parts of a callable that may be functions of other modules."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__func__, type(value.__self__)]
    if isinstance(value, type):
        return list(vars(value).values())
    return [getattr(value, "__wrapped__", None)] if isinstance(value, FunctionType) else []
