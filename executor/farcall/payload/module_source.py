"""Reading of a module's source: the variables that it binds, and what changes them."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from farcall.payload.script import is_guard
from farcall_runtime.sources import bound_names

IMPORT = ""
"""Place of changes that an import makes."""

PROGRAM = "<program>"
"""Place of changes by the script's own statements: the guard's block, or all without a guard."""

_CHANGERS = {
    *("append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem"),
    *("remove", "discard", "clear", "add", "update", "setdefault", "sort", "reverse"),
    *("difference_update", "intersection_update", "symmetric_difference_update"),
}
"""Methods that change a container."""

_DYNAMIC = {"globals", "vars", "locals", "exec", "eval", "setattr"}
"""Functions that may bind names that the source does not contain."""

_OF_MACHINE = {
    *("os", "sys", "socket", "platform", "tempfile", "time", "datetime", "uuid", "random"),
    *("secrets", "getpass", "subprocess", "multiprocessing", "threading", "psutil", "torch"),
}
"""Modules whose values differ between machines, processes or runs."""

ANY = "*"
"""Stands for the names that a dynamic assignment binds."""

Places: TypeAlias = "dict[str, set[str]]"
"""By dotted name or attribute, the functions that change it."""


@dataclass(eq=False)
class Source:
    """What a module's source says about variables.

    Variables are named ``NAME`` or ``Class.NAME``.

    Attributes:
        module: The module's name.
        literals: Values of the variables that are bound once, to a literal.
        bound: The variables that the import binds.
        is_complete: Whether ``bound`` contains all variables of the module.
        imports: Imported dotted name by local name.
        origins: Names in the expression that a variable is bound to.
        changes: Changes of modules' variables and of their contents.
        attributes: Changes of attributes of unknown objects.
        uses: Names that each function reads; for the import, the names that it calls. Special
            methods are used by their class, and named ``Class.__init__``.
        callbacks: Methods and decorated functions, which libraries may call.
    """

    module: str
    literals: dict[str, Any] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    is_complete: bool = True
    imports: dict[str, str] = field(default_factory=dict)
    origins: dict[str, set[str]] = field(default_factory=dict)
    changes: Places = field(default_factory=dict)
    attributes: Places = field(default_factory=dict)
    uses: Places = field(default_factory=dict)
    callbacks: set[str] = field(default_factory=set)

    def is_of_machine(self, name: str) -> bool:
        """Return whether the import computes a variable from what the machine says."""
        roots = {each.partition(".")[0] for each in self.origins.get(name, ())}
        modules = {self.imports.get(each, "").partition(".")[0] for each in roots}
        return not _OF_MACHINE.isdisjoint(modules.union(*(self.uses.get(n, ()) for n in roots)))


def read(module: ModuleType) -> Source | None:
    """Return what a module's source says; None if there is no source."""
    package = str(module.__package__ or "")
    loader = getattr(module.__spec__, "loader", None)
    return _read(module.__name__, package, str(module.__file__), loader)


@functools.lru_cache(4096)
def _read(name: str, package: str, file: str, loader: Any) -> Source | None:
    """Read a module's source once; a module that is loaded again has another loader."""
    try:
        source = Path(file).read_bytes() if Path(file).exists() else loader.get_source(name)
        statements = ast.parse(source).body
    except Exception:  # no source, and a loader may raise anything
        return None
    return read_statements(name, package, tuple(statements))


@functools.lru_cache(64)
def read_statements(
    name: str, package: str, statements: tuple[ast.stmt, ...], is_program: bool = False
) -> Source:
    """Return what statements of a module say.

    Args:
        name: The module's name.
        package: Its package.
        statements: The top-level statements.
        is_program: Whether they are a script without a guard, or cells of a notebook.
    """
    source = Source(name)
    _Scope(source, "").add(statements)
    reader = _Reader(source, package, PROGRAM if is_program else IMPORT)
    for each in statements:
        reader.visit(each)
    reader.finish()
    return source


