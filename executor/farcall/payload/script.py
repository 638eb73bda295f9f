"""Scripts: the statements of ``__main__`` that a job runs again.

If the calls are below the guard, ``if __name__ == "__main__":``, the job runs the script up to the
statement that the caller had reached, except for the guard's block. Without a guard, and in a
notebook, running it again could submit the jobs again, or delete files again. Then only imports,
functions and classes are executed again; the variables that a function reads are pickled by value.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import logging
import os
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, get_origin

from farcall.payload.sources import Sources, main_file
from farcall_runtime.sources import MAIN, OWN_NAMES, bound_names, constant_names, source_of

_log = logging.getLogger("farcall")

_MAKERS = {
    *("object", "TypeVar", "ParamSpec", "NewType", "ContextVar", "namedtuple", "NamedTuple"),
    *("TypedDict", "make_dataclass", "Enum", "IntEnum", "Lock", "RLock", "getLogger"),
    *("CDLL", "LoadLibrary"),  # their instances cannot be unpickled
}
"""Callables that define something; calling them again has no other effect."""

_SETTERS = ("register", "set_", "filterwarnings", "simplefilter", "basicConfig", "setLevel")
"""Name prefixes of functions that change the behavior of others."""

_INTERACTIVE = ("<ipython-input-", "<python-input-", "<stdin", "<cell")


@dataclass(eq=False)
class _Part:
    """A file of the script, or a cell of a notebook.

    Attributes:
        name: The file name in code objects.
        place: Its path in the archive; empty for a cell, whose source is sent.
        source: The source.
        statements: The top-level statements.
        done: Number of statements that have run.
        runs: Indices of the statements that the job runs.
    """

    name: str
    place: str
    source: str
    statements: list[ast.stmt]
    done: int
    runs: set[int] = field(default_factory=set)


class Script:
    """The part of ``__main__`` that a job runs.

    Args:
        parts: The script's file, or the notebook's cells in the order in which they were run.
        is_guarded: Whether the calls are below the guard.
    """

    def __init__(self, parts: list[_Part], *, is_guarded: bool) -> None:
        self._parts = parts
        self.is_guarded = is_guarded
        self._made: set[str] = set()
        self._set_elsewhere: set[str] = set()
        self._has_star = False
        self._split: tuple[list[list[int]], list[list[int]], set[str]] | None = None
        for part in parts:
            for number, statement in enumerate(part.statements[: part.done]):
                if is_guard(statement) or not (is_guarded or self._is_definition(statement)):
                    self._leave_out(statement)
                else:
                    part.runs.add(number)
                    self._add(statement)
            for each in (node for top in part.statements for node in ast.walk(top)):
                if isinstance(each, ast.Global):
                    self._set_elsewhere.update(each.names)
        if is_guarded:
            for statement in (s for part in parts for s in part.statements if is_guard(s)):
                self._set_elsewhere |= bound_names([statement])
        else:
            self._warn()

    def _add(self, statement: ast.stmt) -> None:
        names = bound_names([statement])
        self._has_star = self._has_star or "*" in names
        is_data = isinstance(statement, ast.Assign | ast.AnnAssign) and not (
            _is_maker(statement) or _is_type_alias(statement)
        )
        # A notebook's lists may have been filled since.
        self._made |= set() if is_data and not self.is_guarded else names

    def _leave_out(self, statement: ast.stmt) -> None:
        self._made -= bound_names([statement])

    def _is_definition(self, statement: ast.stmt) -> bool:
        """Return whether a statement defines something using only names that a job has."""
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return True
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return self._has(_needs(statement))
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            if statement.value is None:
                return True
            if _is_literal(statement.value) and not _is_setting(statement):
                return True
            is_known = _is_maker(statement) or _is_type_alias(statement) or _is_setting(statement)
            return is_known and self._has(_names_in(statement))
        if isinstance(statement, ast.Try | ast.If):
            inside = [s for s in ast.iter_child_nodes(statement) if isinstance(s, ast.stmt)]
            handlers = getattr(statement, "handlers", [])
            inside += [s for handler in handlers for s in handler.body]
            return all(isinstance(s, ast.Pass) or self._is_definition(s) for s in inside)
        return _is_setting(statement) and self._has(_names_in(statement))

    def _has(self, names: Iterable[str]) -> bool:
        known = self._made | OWN_NAMES
        return all(each in known or hasattr(builtins, each) for each in names)

    @property
    def statements(self) -> list[ast.stmt]:
        """The statements, also those that the job does not run."""
        return [each for part in self._parts for each in part.statements[: part.done + 1]]

    def is_made(self, name: str) -> bool:
        """Return whether a name has the same value in the job as here."""
        if name in self._set_elsewhere:
            return False
        return name in self._made or (self._has_star and self.is_guarded)

    def is_constant(self, name: str) -> bool:
        """Return whether a name is bound once, by an expression at the top level."""
        statements = [part.statements[number] for part in self._parts for number in part.runs]
        return self.is_made(name) and name in constant_names(statements)

    def remake(self, name: str) -> bool:
        """Make the job bind a name as the script did, because its value is unpicklable.

        Returns:
            Whether a single statement binds it, and the job did not run that statement before.
        """
        statements = [
            (part, number)
            for part in self._parts
            for number, statement in enumerate(part.statements[: part.done])
            if name in bound_names([statement])
        ]
        if len(statements) != 1 or name in self._set_elsewhere:
            return False
        ((part, number),) = statements
        if not isinstance(part.statements[number], ast.Assign | ast.AnnAssign):
            return False
        part.runs.add(number)
        self._made.add(name)
        self._split = None
        return True

    def plan(self, read: Collection[str]) -> dict[str, Any]:
        """Return the job's instructions for ``__main__``.

        Args:
            read: The names that the function reads. If none of them needs farcall, the job does
                not import it, because the import takes longer than many functions run.
        """
        first = self._parts[0] if self._parts else None
        spec = getattr(sys.modules[MAIN], "__spec__", None) if main_file() else None
        return {
            "argv": sys.argv[1:] if first is not None and first.place else [],
            "file": first.place if first is not None else "",
            "is_folder": Path(sys.argv[0]).absolute() == Path(main_file()).parent,
            "name": str(getattr(spec, "name", "") or ""),
            "is_whole": self.is_guarded,
            "parts": [
                [part.place or part.name, "" if part.place else part.source, numbers]
                for part, numbers in zip(self._parts, self._without_farcall(read), strict=True)
                if numbers
            ],
        }

    def _without_farcall(self, read: Collection[str]) -> list[list[int]]:
        """Return each part's statements to run, without those that need farcall."""
        self._split = self._split or self._by_need()
        every, others, names = self._split
        return every if names.intersection(read) else others

    def _by_need(self) -> tuple[list[list[int]], list[list[int]], set[str]]:
        """Return each part's statements, those that need no farcall, and farcall's names."""
        every = [sorted(part.runs) for part in self._parts]
        names: set[str] = set()
        others: list[list[int]] = []
        for part, numbers in zip(self._parts, every, strict=True):
            left = []
            for number in numbers:
                statement = part.statements[number]
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    needs = _needs(statement)
                else:
                    needs = _names_in(statement)
                if _imports_farcall(statement) or names.intersection(needs):
                    names |= bound_names([statement])
                else:
                    left.append(number)
            others.append(left)
        return every, others, names

    def _is_lost(self, statement: ast.stmt) -> bool:
        """Return whether a job lacks a statement's effect on a module or class."""
        if not (_is_setting(statement) or _is_seed(statement)):
            return False
        targets = statement.targets if isinstance(statement, ast.Assign) else [_called(statement)]
        roots = (next(_names_of(each), "") for each in targets if each is not None)
        return any(root in self._made for root in roots)

    def _warn(self) -> None:
        """Warn once about settings and registrations that a job does not have."""
        for part in self._parts:
            if part.name in _warned:
                continue
            lines = [
                f"line {statement.lineno}: {ast.unparse(statement).splitlines()[0][:60]}"
                for number, statement in enumerate(part.statements[: part.done])
                if number not in part.runs and self._is_lost(statement)
            ]
            if lines:
                _warned.add(part.name)
                _log.warning(
                    "jobs do not run these statements of %s (%s), because the calls are not "
                    'below `if __name__ == "__main__":`. Put the calls there, or move these '
                    "statements into a module that you import",
                    *(Path(part.name).name, "; ".join(lines[:3])),
                )


