"""Caller's project in a job: its files, modules, and values of variables.

A task's pickle calls `enter` before it names any function or class: `enter` unpacks the archive of
the project's files, puts their folders first on the import path, runs the caller's script without
its ``if __name__ == "__main__"`` block, and imports the modules that the caller had imported. From
then on a pickle can name their contents. `prepared` then sets the variables whose values differ
from the values after the imports, and returns the function.

The pickle, including the archive, is verified before it is read.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import operator
import os
import struct
import sys
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, NoReturn

from farcall_runtime.contract import ENV_PROJECTS
from farcall_runtime.envelope import Buffer

MAIN = "__main__"
MARKER = "farcall-sources:"
"""Prefix of paths in a job's traceback, before the digest and the archive's path."""

DIGEST_LENGTH = 16
"""Number of hexadecimal digits of the archive's digest in such a path."""

_MOST_COPY_BYTES = 64 * 1024
"""Maximum size of a definition's copy; a larger one would outweigh most results."""

_HEAD = struct.Struct(">I")
_LEVEL = 1

folder = ""
"""Folder for the unpacked project, to be created; the supervisor removes it."""

home = ""
"""Folder of the unpacked project; empty before `enter`."""

digest = ""
"""First digits of the archive's digest; empty before `enter`."""

_roots: dict[str, str] = {}
"""The caller's folders by place, if texts show them; otherwise the caller replaces markers."""

making = ""
"""File of the script while `enter` runs it; empty otherwise."""

_main_constants: set[str] = set()
"""Names that the script binds once."""

OWN_NAMES = {
    *("__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__cached__"),
    "__builtins__",
}
"""Variables that Python sets in each module; a job's modules have their own."""

_main = ""
"""``whole`` or ``part`` once `enter` has run the script; empty otherwise."""


class NoRoomError(Exception):
    """The job's disk has no space for the project's files."""


# --- archive ------------------------------------------------------------------------------------


FILE, PROGRAM, FOLDER, LINK = "f", "x", "d", "l"
"""Kinds of entries: a file, an executable file, an empty folder, and a symbolic link."""


class Entry(NamedTuple):
    """An entry of the archive.

    Attributes:
        name: Path in the archive, with slashes.
        data: Content of a file, or relative target of a link.
        kind: One of the kinds.
    """

    name: str
    data: bytes = b""
    kind: str = FILE


def pack(entries: Iterable[Entry]) -> bytes:
    """Pack entries into an archive: names, sizes and kinds as JSON, then the deflated contents."""
    listed = sorted(entries)
    table = json.dumps([[each.name, len(each.data), each.kind] for each in listed]).encode()
    contents = (each.data for each in listed)
    return zlib.compress(b"".join((_HEAD.pack(len(table)), table, *contents)), _LEVEL)


def _unpack(archive: Buffer, target: str) -> None:
    data = memoryview(zlib.decompress(archive))
    (length,) = _HEAD.unpack_from(data)
    at = _HEAD.size + length
    os.mkdir(target, 0o700)  # noqa: PTH102  # pathlib would cost each task 10 ms
    made = {""}
    links = []
    for name, size, kind in json.loads(bytes(data[_HEAD.size : at])):
        if {"", ".", ".."}.intersection(name.split("/")) or "\0" in name:
            raise ValueError(f"the project's archive has a file with the invalid name {name!r}")
        parent = name if kind == FOLDER else name.rpartition("/")[0]
        if parent not in made:
            os.makedirs(f"{target}/{parent}", exist_ok=True)  # noqa: PTH103
            made.add(parent)
        content = data[at : at + size]
        at += size
        if kind == LINK:
            links.append((name, _checked(name, os.fsdecode(bytes(content)))))
        elif kind != FOLDER:
            _write(f"{target}/{name}", content, 0o777 if kind == PROGRAM else 0o666)
    for name, aim in links:  # last, so that nothing is written through a link
        os.symlink(aim, f"{target}/{name}")  # noqa: PTH211


def _write(path: str, content: Buffer, mode: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)


