"""Folders of programs to put on PATH: with one that fails, or without one that is there."""

import os
from pathlib import Path

_FAILING = """\
#!/bin/sh
echo "{name}: error: {message}" >&2
exit 1
"""


def write_failing(folder, name, message):
    """A program that says so and ends with 1; for the front of PATH."""
    program = folder / name
    program.write_text(_FAILING.format(name=name, message=message))
    program.chmod(0o755)
    return program


def link_all_but(folder, names, path):
    """Links to all programs of a PATH except some; for the place of that PATH."""
    for source in filter(os.path.isdir, path.split(os.pathsep)):
        for program in Path(source).iterdir():
            link = folder / program.name
            if program.name not in names and not link.is_symlink():
                link.symlink_to(program)
