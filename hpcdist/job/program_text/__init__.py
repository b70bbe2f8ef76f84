"""A user's program, read and not run: what it imports, and what it sets in its environment.

Statements are followed in the order in which a rank runs them: own modules where they are imported,
functions where they are called, what stands under `if __name__ == "__main__"`. Values are worked
out as far as the text and the environment tell. What may or may not run (a branch, a loop, a
callback) imports perhaps, and leaves what it sets unknown; so does what is not understood.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path

from hpcdist.job.program_text.environment import OF_EACH_RANK
from hpcdist.job.program_text.events import Change, Event, Import, Place, Program
from hpcdist.job.program_text.walk import Walk, parsed

__all__ = ["OF_EACH_RANK", "Change", "Event", "Import", "Place", "Program", "read_program"]


def read_program(
    path: Path,
    *,
    environ: Mapping[str, str],
    installed: Container[str],
    first_on_path: Path | None = None,
    function: str | None = None,
) -> Program:
    """Follow the program that begins with a file.

    `first_on_path` is where its imports look first, and the file is a module below it; None: the
    file is a script, whose own folder is first. `function` ("module:name") is what is called in a
    rank instead: its module is imported for it, but of a script it is sent without the rest.
    Packages that are `installed` are not looked into, wherever they are.

    Raises OSError, SyntaxError or ValueError where the file cannot be read, or cannot be followed:
    that must cost no more than time, since each rank can import all by itself.
    """
    source = path.read_bytes()
    walk = Walk(path, environ, installed)
    tree = parsed(source)
    try:
        if function is not None:
            walk.call_in(tree, source, *function.split(":", 1))
        else:
            walk.run(tree, source, first_on_path)
        walk.run_what_is_left()
    except Exception as error:
        raise ValueError(f"the text of {path.name} cannot be followed: {error!r}") from error
    return walk.program
