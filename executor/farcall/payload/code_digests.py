"""Digests of code: equal as long as a function and the code of the project that it uses are equal.

Comments, blank lines and the places of lines do not count, because compiled code is hashed without
its line numbers. Code of a module counts as a whole, with the modules of the project that it
imports. Of the script or a notebook only the definitions and variables count that the function
uses, as of modules that are pickled by value. Installed packages count by name.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from farcall.payload.compiled_code import code_digest, names_in, read_module, stamp_of
from farcall.payload.project import Pickling
from farcall.payload.sources import main_file
from farcall_runtime import pickles
from farcall_runtime.sources import MAIN


class _Module(NamedTuple):
    """A module of the project, which may not be loaded."""

    name: str


class _Value(NamedTuple):
    """A value that is compared by its pickle."""

    value: Any


class CodeDigests:
    """Digests of the code that functions and classes use, at one moment.

    Args:
        using: How the project is pickled.
        version: Text that replaces the code's digest; empty for none.
    """

    def __init__(self, using: Pickling, version: str = "") -> None:
        self._using = using
        self._version = version
        self._files = {} if version else using.module_files
        self._known: dict[int, tuple[Any, bytes]] = {}

    def of_call(self, function: Any, fixed: Mapping[str, Any]) -> bytes:
        """Return the digest of a function and its keyword arguments that all calls share."""
        if not self._version:
            return self.of(functools.partial(function, **fixed))
        home = getattr(function, "__module__", "")
        home = Path(main_file()).name if home == MAIN else home
        name = f"{home} {getattr(function, '__qualname__', '')} {self._version}"
        values = [_Value(each) for item in sorted(fixed.items()) for each in item]
        return self._of_parts([_Value(name), *values])

    def of_each(self, definitions: Iterable[Any]) -> bytes:
        """Return the digest of several functions and classes, in any order."""
        if self._version:
            return b""
        digests = []
        for each in definitions:
            if id(each) not in self._known:
                self._known[id(each)] = each, self.of(each)
            digests.append(self._known[id(each)][1])
        return hashlib.sha256(b"".join(sorted(set(digests)))).digest()

    def of_project(self) -> bytes:
        """Return the digest of all loaded modules of the project, and of the script's classes."""
        if self._version:
            return b""
        modules = self._using.loaded
        parts: list[Any] = [_Module(name) for name in sorted(modules) if name in self._files]
        for name in (MAIN, *sorted(modules.keys() - self._files.keys())):
            module = modules.get(name, sys.modules.get(MAIN))
            own = (each for each in vars(module).values() if issubclass(type(each), type))
            classes = {_qualname(each): each for each in own if _home(each) == name}
            parts += [kind for _, kind in sorted(classes.items())]
        return self._of_parts(parts)

    def of(self, root: Any) -> bytes:
        """Return the digest of a function, class or module, and of the code that it uses."""
        return self._of_parts([_part(root)])

    def _of_parts(self, left: list[Any]) -> bytes:
        digest = hashlib.sha256()
        seen: dict[Any, int] = {}
        kept = []  # an object that is deleted would leave its identity to another one
        while left:
            each = left.pop()
            if not isinstance(each, _Value):
                place = each if isinstance(each, _Module) else id(each)
                if place in seen:
                    digest.update(b"again %d;" % seen[place])
                    continue
                seen[place] = len(seen)
                kept.append(each)
            text, parts = self._describe(each)
            digest.update(b"%d:%b;%d;" % (len(text), text, len(parts)))
            left.extend(reversed(parts))
        return digest.digest()

    def _describe(self, value: Any) -> tuple[bytes, list[Any]]:
        """Return a text that stands for a value, and the parts that it uses."""
        if isinstance(value, _Value):
            return self._pickled(value.value)
        if isinstance(value, _Module):
            return self._module(value.name)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, TypeVar | ParamSpec):  # pickled with a random name
            return f"{value!r}".encode(), []
        inside = _inside(value)
        if inside is not None:
            return type(value).__qualname__.encode(), [_part(each) for each in inside]
        return self._pickled(value)

    # --- functions and classes ----------------------------------------------------------------

    def _function(self, function: FunctionType) -> tuple[bytes, list[Any]]:
        home = str(function.__globals__.get("__name__", MAIN))
        name = f"{home}.{function.__qualname__}".encode()
        parts = [_part(cell) for cell in map(_contents, function.__closure__ or ())]
        is_by_value = self._using.is_by_value(home)
        if not is_by_value and home not in self._files:
            return name, parts  # of an installed package, such as a decorator's
        parts += map(_part, function.__defaults__ or ())
        parts += [_part(each) for _, each in sorted((function.__kwdefaults__ or {}).items())]
        own = {n: v for n, v in vars(function).items() if n != _ELECTRON}
        parts += _named(own) if is_by_value else ()
        parts += self._used(function) if is_by_value else [_Module(home)]
        return b"%b %b" % (name, code_digest(function.__code__)), parts

    def _used(self, function: FunctionType) -> Iterator[Any]:
        """Yield the variables that a function of the script reads, and the modules it imports."""
        variables = function.__globals__
        names, imported, attributes = names_in(function.__code__)
        for name in names:
            if name in variables:
                value = variables[name]
                yield _part(value)
                if isinstance(value, ModuleType):
                    imported = [*imported, value.__name__]
        for name in imported:
            yield from self._with_submodules(name, attributes)

    def _with_submodules(self, name: str, attributes: Iterable[str]) -> Iterator[_Module]:
        """Yield a module of the project, and those of its modules that are attributes in code."""
        if name not in self._files:
            return
        yield _Module(name)
        for each in attributes:
            yield from self._with_submodules(f"{name}.{each}", attributes)

    def _class(self, kind: type) -> tuple[bytes, list[Any]]:
        home = _home(kind)
        name = f"{home}.{_qualname(kind)}".encode()
        if not self._using.is_by_value(home):
            return name, [_Module(home)] if home in self._files else []
        attributes = sorted(vars(kind).items())
        used = [(n, v) for n, v in attributes if n not in _CLASS_ATTRIBUTES]
        text = b" ".join([_qualname(kind).encode(), *(n.encode() for n, _ in used)])
        values = (repr(v) if n == "__annotations__" else v for n, v in used)
        return text, [type(kind), *kind.__bases__, *map(_part, values)]

    # --- modules ------------------------------------------------------------------------------

    def _module(self, name: str) -> tuple[bytes, list[Any]]:
        file = self._files.get(name)
        if file is None:
            return name.encode(), []
        text, imported = read_module(name, file, stamp_of(file))
        module = sys.modules.get(name)
        values = self._using.set_in(module) if module is not None else {}
        parts: list[Any] = [_Module(each) for each in sorted(imported) if each in self._files]
        parts += [_Value(each) for item in sorted(values.items(), key=_first) for each in item]
        return b"%b %b" % (name.encode(), text), parts

    # --- values -------------------------------------------------------------------------------

    def _pickled(self, value: Any) -> tuple[bytes, list[Any]]:
        """Hash a value's pickle; its parts are the definitions in it."""
        digest = hashlib.sha256()
        if isinstance(value, set | frozenset) and {*map(type, value)} == {str}:
            value = type(value), sorted(value)  # each process has another order
        try:
            with self._using.recording() as definitions:
                for pieces in pickles.dump(value):
                    for piece in pieces:
                        digest.update(piece)
        except Exception:  # pickling runs the user's code; jobs get another value
            kind = type(value)
            text = f"{kind.__module__}.{kind.__qualname__}".encode()
            return text, [kind, *self._content(value)]
        return digest.digest(), [_part(each) for each in definitions if each is not value]

    def _content(self, value: Any) -> list[Any]:
        """Return the parts of a container, or of an instance of the project's classes."""
        if isinstance(value, list | tuple):
            return [_inner(each) for each in value]
        if isinstance(value, dict):
            return [_inner(each) for item in value.items() for each in item]
        home = type(value).__module__
        is_own = home in self._files or self._using.is_by_value(home)
        return _named(getattr(value, "__dict__", {})) if is_own else []