_warned: set[str] = set()


def find(sources: Sources) -> Script | None:
    """Return the job's part of ``__main__``; None if it is not the user's script."""
    main = sys.modules.get(MAIN)
    if main is None:
        return None
    file = main_file()
    if file:
        return _of_file(file, sources)
    return _of_cells() if getattr(main, "__file__", None) is None else None


def _of_file(file: str, sources: Sources) -> Script | None:
    place = sources.place_of(file)
    if place is None:
        return None
    try:
        source = source_of(file)
        statements = _parsed(source)
    except (OSError, SyntaxError, ValueError):
        return None
    if not _is_as_loaded(file, statements):
        return None
    line = _running().get(file)
    done = len(statements) if line is None else _count_before(statements, line)
    guards = _guards_of(source)
    is_guarded = bool(guards) and (line is None or done in guards)
    if is_guarded:
        return _guarded(file, place, source, done)
    return Script([_Part(file, place, "", statements, done)], is_guarded=False)


@functools.lru_cache(256)
def _parsed(source: str | bytes) -> list[ast.stmt]:
    """Return the statements of a source, which is read again for each submission."""
    return ast.parse(source).body


@functools.lru_cache(256)
def _guards_of(source: bytes) -> list[int]:
    """Return the numbers of the guards among a source's statements."""
    return [number for number, each in enumerate(_parsed(source)) if is_guard(each)]