def _checked(name: str, aim: str) -> str:
    """Return a link's target if it is in the archive.

    ``..`` is valid only at its beginning: behind another link, it could leave the archive.
    """
    parts = aim.split("/")
    while parts and parts[0] == "..":
        del parts[0]
    ups = len(aim.split("/")) - len(parts)
    is_plain = parts == ["."] or {"", ".", ".."}.isdisjoint(parts)
    if ups > name.count("/") or not is_plain or "\0" in aim:
        raise ValueError(f"the project's archive has a link with the invalid target {aim!r}")
    return aim


def new_folder(environment: Mapping[str, str]) -> str:
    """Return an unused path for `folder`."""
    own = environment.get(ENV_PROJECTS, ""), environment.get("TMPDIR", "")
    places = (*own, "/tmp")  # noqa: S108  # its name is not to be guessed
    place = next((each for each in places if each and os.access(each, os.W_OK)), "/tmp")  # noqa: S108
    return f"{place.rstrip('/')}/farcall-sources-{os.urandom(12).hex()}"


def remove(path: str) -> None:
    """Remove the folder of an unpacked project, if there is one."""
    if os.path.isdir(path):  # noqa: PTH112
        import shutil

        shutil.rmtree(path, ignore_errors=True)


# --- entering the project -----------------------------------------------------------------------


def enter(archive: Buffer, plan: Mapping[str, Any]) -> None:
    """Unpack the caller's project, and load its script and modules; once per process.

    Args:
        archive: Result of `pack`.
        plan: ``digest``; ``path``, the folders for the import path; ``names``, the modules that
            must come from them; ``cwd``, ``main`` and ``imports``; and ``roots``, the caller's
            folders by place, if the reader of the job's texts does not know them.

    Raises:
        NoRoomError: The disk is full.
        OSError: A file could not be written for another reason.
    """
    global home, digest
    if home:
        return
    target = folder or new_folder(os.environ)
    try:
        _unpack(archive, target)
    except OSError as error:
        from farcall_runtime.unpacking import NO_ROOM

        if error.errno not in NO_ROOM:
            raise
        place = os.path.dirname(target)  # noqa: PTH120
        raise NoRoomError(f"{place} has no space for the project's files") from None
    home, digest = target, plan["digest"]
    _roots.update(plan.get("roots", {}))
    sys.path[:0] = [in_project(place) for place in plan["path"]]
    sys.meta_path.append(_ClientFinder)
    if _roots:  # an electron
        from farcall_runtime.no_client import CovalentFinder

        sys.meta_path.insert(0, CovalentFinder)
    _forget(plan["names"])
    importlib.invalidate_caches()
    if plan["cwd"] is not None:
        os.makedirs(in_project(plan["cwd"]), exist_ok=True)  # noqa: PTH103
        os.chdir(in_project(plan["cwd"]))
    if plan["main"] is not None:
        _make_main(**plan["main"])
    for name, place in plan["imports"]:
        with contextlib.suppress(Exception, SystemExit):  # raised again if the function needs it
            _load(name, place)
    from farcall_runtime import pickles

    pickles.job_rules = _JobRules()


class _ClientFinder:
    """Import hook that finds `no_client` if the job has no client."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Any:
        if name.partition(".")[0] not in ("farcall", "covalent"):
            return None
        from farcall_runtime import no_client

        return no_client.find_spec(name, path, target)


def in_project(place: str, rest: str = "") -> str:
    """Return the path in the job for a place in the archive; `place` may be empty."""
    return os.path.join(home, place) + rest  # noqa: PTH118


def _forget(names: Iterable[str]) -> None:
    """Unload standard library modules whose names the project uses for its own."""
    for name in names:
        for each in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
            if not is_in_project(getattr(sys.modules[each], "__file__", None) or ""):
                del sys.modules[each]


def _load(name: str, place: str) -> None:
    """Import a module from the import path, or from the caller's file."""
    if not place:
        importlib.import_module(name)
        return
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, in_project(place))
    if name not in sys.modules and spec is not None and spec.loader is not None:
        sys.modules[name] = module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise


# --- script -------------------------------------------------------------------------------------


class _PartialScript(ModuleType):
    """Script of which the job runs only a part.

    `multiprocessing` starts processes with the module's file attribute: they would run all of it.
    """

    @property
    def __file__(self) -> str:  # type: ignore[override]
        raise AttributeError("__file__")


def _make_main(
    argv: list[str],
    file: str,
    is_folder: bool,
    name: str,
    parts: list[tuple[str, str, list[int]]],
    is_whole: bool,
) -> None:
    """Run statements of the caller's script or notebook as the module ``__main__``.

    Args:
        argv: Command line arguments, without the script.
        file: The script's path in the archive; empty for a notebook.
        is_folder: Whether the script was run as its folder or zip archive.
        name: Name of the module that was run with ``-m``; empty for a script.
        parts: Path of a file, or name of a cell and its source; with the numbers of the
            statements.
        is_whole: Whether another process may run the script.
    """
    global _main, making
    from importlib.machinery import ModuleSpec, SourceFileLoader

    module = ModuleType(MAIN) if is_whole else _PartialScript(MAIN)
    variables = vars(module)
    variables["__builtins__"] = __builtins__
    if file:
        path = in_project(file)
        loader = _zip_of(path) or SourceFileLoader(MAIN, path)
        spec = ModuleSpec(name, loader, origin=path) if name else None
        package = name.rpartition(".")[0] if name else None
        variables.update(
            __file__=path, __loader__=loader, __package__=package, __spec__=spec, __cached__=None
        )
        program = os.path.dirname(path) if is_folder else path  # noqa: PTH120
        sys.argv[:] = [program, *argv]
    sys.modules[MAIN] = module
    _main = "whole" if is_whole else "part"
    for place, source, numbers in parts:
        making = place if source else in_project(place)
        try:
            _run(making, source, numbers, variables)
        finally:
            making = ""


def _run(path: str, source: str, numbers: Iterable[int], variables: dict[str, Any]) -> None:
    """Run a script's statements; bind the names of failed statements to `Missing`.

    At its top, a script may read data that only the caller's machine has, and that the function
    does not need. The function fails only if it uses the names that were not bound.
    """
    import ast

    data: str | bytes = source
    if source:
        import linecache

        linecache.cache[path] = len(source), None, source.splitlines(keepends=True), path
    else:
        data = source_of(path)
    tree = ast.parse(data, path)
    if not source:
        variables["__doc__"] = ast.get_docstring(tree, clean=False)
    flags = _future_flags(tree.body)
    statements = [tree.body[number] for number in numbers]
    _main_constants.update(constant_names(statements))
    for statement in statements:
        code = compile(ast.Module([statement], []), path, "exec", flags=flags, dont_inherit=True)
        try:
            exec(code, variables)  # noqa: S102  # the caller's script
        except SystemExit:
            break
        except Exception as error:
            names = bound_names([statement])
            for name in names:
                variables.setdefault(name, Missing(name, statement.lineno, error))
            if not names:
                _report(path, statement.lineno, error)


def source_of(path: str) -> bytes:
    """Return the content of a module's file, which may be in a zip archive.

    Raises:
        OSError: There is no such file.
    """
    archive = _zip_of(path)
    if archive is not None:
        return bytes(archive.get_data(path))
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


def _zip_of(path: str) -> Any:
    """Return the importer of the zip archive that contains a file; None for a plain file."""
    if os.path.exists(path):  # noqa: PTH110
        return None
    from pkgutil import get_importer
    from zipimport import zipimporter

    importer = get_importer(os.path.dirname(path))  # noqa: PTH120
    return importer if isinstance(importer, zipimporter) else None


def _report(path: str, line: int, error: BaseException) -> None:
    """Write to the task's stderr that a statement of the script failed."""
    from farcall_runtime import failures

    place = f"line {line} of {os.path.basename(path)}"  # noqa: PTH119
    print(f"farcall: {place} failed in the job: {failures.in_words(error)}", file=sys.stderr)  # noqa: T201