class _Scope:
    """Variables that the statements of a module or class bind."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._prefix = f"{name}." if name else ""
        self._name = name
        self._times: Counter[str] = Counter()

    def add(self, statements: Iterable[ast.stmt]) -> None:
        """Add the variables that statements bind, and the classes' attributes."""
        values: dict[str, ast.expr] = {}
        for each in statements:
            if not self._name and is_guard(each):
                continue
            names = bound_names([each])
            self._times.update(names)
            values.update(_values(each))
            if isinstance(each, ast.ClassDef) and not self._name:
                _Scope(self._source, each.name).add(each.body)
        self._source.bound.update(f"{self._prefix}{name}" for name in self._times)
        self._source.is_complete = self._source.is_complete and "*" not in self._times
        for name, value in values.items():
            if self._times[name] == 1:
                self._add_value(f"{self._prefix}{name}", value)

    def _add_value(self, name: str, value: ast.expr) -> None:
        literal = _literal(value)
        if literal is not NO_LITERAL:
            self._source.literals[name] = literal
        else:
            paths = map(_dotted, ast.walk(value))
            self._source.origins[name] = {each for each in paths if each}


def _values(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement assigns to, and their expressions."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return
    value = statement.value
    for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
        if isinstance(target, ast.Name) and value is not None:
            yield target.id, value
        elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            pairs = zip(target.elts, value.elts, strict=False)
            yield from ((each.id, part) for each, part in pairs if isinstance(each, ast.Name))


NO_LITERAL = object()
"""Represents an expression that is not a literal."""

_LITERAL_NODES = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.expr_context),
    *(ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
)
_EMPTY = {"dict": dict, "list": list, "set": set, "tuple": tuple}


def _literal(value: ast.expr) -> Any:
    """Return the value of constants, and of containers and arithmetic of them."""
    if isinstance(value, ast.Constant):
        return value.value
    if isinstance(value, ast.Call) and not (value.args or value.keywords):
        make = _EMPTY.get(value.func.id) if isinstance(value.func, ast.Name) else None
        return NO_LITERAL if make is None else make()
    with contextlib.suppress(Exception):  # it is none, or arithmetic
        return ast.literal_eval(value)
    if not all(isinstance(each, _LITERAL_NODES) for each in ast.walk(value)):
        return NO_LITERAL
    try:
        code = compile(ast.Expression(value), "", "eval")
        return eval(code, {"__builtins__": {}})  # noqa: S307  # constants of the user's module
    except Exception:  # such as a division by zero
        return NO_LITERAL


