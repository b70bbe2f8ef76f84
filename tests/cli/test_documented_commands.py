"""Commands in the README and in docs/ are ones that hpcdist has, with options that they have."""

import re
import shlex
from pathlib import Path

import click
import pytest

from hpcdist.cli.main import hpcdist

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PLACEHOLDERS = re.compile(r"\[[A-Z-][^\]]*\]|\.\.\.")
"""[RUN...] and the like: not typed."""


def commands(page):
    """What follows `hpcdist` in each line of a block of code, continued lines joined."""
    is_fenced = False
    for line in page.read_text().replace("\\\n", " ").splitlines():
        is_fenced ^= line.startswith("```")
        typed = re.match(r"\s*(?:\$ )?hpcdist( .*)", line)
        if typed and (is_fenced or line.startswith("    ")):
            yield shlex.split(_PLACEHOLDERS.sub("", typed[1]), comments=True)


def parse(args):
    """Have click's parsers take a line, without running anything."""
    command, context = hpcdist, click.Context(hpcdist, info_name="hpcdist")
    while isinstance(command, click.Group):
        _, _, args = command.make_parser(context).parse_args(list(args))
        if not args:
            return
        name, args = args[0], args[1:]
        inner = command.get_command(context, name)
        assert inner is not None, f"there is no command {name}"
        command = inner
        context = click.Context(command, info_name=name, parent=context)
    command.make_parser(context).parse_args(list(args))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_commands_that_are_there(page):
    for args in commands(page):
        try:
            parse(args)
        except click.ClickException as error:
            pytest.fail(f"hpcdist {shlex.join(args)}: {error.format_message()}")
