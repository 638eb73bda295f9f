"""Generated reference: a page per command, the API's overview, and a table on the options page.

A hook of mkdocs, which mkdocs.yml names.
"""

from __future__ import annotations

import html
import inspect
import json
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

import farcall
from farcall.cli.main import PANELS, cli
from farcall.config.help import describe
from farcall.config.settings import PLATFORMS, Settings, options_of

_OPTIONS = "options.md"
_OVERVIEW = "api/overview.md"
_API = "API reference"
_EXAMPLES = re.compile(r"\x08\nExamples:\n(.*?)(?:\n\n|$)", re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages to the navigation: commands below the panels of ``farcall --help``."""
    panels = [
        {title: [{name: f"commands/{name}.md"} for name in panel]}
        for title, panel in PANELS.items()
    ]
    nav = config.nav or []
    [api] = [section[_API] for section in nav if _API in section]
    api.insert(0, {"Overview": _OVERVIEW})
    config.nav = [*nav, {"Commands": panels}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Generate the pages."""
    for panel in PANELS.values():
        for name in panel:
            page = "\n".join(_page(click.Context(cli, info_name="farcall"), name))
            files.append(File.generated(config, f"commands/{name}.md", content=page))
    files.append(File.generated(config, _OVERVIEW, content="\n".join(_overview())))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the table of options to the page that explains them."""
    if page.file.src_uri != _OPTIONS:
        return markdown
    text, mark, after = markdown.rpartition("\nNext: ")
    return "\n".join([text, *_options(), f"{mark}{after}"])


def _overview() -> Iterator[str]:
    """Yield the lines of the API's overview, the docstring of the package."""
    yield from (
        "# Overview",
        "",
        "This page is `help(farcall)`: every public name, in one line.",
        "",
    )
    yield from ("```text", *inspect.cleandoc(farcall.__doc__ or "").splitlines(), "```")


def _options() -> Iterator[str]:
    """Yield the lines of the table of options."""
    yield from (
        "## Types and ranges",
        "",
        "Every option, with its type, its range and its platforms.",
    )
    yield from (
        "",
        "| option | type | default | accepted values | platforms |",
        "|---|---|---|---|---|",
    )
    for option in describe():
        field = Settings.model_fields[option.name]
        platforms = [name for name in PLATFORMS if option.name in options_of(name)]
        cells = (
            f"<code>{option.name}</code>",
            _cell(_kind(field.annotation)),
            "" if option.default is None else f"<code>{_cell(json.dumps(option.default))}</code>",
            _cell(option.allowed or _range(field)),
            ", ".join(PLATFORMS[name] for name in platforms),
        )
        yield f"| {' | '.join(cells)} |"


def _kind(annotation: Any) -> str:
    """Return a type without what pydantic adds to it."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(map(_kind, parts))
    if isinstance(origin, type):
        return f"{origin.__name__}[{', '.join(map(_kind, parts))}]"
    if origin is Literal:  # the table has a column for its values
        return " | ".join(sorted({type(value).__name__ for value in parts}))
    if annotation is NoneType or is_typeddict(annotation):
        return "None" if annotation is NoneType else "dict"
    return getattr(annotation, "__name__", str(annotation))


def _range(field: FieldInfo) -> str:
    """Return the bounds of a number; empty for other types."""
    found = {
        name: getattr(each, name)
        for each in field.metadata
        for name in _BOUNDS
        if hasattr(each, name)
    }
    return ", ".join(f"{_BOUNDS[name]} {bound}" for name, bound in found.items())


_BOUNDS = {"gt": "more than", "ge": "at least", "le": "at most"}


def _page(above: click.Context, name: str, heading: str = "#") -> Iterator[str]:
    """Yield the lines of a command's page, and below them its subcommands'."""
    group = above.command
    if not isinstance(group, click.Group) or not (command := group.get_command(above, name)):
        raise LookupError(name)
    context = click.Context(command, above, name, **command.context_settings)
    text = inspect.cleandoc(command.help or "")
    examples = _EXAMPLES.search(text)
    summary, _, body = _EXAMPLES.sub("", text).partition("\n\n")
    yield from (f"{heading} {context.command_path}", "", summary.replace("\n", " "), "")
    yield from ("```text", *command.get_usage(context).splitlines(), "```", "")
    for paragraph in filter(None, body.split("\n\n")):
        preformatted = paragraph.startswith("\x08\n")
        yield from (f"```text\n{paragraph[2:]}\n```" if preformatted else paragraph, "")
    if examples:
        lines = (line.strip() for line in examples[1].splitlines())
        yield from (f"{heading}# Examples", "", "```console", *(f"$ {line}" for line in lines))
        yield from ("```", "")
    yield from (f"{heading}# Options", "", "| option | meaning |", "|---|---|")
    for each in command.get_params(context):
        if isinstance(each, click.Option) and (row := each.get_help_record(context)):
            yield f"| <code>{_cell(row[0])}</code> | {_cell(row[1])} |"
    yield ""
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _page(context, each, heading + "#")


def _cell(text: str) -> str:
    """Return a text as HTML that a Markdown table keeps in one cell."""
    return html.escape(text).replace("|", "&#124;")