def _last(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty if there is none."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _dotted(node: ast.AST) -> str:
    """Return a dotted name; subscripts are left out. Empty if it has no name at its root."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([node.id, *reversed(parts)])
    return ".".join(["", *reversed(parts)]) if parts else ""


_LEAVES = (ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)


class _Reader(ast.NodeVisitor):
    """Visitor that collects imports, changes and uses in a source."""

    def generic_visit(self, node: ast.AST) -> None:
        """Visit the parts of a node; in half the time of the base class."""
        for name in node._fields:
            part = getattr(node, name, None)
            for each in part if type(part) is list else (part,):
                if isinstance(each, ast.AST) and not isinstance(each, _LEAVES):
                    self.visit(each)

    def __init__(self, source: Source, package: str, place: str) -> None:
        self._source = source
        self._package = package
        self._place = place
        self._class = ""
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self._globals: set[str] = set()
        self._changes: list[tuple[str, str, str, bool]] = []

    def finish(self) -> None:
        """Resolve the changes' names, when all imports are known."""
        for name, place, owner, is_local in self._changes:
            root, _, rest = name.partition(".")
            path = self._source.imports.get(root, "")
            if root in ("self", "cls") and owner and is_local:
                path = f"{self._source.module}.{owner}"
            elif not path and root and not is_local:
                path = f"{self._source.module}.{root}"
            if path and not path.startswith("sys.modules"):
                self._note(self._source.changes, f"{path}.{rest}".rstrip("."), place)
            else:
                for part in filter(None, rest.split(".")):
                    self._note(self._source.attributes, part, place)

    @staticmethod
    def _note(places: Places, name: str, place: str) -> None:
        places.setdefault(name, set()).add(place)

    def _change(self, name: str) -> None:
        """Record the change of a dotted name."""
        root = name.partition(".")[0]
        is_local = root not in self._globals and self._is_local(root)
        self._changes.append((name, self._place, self._class, is_local))

    def _is_local(self, name: str) -> bool:
        """Return whether a name is not the module's variable."""
        if name not in self._source.bound and name not in ("self", "cls"):
            return True
        return any(name in _locals_of(each) for each in self._functions)

    def _use(self, name: str) -> None:
        if name:
            self._note(self._source.uses, self._place, name)

    # Definitions

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visit a function; what it changes depends on who calls it."""
        for each in node.decorator_list:
            self._call(each)
            self.visit(each)
        self.visit(node.args)
        outer = self._place, self._globals
        if self._place in (IMPORT, PROGRAM):
            self._enter(node)
        self._globals = set()
        self._functions.append(node)
        for statement in node.body:
            self.visit(statement)
        self._functions.pop()
        self._place, self._globals = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Make an outermost function or method the place of changes and uses."""
        self._place = node.name
        if self._class and node.name.startswith("__"):
            self._place = f"{self._class}.{node.name}"
            self._note(self._source.uses, self._class, self._place)
        self._source.uses.setdefault(self._place, set())
        if self._class or node.decorator_list:
            self._source.callbacks.add(self._place)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit a class, whose body runs where it is defined."""
        outer = self._class
        self._class = node.name
        for each in (*node.decorator_list, *(each.value for each in node.keywords)):
            self._call(each)
        self.generic_visit(node)
        self._class = outer

    def visit_Global(self, node: ast.Global) -> None:
        """Record the global variables that a function assigns to."""
        self._globals.update(node.names)

    def visit_If(self, node: ast.If) -> None:
        """Visit a condition; the guard's block is the program's."""
        if self._place != IMPORT or not is_guard(node):
            self.generic_visit(node)
            return
        self._place = PROGRAM
        for each in node.body:
            self.visit(each)
        self._place = IMPORT

    # Imports

    def visit_Import(self, node: ast.Import) -> None:
        """Record the imported modules."""
        for each in node.names:
            top = each.name.partition(".")[0]
            self._source.imports[each.asname or top] = each.name if each.asname else top

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Record the imported names."""
        name = f"{'.' * node.level}{node.module or ''}"
        try:
            module = importlib.util.resolve_name(name, self._package)
        except ImportError:  # outside its package
            return
        for each in node.names:
            local = each.asname or each.name
            self._source.imports[local] = f"{module}.{each.name}"
            self._source.origins.setdefault(local, {local})

    # Changes and uses

    def visit_Name(self, node: ast.Name) -> None:
        """Record a use, or the assignment of a global variable."""
        if isinstance(node.ctx, ast.Load):
            if self._place != IMPORT:
                self._use(node.id)
        elif node.id in self._globals or (self._place == PROGRAM and not self._class):
            self._change(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Record a use, or the assignment of an attribute."""
        if isinstance(node.ctx, ast.Load):
            if self._place != IMPORT:
                self._use(node.attr)
        elif _last(node.value) != "self":  # an instance's own attribute
            self._change(_dotted(node))
        self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Record the assignment of an item."""
        if not isinstance(node.ctx, ast.Load):
            self._change_contents(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Record calls that change something."""
        self._call(node.func)
        name = _last(node.func)
        if self._place == IMPORT and name in _DYNAMIC:
            self._source.is_complete = False
        if isinstance(node.func, ast.Attribute) and name in _CHANGERS:
            self._change_contents(node.func.value)
        elif name in ("setattr", "delattr") and len(node.args) > 1:
            target, attribute = node.args[:2]
            known = getattr(attribute, "value", None)
            self._change(f"{_dotted(target)}.{known if isinstance(known, str) else ANY}")
        self.generic_visit(node)

    def _call(self, function: ast.expr) -> None:
        """Record what the import calls; of other places, `visit_Name` records all names."""
        if self._place == IMPORT:
            self._use(_last(function.func if isinstance(function, ast.Call) else function))

    def _change_contents(self, container: ast.expr) -> None:
        """Record the change of a container, such as ``globals()``, ``vars(x)`` or ``x``."""
        if isinstance(container, ast.Call):
            function = _last(container.func)
            if function == "globals":
                self._changes.append((ANY, self._place, "", False))
            elif function == "vars" and container.args:
                self._change(f"{_dotted(container.args[0])}.{ANY}")
            return
        name = _dotted(container)
        if name.endswith(".__dict__"):
            name = f"{name.removesuffix('__dict__')}{ANY}"
        known = self._globals.union(self._source.imports)
        if "." in name or name in known or not self._is_local(name):
            self._change(name)


@functools.lru_cache(16)
def _locals_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that are local in a function."""
    own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    return own | bound_names(function.body)
