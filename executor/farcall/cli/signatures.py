"""Command-line parameters from a function's signature, typed by its annotations."""

from __future__ import annotations

import contextlib
import enum
import inspect
import re
import reprlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from click.core import ParameterSource
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import from_json

_NEGATIVE = re.compile(r"-\.?\d")
_MARK = "\0"  # process arguments cannot contain it
_SEVERAL = (list, set, frozenset, Sequence, Iterable, AbstractSet)


class Typed(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Parameter type that converts values according to an annotation.

    Texts that do not match the type are parsed as JSON: ``3`` is an int, ``2024-01-31`` a date,
    and ``{"a": 1}`` a dict, a dataclass or a model, depending on the annotation.

    Args:
        annotation: The type; ``inspect.Parameter.empty`` parses JSON if possible, otherwise text.
    """

    def __init__(self, annotation: Any) -> None:
        self._members = _members(annotation)
        self._adapter: TypeAdapter[Any] | None = None
        self.name = _name(annotation)
        if annotation in (inspect.Parameter.empty, Any, object):
            self.name = "JSON or text"
            return
        try:
            adapter = TypeAdapter(annotation)
            adapter.rebuild(raise_errors=True)  # otherwise done with the first value
        except (PydanticUserError, NameError):  # a class that pydantic cannot build or find
            self.name = "JSON"
            return
        self._adapter = adapter
        if _is_document(_bare(annotation)):
            self.name += " as JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert one value."""
        if not isinstance(value, str):
            return value
        text = value.removeprefix(_MARK)
        if self._adapter is None:
            return self._plain(text, param, ctx)
        try:
            return _read(self._adapter, text)
        except ValidationError as error:
            if text in self._members:
                return self._members[text]
            self.fail(f"{text!r} is not {self.name}: {_message(error)}", param, ctx)

    def _plain(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return from_json(text)
        except ValueError as error:
            if self.name != "JSON":
                return text
            self.fail(f"{text!r} is not valid JSON: {error}", param, ctx)


def _read(adapter: TypeAdapter[Any], text: str) -> Any:
    as_text, as_json = adapter.validate_strings, adapter.validate_json
    ways = (as_json, as_text) if text.lstrip()[:1] in ("{", "[") else (as_text, as_json)
    errors = {}
    for way in ways:
        try:
            return way(text)
        except ValidationError as error:
            errors[way] = error
    # If the text is JSON, the JSON error names the wrong part.
    raise errors[as_text] if _is_no_json(errors[as_json]) else errors[as_json]


def _is_no_json(error: ValidationError) -> bool:
    return any(problem["type"] == "json_invalid" for problem in error.errors())


def _message(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        place = ".".join(map(str, problem["loc"]))
        lines.append(f"{place}: {problem['msg']}" if place else problem["msg"])
    return "; ".join(dict.fromkeys(lines))


class Call(click.Command):
    """Function as a click command whose ``params`` are the function's.

    Args:
        name: The command's name in its help.
        function: The function.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._signature = _signature(function)
        self._doc = inspect.getdoc(function) or "It has no docstring."
        super().__init__(
            name,
            params=list(_params(self._signature)),
            context_settings={"help_option_names": ["--help", "-h"]},
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments, treating negative numbers as values instead of options."""
        return super().parse_args(ctx, [f"{_MARK}{a}" if _NEGATIVE.match(a) else a for a in args])

    def bind(self, args: Sequence[str], parent: click.Context) -> inspect.BoundArguments:
        """Parse a command line; the function's own defaults apply to missing values.

        Raises:
            click.UsageError: The command line does not match the function.
        """
        title = f"{parent.command_path} {self.name}"
        try:
            ctx = self.make_context(title, list(args))
        except click.NoSuchOption as error:
            if any(error.option_name in each.opts for each in parent.command.params):
                raise click.UsageError(
                    f"{error.option_name} is an option of {parent.command_path}, not of the "
                    f"function. Put it before {self.name}.",
                    ctx=parent,
                ) from None
            raise
        with ctx:
            given = {
                name: value
                for name, value in ctx.params.items()
                if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
            }
        return _bound(self._signature, given)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the docstring unchanged."""
        formatter.write_paragraph()
        for line in self._doc.splitlines():
            formatter.write(f"  {line}".rstrip() + "\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments and options with their types and the function's defaults."""
        arguments = [
            (p.make_metavar(ctx), p.type.name)
            for p in self.params
            if p.nargs and isinstance(p, click.Argument)
        ]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        super().format_options(ctx, formatter)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature with annotations evaluated if possible."""
    with contextlib.suppress(Exception):  # a name defined only for type checkers
        return inspect.signature(function, eval_str=True)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in without a signature
        return inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])
    plain = [
        p.replace(annotation=p.empty) if isinstance(p.annotation, str) else p
        for p in signature.parameters.values()
    ]
    return signature.replace(parameters=plain)


def _bound(of: inspect.Signature, given: Mapping[str, Any]) -> inspect.BoundArguments:
    """Bind values; include a default only if a later positional value follows."""
    values: dict[str, Any] = {}
    has_more = any(given.get(p.name) for p in of.parameters.values() if p.kind is p.VAR_POSITIONAL)
    for name, parameter in of.parameters.items():
        kind = parameter.kind
        if name in given:
            values[name] = _whole(parameter, given[name])
        elif parameter.default is not parameter.empty and (
            kind is parameter.POSITIONAL_ONLY
            or (kind is parameter.POSITIONAL_OR_KEYWORD and has_more)
        ):
            values[name] = parameter.default
    return inspect.BoundArguments(of, values)


def _whole(parameter: inspect.Parameter, value: Any) -> Any:
    """Return several values in the annotation's container type."""
    is_one = _item(parameter.annotation) is None or not isinstance(value, tuple)
    if is_one or parameter.kind is parameter.VAR_POSITIONAL:
        return value
    wanted = get_origin(_bare(parameter.annotation)) or _bare(parameter.annotation)
    return wanted(value) if wanted in (set, frozenset, tuple) else list(value)


# --- parameters ---------------------------------------------------------------------------------


def _params(of: inspect.Signature) -> Iterator[click.Parameter]:
    # click allows only one argument with any number of values.
    is_taken = any(p.kind is p.VAR_POSITIONAL for p in of.parameters.values())
    for parameter in of.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield _argument(parameter, parameter.annotation, nargs=-1)
        elif parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            yield _option(parameter, of)
        else:
            item = _item(parameter.annotation)
            if item is None or is_taken:
                yield _argument(parameter, parameter.annotation, nargs=1)
            else:
                is_taken = True
                yield _argument(parameter, item, nargs=-1)


def _argument(parameter: inspect.Parameter, annotation: Any, *, nargs: int) -> click.Argument:
    is_rest = parameter.kind is parameter.VAR_POSITIONAL
    metavar = parameter.name.upper() + ("..." if nargs < 0 else "")
    argument = click.Argument(
        [parameter.name],
        type=Typed(annotation),
        nargs=nargs,
        required=not is_rest,
        metavar=f"[{metavar}]" if is_rest else metavar,
    )
    argument.name = parameter.name  # click converts it to lower case
    return argument


def _option(parameter: inspect.Parameter, of: inspect.Signature) -> click.Option:
    name, annotation = parameter.name, parameter.annotation
    flag = f"--{name.strip('_').replace('_', '-')}"
    about: dict[str, Any] = {"default": None, "required": parameter.default is parameter.empty}
    if not about["required"]:
        about["help"] = f"Default: {reprlib.repr(parameter.default)}"
    if _bare(annotation) is bool and f"no_{name}" not in of.parameters:
        return click.Option([name, f"{flag}/--no-{flag[2:]}"], **about)
    item = _item(annotation)
    kind = Typed(annotation if item is None else item)
    about["multiple"] = item is not None
    return click.Option([name, flag], type=kind, metavar=kind.name, **about)


# --- annotations --------------------------------------------------------------------------------


def _bare(annotation: Any) -> Any:
    """Return a type without ``Annotated`` and ``None``."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _bare(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        members = [one for one in get_args(annotation) if one is not type(None)]
        return _bare(members[0]) if len(members) == 1 else annotation
    return annotation


def _item(annotation: Any) -> Any:
    """Return the item type of a list type; None for other types."""
    bare = _bare(annotation)
    origin, args = get_origin(bare) or bare, get_args(bare)
    if origin is tuple:
        return args[0] if len(args) == 2 and args[1] is Ellipsis else None
    if origin not in _SEVERAL:
        return None
    return args[0] if args else inspect.Parameter.empty


def _members(annotation: Any) -> Mapping[str, enum.Enum]:
    bare = _bare(annotation)
    is_enum = isinstance(bare, type) and issubclass(bare, enum.Enum)
    return bare.__members__ if is_enum else {}


def _name(annotation: Any) -> str:
    """Return a type's name in the help."""
    bare = _bare(annotation)
    if get_origin(bare) is Literal:
        return "|".join(map(str, get_args(bare)))
    members = _members(bare)
    if members:
        values = [member.value for member in members.values()]
        return "|".join(values if all(isinstance(v, str) for v in values) else members)
    return bare.__name__ if type(bare) is type else inspect.formatannotation(bare)


def _is_document(annotation: Any) -> bool:
    """Return whether a type can be written only as JSON."""
    try:
        schema = TypeAdapter(annotation).json_schema()
    except PydanticUserError:
        return False
    return schema.get("type") in ("object", "array")