@functools.lru_cache(1)
def _guarded(file: str, place: str, source: bytes, done: int) -> Script:
    return Script([_Part(file, place, "", _parsed(source), done)], is_guarded=True)


def _of_cells() -> Script | None:
    """Return the script that consists of a notebook's cells or a prompt's input."""
    variables = vars(sys.modules[MAIN])
    known = {code.co_filename for value in list(variables.values()) for code in _codes(value)}
    running = _running()
    parts = []
    for name, entry in list(linecache.cache.items()):
        if len(entry) == 1 or entry[1] is not None:
            continue
        is_cell = name in known or name.startswith(_INTERACTIVE) or "/ipykernel_" in name
        source = "".join(entry[2])
        try:
            statements = _parsed(source) if is_cell else []
        except (SyntaxError, ValueError):
            continue
        if statements:
            line = running.get(name)
            done = len(statements) if line is None else _count_before(statements, line)
            parts.append(_Part(name, "", source, statements, done))
    return Script(parts, is_guarded=False) if parts else None


def _codes(value: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of a class's methods."""
    if isinstance(value, FunctionType):
        yield value.__code__
    elif isinstance(value, type) and value.__module__ == MAIN:
        for each in list(vars(value).values()):
            yield from _codes(each)


def _running() -> Mapping[str, int]:
    """Return the main thread's current line in each file whose top level it runs."""
    variables = vars(sys.modules[MAIN])
    ident = threading.main_thread().ident
    frame: FrameType | None = sys._current_frames().get(ident or 0)
    lines: dict[str, int] = {}
    while frame is not None:
        if frame.f_globals is variables and frame.f_code.co_name == "<module>":
            file = frame.f_code.co_filename
            path = file if file.startswith("<") else os.path.abspath(file)  # noqa: PTH100
            lines[path] = frame.f_lineno
        frame = frame.f_back
    return lines


def _imports_farcall(statement: ast.stmt) -> bool:
    """Return whether a statement imports only farcall."""
    if isinstance(statement, ast.ImportFrom):
        return not statement.level and (statement.module or "").partition(".")[0] == "farcall"
    return isinstance(statement, ast.Import) and all(
        each.name.partition(".")[0] == "farcall" for each in statement.names
    )


def _count_before(statements: list[ast.stmt], line: int) -> int:
    """Return the number of statements before the one that contains a line."""
    count = sum(1 for each in statements if (each.end_lineno or each.lineno) < line)
    return min(count, len(statements) - 1)


def is_guard(statement: ast.stmt) -> bool:
    """Return whether a statement is an ``if __name__ == "__main__":``."""
    if not isinstance(statement, ast.If):
        return False
    for each in ast.walk(statement.test):
        if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.Eq):
            sides = {ast.unparse(side) for side in (each.left, *each.comparators)}
            if sides == {"__name__", "'__main__'"}:
                return True
    return False


