"""Make the page of commands from the commands themselves, when the site is built.

mkdocs.yml names this module under `hooks`; docs/commands.md holds the beginning of the page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from hpcdist.cli.main import hpcdist

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

_PAGE = "commands.md"


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return a page, with every command below the beginning of the page of commands."""
    return markdown + reference() if page.file.src_uri == _PAGE else markdown


def reference() -> str:
    """Return all commands and their options as Markdown."""
    context = click.Context(hpcdist, info_name="hpcdist", **hpcdist.context_settings)
    return "\n\n".join(["", *_command(hpcdist, context, level=2)])


def _command(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}"
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"    {usage}"
    yield from map(_paragraph, inspect.cleandoc(command.help or "").split("\n\n"))
    yield _options(command, context)
    if command.epilog:
        yield _text(command.epilog)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            within = click.Context(inner, info_name=name, parent=context)
            yield from _command(inner, within, level=level + (context.parent is not None))


def _paragraph(text: str) -> str:
    if text.startswith("\b"):  # click's mark of lines that stay as they are
        return "\n".join(f"    {line}" for line in text.splitlines()[1:])
    return _text(text)


def _options(command: click.Command, context: click.Context) -> str:
    records = [option.get_help_record(context) for option in command.get_params(context)]
    rows = [f"| `{names}` | {_cell(text)} |" for names, text in filter(None, records)]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Return a sentence of the help as Markdown that shows it as it is, names in backticks as code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else re.sub(r"([_*<>\[\]\\#])", r"\\\1", part)
        for part in parts
    )
