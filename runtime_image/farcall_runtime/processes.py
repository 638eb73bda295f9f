"""`multiprocessing` in a function that travelled by value.

It passes functions and classes to its processes by name. What travelled by value is in no module
that could be imported here, so they go by value there, too. A class stays the same class, and
functions of one module share its variables, as they do where the module can be imported: what a
pool's ``initializer`` puts into them is there for the pool's other functions.
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
"""Variables of modules that travelled by value, by the module's name."""

_call: Any = None


def install() -> None:
    """Have functions and classes that are in no module pass to processes by value.

    Where `multiprocessing` is not imported yet, it is done as soon as it is.
    """
    if _REDUCTION in sys.modules:
        _teach(sys.modules[_REDUCTION])
    elif _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def remember(call: Any) -> None:
    """Note what this process was started for: processes that it forks have its variables."""
    global _call
    _call = call


class _Finder:
    """Waits for `multiprocessing` to be imported, which takes longer than many a function."""

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

        def execute_and_teach(module: Any) -> None:
            execute(module)
            _teach(module)

        spec.loader.exec_module = execute_and_teach  # type: ignore[method-assign]
        return spec


def _teach(reduction: Any) -> None:
    # In its place: modules of multiprocessing hold the class by names of their own.
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
    # Locks and connections have reducers of their own, which are asked for inside, too.
    ours.dispatch_table = ChainMap(pickler._extra_reducers, ours.dispatch_table)
    with pickles.without_rules():  # the process has no script that has it
        ours.dump(value)
    return load, (sink.getvalue(),)


def load(pickled: bytes) -> Any:
    """Unpickle a function or class in another process, which can then pass such things itself."""
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
            name = _enter(variables)
            if name is None or recipe[-1] is not internals._function_setstate:
                return recipe
            make, (code, _, *rest), *state, _ = recipe
            return make, (code, _Namespace(name, variables), *rest), *state, _add_state

    return Pickler


class _Namespace:
    """Stands in a pickle for the variables of a module."""

    def __init__(self, name: str, variables: dict[str, Any]) -> None:
        names = ("__package__", "__name__", "__path__", "__file__")  # as cloudpickle has it
        self._recipe = name, {each: variables[each] for each in names if each in variables}

    def __reduce__(self) -> Any:
        return namespace, self._recipe


def namespace(name: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of a module in this process, those that a pickle names where new."""
    _look_around()
    return _namespaces.setdefault(name, variables)


def _add_state(function: Any, state: Any) -> None:
    """Complete a function; what its module's variables are in this process, they stay."""
    from cloudpickle import cloudpickle as internals

    attributes, slots = state
    there = function.__globals__
    new = {name: value for name, value in slots["__globals__"].items() if name not in there}
    internals._function_setstate(function, (attributes, {**slots, "__globals__": new}))


def _enter(variables: dict[str, Any]) -> str | None:
    """Return the name under which processes share a module's variables; None if they do not.

    A second module of the same name, as `exec` makes them, keeps its own.
    """
    _look_around()
    name = variables.get("__name__")
    if not isinstance(name, str) or _is_importable(name, variables):
        return None
    return name if _namespaces.setdefault(name, variables) is variables else None


def _is_importable(name: str, variables: dict[str, Any]) -> bool:
    return getattr(sys.modules.get(name), "__dict__", None) is variables


def _look_around() -> None:
    """Enter the modules that came with the call, which a forked process has too."""
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
    """Return what may be a function of another module in a callable."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__func__, type(value.__self__)]
    if isinstance(value, type):
        return list(vars(value).values())
    return [getattr(value, "__wrapped__", None)] if isinstance(value, FunctionType) else []