def _future_flags(statements: Iterable[Any]) -> int:
    """Return the compiler flags for imports from ``__future__``."""
    import __future__

    import ast

    flags = 0
    for each in statements:
        if isinstance(each, ast.ImportFrom) and each.module == "__future__":
            for name in each.names:
                flags |= getattr(__future__, name.name).compiler_flag
    return flags


def bound_names(statements: Iterable[Any]) -> set[str]:
    """Return the names that statements bind in their scope; ``*`` for a star import."""
    import ast

    names: set[str] = set()
    left = list(statements)
    while left:
        each = left.pop()
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(each.name)
            continue
        if isinstance(each, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp)):
            continue
        if isinstance(each, ast.GeneratorExp):
            continue
        if isinstance(each, (ast.Import, ast.ImportFrom)):
            names |= {n.asname or n.name.partition(".")[0] for n in each.names}
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
        elif isinstance(getattr(each, "name", None), str):  # name in an except clause or a pattern
            names.add(each.name)
        left += ast.iter_child_nodes(each)
    return names


def _fails(self: Missing, *_: Any, **__: Any) -> NoReturn:
    raise object.__getattribute__(self, "_cause")


class Missing:
    """Placeholder for a name whose statement failed in the job; any use raises."""

    def __init__(self, name: str, line: int, error: BaseException) -> None:
        stack = error.__traceback__
        while stack is not None and stack.tb_frame.f_globals is globals():
            stack = stack.tb_next
        object.__setattr__(self, "_cause", error.with_traceback(stack))
        object.__setattr__(self, "_place", (name, line))

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__dict__"):
            return object.__getattribute__(self, name)
        return _fails(self)

    __iter__ = __len__ = __getitem__ = __contains__ = __enter__ = __bool__ = __eq__ = _fails
    __setattr__ = __setitem__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = _fails
    __rsub__ = __truediv__ = __rtruediv__ = __lt__ = __le__ = __gt__ = __ge__ = _fails
    __int__ = __float__ = __index__ = __str__ = __repr__ = __matmul__ = __reduce_ex__ = _fails
    __call__ = _fails
    __hash__ = None  # type: ignore[assignment]


# --- variables ----------------------------------------------------------------------------------