def _is_as_loaded(file: str, statements: list[ast.stmt]) -> bool:
    """Return whether the script's functions are still at the lines loaded."""
    lines: dict[str, set[int]] = {}  # a name may be defined more than once
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            lines.setdefault(node.name, set()).add(first)
    variables = vars(sys.modules[MAIN])
    for name, expected in lines.items():
        code = getattr(variables.get(name), "__code__", None)
        if (
            isinstance(code, CodeType)
            and (code.co_filename, code.co_name) == (file, name)
            and code.co_firstlineno not in expected
        ):
            return False
    return True


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_maker(statement: ast.Assign | ast.AnnAssign) -> bool:
    value = statement.value
    if not isinstance(value, ast.Call):
        return False
    function = value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _MAKERS


def _is_type_alias(statement: ast.Assign | ast.AnnAssign) -> bool:
    """Return whether a statement names a type, such as ``Vector = list[float]``."""
    value = statement.value
    if value is None or not all(isinstance(each, _TYPE_NODES) for each in ast.walk(value)):
        return False
    variables = vars(sys.modules[MAIN])
    values = [variables.get(name) for name in bound_names([statement])]
    if not values:  # it sets an attribute or an item
        return False
    return all(isinstance(each, type) or get_origin(each) is not None for each in values)


_TYPE_NODES = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context),
    *(ast.Tuple, ast.List, ast.BinOp, ast.BitOr),
)
"""Nodes of an expression that names a type."""


def _is_setting(statement: ast.stmt) -> bool:
    """Return whether a statement changes the behavior of a module or class."""
    if isinstance(statement, ast.Assign):
        is_computed = any(isinstance(each, ast.Call) for each in ast.walk(statement.value))
        return not is_computed and all(
            isinstance(each, ast.Attribute)
            or (isinstance(each, ast.Subscript) and isinstance(each.value, ast.Attribute))
            for each in statement.targets
        )
    function = _called(statement)
    return function is not None and (
        function.attr.startswith(_SETTERS) or ast.unparse(function) == "copyreg.pickle"
    )


def _names_of(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _is_seed(statement: ast.stmt) -> bool:
    """Return whether a statement seeds random numbers, which all jobs would share."""
    function = _called(statement)
    return function is not None and function.attr.endswith("seed")


def _called(statement: ast.stmt) -> ast.Attribute | None:
    """Return the attribute that a statement calls, if it does nothing else."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    return function if isinstance(function, ast.Attribute) else None


def _names_in(statement: ast.stmt) -> set[str]:
    """Return the names that a statement reads when it runs, except in lambdas."""
    lambdas = [each for each in ast.walk(statement) if isinstance(each, ast.Lambda)]
    later = {id(inner) for each in lambdas for inner in ast.walk(each.body)}
    return {
        each.id
        for each in ast.walk(statement)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and id(each) not in later
    }


def _needs(statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    """Return the names that a definition reads when it runs, except in its functions."""
    names_read: set[str] = set()
    bound: set[str] = {statement.name}
    left: list[ast.AST] = [statement]
    while left:
        each = left.pop()
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            names_read.add(each.id)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            left += [*each.args.defaults, *filter(None, each.args.kw_defaults)]
            if not isinstance(each, ast.Lambda):
                bound.add(each.name)
                left += each.decorator_list
            continue
        if isinstance(each, ast.ClassDef):
            bound |= bound_names(each.body) | {each.name}
        if isinstance(each, ast.comprehension):
            bound |= bound_names([each.target])
        if isinstance(each, ast.AnnAssign):  # an annotation that fails leaves the class undefined
            left += [part for part in (each.target, each.value) if part is not None]
            continue
        left += ast.iter_child_nodes(each)
    return names_read - bound
