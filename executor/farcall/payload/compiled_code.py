"""Digests of compiled code without its lines, and the names that code uses."""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any


def code_digest(code: CodeType) -> bytes:
    """Return the digest of code without its file, its lines and its columns."""
    digest = hashlib.sha256()
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    table = getattr(code, "co_exceptiontable", b"")
    for each in (code.co_name, counts, names, code.co_code, table):
        digest.update(repr(each).encode("utf-8", "surrogatepass"))
    for constant in code.co_consts:
        digest.update(_constant(constant))
    return digest.digest()


def _constant(value: Any) -> bytes:
    if isinstance(value, CodeType):
        return code_digest(value)
    if isinstance(value, tuple):
        return b"(%b)" % b",".join(map(_constant, value))
    if isinstance(value, frozenset):
        return b"{%b}" % b",".join(sorted(map(_constant, value)))
    return f"{type(value).__name__} {value!r}".encode("utf-8", "surrogatepass")


def names_in(code: CodeType) -> tuple[list[str], list[str], list[str]]:
    """Return the global names that code reads, the modules it imports, and its attributes.

    A text may be the name of a module for ``import_module``, or of an attribute for ``getattr``.
    """
    names: dict[str, None] = {}
    imported: dict[str, None] = {}
    attributes: dict[str, None] = {}
    latest = ""
    for each in (step for part in _parts(code) for step in dis.get_instructions(part)):
        name = str(each.argval)
        match each.opname:
            case "LOAD_GLOBAL" | "LOAD_NAME":
                names[name] = None
            case "LOAD_ATTR" | "LOAD_METHOD":
                attributes[name] = None
            case "LOAD_CONST" if isinstance(each.argval, str):
                attributes[name] = imported[name] = None
            case "IMPORT_NAME":
                latest = name
                imported.update(dict.fromkeys(_prefixes(name)))
            case "IMPORT_FROM":
                imported[f"{latest}.{name}"] = None
    return [*names], [*imported], [*attributes]


def _parts(code: CodeType) -> Iterator[CodeType]:
    """Yield code, and the code of functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)


def _prefixes(name: str) -> Iterator[str]:
    """Yield a module's packages and the module."""
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        yield ".".join(parts[:number])


def stamp_of(file: str) -> tuple[int, int] | None:
    """Return a value that changes with a file; None in a zip archive."""
    try:
        stat = Path(file).stat()
    except OSError:  # in a zip archive
        return None
    return stat.st_mtime_ns, stat.st_size


@functools.lru_cache(4096)
def read_module(
    name: str, file: str, stamp: tuple[int, int] | None
) -> tuple[bytes, frozenset[str]]:
    """Return the digest of a module's code, and the dotted names that it imports.

    Args:
        name: The module's name.
        file: Its file.
        stamp: See `stamp_of`.
    """
    content = _content(name, file, stamp)
    try:
        tree = ast.parse(content)
        code = compile(tree, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):  # no Python, such as a shared library
        return hashlib.sha256(content).digest(), frozenset()
    is_package = Path(file).stem == "__init__"
    package = name if is_package else name.rpartition(".")[0]
    return code_digest(code), frozenset(_imports(tree, name, package))


def _content(name: str, file: str, stamp: tuple[int, int] | None) -> bytes:
    if stamp is not None:
        return Path(file).read_bytes()
    loader = getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)
    try:
        return str(loader.get_source(name)).encode()  # type: ignore[union-attr]
    except Exception:  # a loader may raise anything
        return name.encode()


def _imports(tree: ast.Module, name: str, package: str) -> Iterator[str]:
    yield from _prefixes(name.rpartition(".")[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield from _prefixes(each.name)
        elif isinstance(node, ast.ImportFrom):
            try:
                home = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # outside its package
                continue
            yield from _prefixes(home)
            yield from (f"{home}.{each.name}" for each in node.names)