def prepared(
    _entered: None, values: Mapping[str, Mapping[str, Any]], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Set variables of the project's modules, and return the function.

    Args:
        values: Values by module and name, or ``Class.attribute``.
        function: The task's function.
    """
    for module, each in values.items():
        if module in sys.modules:
            for name, value in each.items():
                _set(sys.modules[module], name, value)
    return function


def _set(module: ModuleType, name: str, value: Any) -> None:
    owner, _, attribute = name.rpartition(".")
    kind = vars(module).get(owner)
    now = vars(kind).get(attribute) if isinstance(kind, type) else vars(module).get(name)
    if _set_in_place(now, value):
        return
    if not owner:
        vars(module)[name] = value
    elif isinstance(kind, type):
        type.__setattr__(kind, attribute, value)


def _set_in_place(now: Any, value: Any) -> bool:
    """Make an object that others may refer to equal to a value; return whether that succeeded."""
    if now is value:
        return True
    if type(now) is not type(value):
        return False
    if isinstance(value, list):
        now[:] = value
    elif isinstance(value, (dict, set)):
        now.clear()
        now.update(value)
    elif isinstance(value, types.SimpleNamespace) or _is_record(value):
        vars(now).clear()
        vars(now).update(vars(value))
    else:
        return False
    return True


def _is_record(value: Any) -> bool:
    return hasattr(value, "__dict__") and has_only_attributes(type(value))


# --- pickling by name or by value ---------------------------------------------------------------


def global_of(module: str, name: str) -> Any:
    """Return a module's attribute."""
    value: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def main_global(name: str, copy: bytes | None) -> Any:
    """Return the script's variable; a process with another script reads the copy."""
    return _global_or_copy(MAIN, name, copy, AttributeError)


def module_global(module: str, name: str, copy: bytes | None) -> Any:
    """Return a module's definition; a process without the project reads the copy."""
    return _global_or_copy(module, name, copy, ModuleNotFoundError)


def _global_or_copy(module: str, name: str, copy: bytes | None, lack: type[Exception]) -> Any:
    try:
        return global_of(module, name)
    except lack:
        if copy is None:
            raise
    import pickle

    return pickle.loads(copy)  # noqa: S301  # part of a pickle that is being read


def own_class(module: str | None, qualname: str) -> type | None:
    """Return the project's class of a name in this job; None if there is none."""
    if not home or not module or "<locals>" in qualname:
        return None
    try:
        if module != MAIN and not is_in_project(sys.modules[module].__file__ or ""):
            return None
        value = global_of(module, qualname)
    except (AttributeError, KeyError):
        return None
    return value if isinstance(value, type) else None


def file_at(_digest: str, place: str) -> str:
    """Return the path of a project file, in the job or on the submitting machine."""
    return in_project(place)


def text_here(text: str) -> str:
    """Return a text of `hidden` with valid paths in the job or the submitting machine."""
    return text.replace(f"{MARKER}{digest}/", f"{home}/")


def is_in_project(path: str) -> bool:
    """Return whether a path is in the job's copy of the project."""
    return bool(home) and path.startswith(f"{home}/")


def reference_to(path: str) -> tuple[Callable[..., str], str, str]:
    """Return the call that returns such a path on the submitting machine."""
    return file_at, digest, path[len(home) + 1 :]


def variables_of(module: str) -> dict[str, Any]:
    """Return a module's variables for a function that is pickled by value."""
    return vars(sys.modules.get(module) or importlib.import_module(module))


def make_module(name: str) -> ModuleType:
    """Return an empty module for a module that is pickled by value."""
    return ModuleType(name)


def fill_module(module: ModuleType, variables: dict[str, Any]) -> None:
    """Set the variables of such a module."""
    vars(module).update(variables, __builtins__=__builtins__)


class Reference:
    """Placeholder in a pickle for the result of a call at unpickling."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._recipe = function, args

    def __reduce__(self) -> Any:
        return self._recipe


class Rules:
    """Rules for pickling definitions: by name if the reader can import them."""

    def is_by_name(self, module: str) -> bool:
        """Return whether the reader of the pickle has the module."""
        raise NotImplementedError

    def is_by_value(self, module: str) -> bool:
        """Return whether the reader lacks a module that cloudpickle considers importable."""
        raise NotImplementedError

    def is_made(self, module: str, name: str) -> bool:
        """Return whether importing the module binds a name."""
        raise NotImplementedError

    def is_constant(self, module: str, name: str) -> bool:
        """Return whether a name keeps the object that importing the module binds to it."""
        raise NotImplementedError

    def sentinel(self, value: Any) -> tuple[str, str] | None:
        """Return module and name of an object that is compared by identity, or None."""
        raise NotImplementedError

    def is_known_by_identity(self, value: Any) -> bool:
        """Return whether an object may be a `sentinel`: it has no state, or no module."""
        kind = type(value)
        if isinstance(value, type):
            return _is_homeless(value)
        return kind is object or (self.is_by_name(kind.__module__) and is_stateless(value))

    def file_of(self, path: str) -> Any:
        """Return the representation of a code object's file in a pickle."""
        raise NotImplementedError

    def named(self, module: str, name: str) -> Any:
        """Return the recipe for a definition that is pickled by name."""
        raise NotImplementedError

    def reduce(self, pickler: Any, value: Any) -> Any:
        """Return the recipe for a value; None to leave it to cloudpickle."""
        kind = type(value)
        if kind is FunctionType or issubclass(kind, type):
            return _parametrized(value) or self._definition(pickler, value)
        if kind is ModuleType and self.is_by_value(value.__name__):
            variables = {n: v for n, v in vars(value).items() if n != "__builtins__"}
            return make_module, (value.__name__,), variables, None, None, fill_module
        place = self.sentinel(value)
        return None if place is None else (global_of, place)

    def is_importable(self, value: Any) -> bool:
        """Return whether a process that imports the same modules has a function or class."""
        module = getattr(value, "__module__", None)
        if not isinstance(module, str) or not self.is_by_name(module):
            return False
        if module == MAIN and _main != "whole":
            return False
        return module in sys.modules and _has(sys.modules[module], _name_of(value), value)

    def _definition(self, pickler: Any, value: Any) -> Any:
        from cloudpickle import cloudpickle as internals

        module = getattr(value, "__module__", None)
        if not isinstance(module, str):
            return None
        if self.is_by_value(module):
            return _by_value(pickler, value)
        home_module = sys.modules.get(module)
        if home_module is None or not self.is_by_name(module):
            place = self.sentinel(value)
            return None if place is None else (global_of, place)
        if internals._is_registered_pickle_by_value(home_module):
            return None
        recipe = self._by_name(home_module, value)
        if recipe is not None:
            return recipe
        recipe = _by_value(pickler, value)
        is_function = type(value) is FunctionType and value.__globals__ is vars(home_module)
        return self._in_module(module, recipe) if is_function else recipe

    def _by_name(self, module: ModuleType, value: Any) -> Any:
        """Return the recipe for a definition that its module binds to a name, or None."""
        name = _name_of(value)
        if _has(module, name, value):
            is_made = self.is_made(module.__name__, name.partition(".")[0])
            return self.named(module.__name__, name) if is_made else None
        for alias, each in list(vars(module).items()):
            if each is value and self.is_constant(module.__name__, alias):
                return global_of, (module.__name__, alias)
        return None

    def _in_module(self, module: str, recipe: Any) -> Any:
        """Return a recipe for a function that uses the reader's variables of its module."""
        make, (code, _, *rest), (attributes, slots), *_, fill = recipe
        used = slots["__globals__"]
        slots = {
            **slots,
            "__globals__": {
                n: v for n, v in used.items() if n not in OWN_NAMES and not self.is_made(module, n)
            },
        }
        variables = Reference(variables_of, module)
        return make, (code, variables, *rest), (attributes, slots), None, None, fill


def _parametrized(value: Any) -> Any:
    """Return the recipe for a parametrized generic class of pydantic, such as ``Page[Item]``.

    Its name may be bound nowhere. Subscripting the generic class again returns the same class.
    """
    generic = vars(value).get("__pydantic_generic_metadata__")
    if not isinstance(generic, dict) or not (generic.get("origin") and generic.get("args")):
        return None
    return operator.getitem, (generic["origin"], tuple(generic["args"]))


def _by_value(pickler: Any, value: Any) -> Any:
    from cloudpickle import cloudpickle as internals

    if type(value) is FunctionType:
        return pickler._dynamic_function_reduce(value)
    return internals._dynamic_class_reduce(value)


def _name_of(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else ""


def _has(module: ModuleType, name: str, value: Any) -> bool:
    part_value: Any = module
    for part in name.split("."):
        try:
            part_value = getattr(part_value, part)
        except Exception:  # the module's own code
            return False
    return part_value is value


class _JobRules(Rules):
    """Rules in a job, whose caller has the project's modules and the script."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, str], bytes | None] = {}
        self._sentinels: dict[int, tuple[str, str]] | None = None
        self._constants: dict[str, set[str]] = {}

    def is_by_name(self, module: str) -> bool:
        if module == MAIN:
            return bool(_main)
        return is_in_project(getattr(sys.modules.get(module), "__file__", None) or "")

    def is_by_value(self, module: str) -> bool:
        return False

    def is_made(self, module: str, name: str) -> bool:
        return True

    def is_constant(self, module: str, name: str) -> bool:
        if module == MAIN:
            return name in _main_constants
        file = vars(sys.modules[module]).get("__file__")
        if file is None or not self.is_by_name(module):
            return False
        if file not in self._constants:
            self._constants[file] = constants_of(file)
        return name in self._constants[file]

    def sentinel(self, value: Any) -> tuple[str, str] | None:
        if not self.is_known_by_identity(value):
            return None
        if self._sentinels is None or id(value) not in self._sentinels:
            modules = [name for name in list(sys.modules) if self.is_by_name(name)]
            self._sentinels = dict(sentinels(modules, self))
        return self._sentinels.get(id(value))

    def file_of(self, path: str) -> Any:
        return Reference(*reference_to(path)) if is_in_project(path) else path

    def named(self, module: str, name: str) -> Any:
        if module == MAIN:
            return main_global, (name, self._copy(MAIN, name))
        if not _roots:
            return NotImplemented
        return module_global, (module, name, self._copy(module, name))

    def _copy(self, module: str, name: str) -> bytes | None:
        """Return a definition by value, for processes without the module; None for a large one."""
        key = module, name
        if key not in self._copies:
            self._copies[key] = None  # a class that refers to itself
            self._copies[key] = _dumped(global_of(module, name))
        return self._copies[key]


class _RulesOfCopies(_JobRules):
    """Rules for copies of definitions: the whole project is pickled by value."""

    def is_by_name(self, module: str) -> bool:
        return False

    def is_by_value(self, module: str) -> bool:
        return module != MAIN and super().is_by_name(module)

    def reduce(self, pickler: Any, value: Any) -> Any:
        is_definition = isinstance(value, (FunctionType, type, ModuleType))
        return super().reduce(pickler, value) if is_definition else None


def _dumped(value: Any) -> bytes | None:
    from farcall_runtime import pickles

    token = pickles.rules.set(_RulesOfCopies() if _roots else False)
    try:
        copy = pickles.dump_whole(value)
    except Exception:  # pickling runs the user's code
        return None
    finally:
        pickles.rules.reset(token)
    return copy if len(copy) <= _MOST_COPY_BYTES else None


def sentinels(modules: Iterable[str], rules: Rules) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield identity, module and name of each ``NAME = object()`` at module level.

    Stateless objects whose classes the modules define, and classes without a module, are included.
    """
    for module in modules:
        for name, value in list(vars(sys.modules[module]).items()):
            if rules.is_known_by_identity(value) and rules.is_constant(module, name):
                yield id(value), (module, name)


def _is_homeless(kind: type) -> bool:
    """Return whether `types.new_class` created a class without a module.

    `dataclasses.make_dataclass` does not before Python 3.12.
    """
    return kind.__module__ == "types" and getattr(types, kind.__name__, None) is not kind


def is_stateless(value: Any) -> bool:
    """Return whether an object has only its identity."""
    return not getattr(value, "__dict__", True) and has_only_attributes(type(value))


def has_only_attributes(kind: Any) -> bool:
    """Return whether the state of a class's objects is their ``__dict__``."""
    plain: Any = object
    return (
        kind.__reduce_ex__ is plain.__reduce_ex__
        and kind.__reduce__ is plain.__reduce__
        and all("__slots__" not in vars(each) for each in kind.__mro__)
        and kind.__new__ is plain.__new__
    )


def constant_names(statements: Iterable[Any]) -> set[str]:
    """Return the names that statements bind once, to the result of an expression."""
    import ast

    times: dict[str, int] = {}
    values: set[str] = set()
    for each in statements:
        names = bound_names([each])
        for name in names:
            times[name] = times.get(name, 0) + 1
        value = each.value if isinstance(each, (ast.Assign, ast.AnnAssign)) else None
        if value is not None and not isinstance(value, ast.Constant):
            values |= names
        for inner in ast.walk(each):
            if isinstance(inner, ast.Global):
                times.update(dict.fromkeys(inner.names, 2))
    return {name for name in values if times[name] == 1}


def constants_of(file: str) -> set[str]:
    """Return the constant names of a module's file; none if it cannot be read."""
    import ast

    try:
        return constant_names(ast.parse(source_of(file)).body)
    except (OSError, SyntaxError, ValueError):
        return set()


def hidden(text: str) -> str:
    """Return a text with the paths in the job's copy of the project replaced."""
    if not home or home not in text:
        return text
    for place in sorted(_roots, key=len, reverse=True):
        text = text.replace(f"{home}/{place}/", f"{_roots[place].rstrip('/')}/")
    return text.replace(f"{home}/", f"{MARKER}{digest}/")
