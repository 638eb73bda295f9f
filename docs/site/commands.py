"""Reference pages of the command line, one per command, generated from its help.

A hook of mkdocs, which mkdocs.yml names.
"""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from farcall.cli.main import PANELS, cli

_EXAMPLES = re.compile(r"\x08\nExamples:\n(.*?)(?:\n\n|$)", re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages to the navigation, below the panels of ``farcall --help``."""
    panels = [
        {title: [{name: f"commands/{name}.md"} for name in panel]}
        for title, panel in PANELS.items()
    ]
    config.nav = [*(config.nav or []), {"Commands": panels}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Generate the pages."""
    for panel in PANELS.values():
        for name in panel:
            page = "\n".join(_page(click.Context(cli, info_name="farcall"), name))
            files.append(File.generated(config, f"commands/{name}.md", content=page))
    return files


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