_CLASS_ATTRIBUTES = frozenset(
    (
        *("__dict__", "__weakref__", "__module__", "__firstlineno__", "__static_attributes__"),
        # Derived from others, and different in each process.
        *("__orig_bases__", "__parameters__", "_abc_impl", "__pydantic_core_schema__"),
        *("__pydantic_serializer__", "__pydantic_validator__"),
    )
)


# A metaclass may define these attributes with code of its own.
_module = type.__dict__["__module__"].__get__
_qualname = type.__dict__["__qualname__"].__get__


def _home(kind: type) -> str:
    """Return the module of a class; the script if the class replaces that attribute."""
    home = _module(kind)
    return home if isinstance(home, str) else MAIN


_ELECTRON = "electron_object"
"""Attribute of a function with Covalent's own state of it."""


def _first(item: tuple[str, Any]) -> str:
    return item[0]


def _named(values: Mapping[str, Any]) -> list[Any]:
    """Return the parts for attributes."""
    return [
        each for name, value in sorted(values.items()) for each in (_Value(name), _inner(value))
    ]


def _inner(value: Any) -> Any:
    """Return the part for a value that may refer to its container, which is described once."""
    is_container = isinstance(value, list | tuple | dict) or hasattr(value, "__dict__")
    return value if is_container and not isinstance(value, ModuleType) else _part(value)


def _part(value: Any) -> Any:
    """Return a value's representation among the parts."""
    if isinstance(value, ModuleType):
        return _Module(value.__name__)
    is_code = isinstance(value, FunctionType | type | TypeVar | ParamSpec)
    is_code = is_code or _inside(value) is not None
    return value if is_code else _Value(value)


def _inside(value: Any) -> list[Any] | None:
    """Return what a wrapper of functions contains; None for other values."""
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *(v for _, v in sorted(value.keywords.items()))]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, functools.cached_property):
        return [value.func]
    if isinstance(value, FunctionType | type):
        return None
    try:
        wrapped = getattr(value, "__wrapped__", None)
    except Exception:  # the object's own code
        return None
    return [wrapped] if callable(wrapped) else None


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return None
