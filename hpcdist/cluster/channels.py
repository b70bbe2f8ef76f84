"""The channels by which a user is told of the end of runs: `notify` of a profile, and --notify.

A channel is one text: `mail:ADDRESS`, by the scheduler; `command:PROGRAM ARGUMENTS`; or `apprise:`
with `env:VARIABLE` or `file:PATH`, which hold the address of a service. Whoever has a service's
address can write there, so it stands in no run directory.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import UserError

NONE = "none"
"""In place of channels: nobody is told."""
_FORMS = {
    "mail": (r"[\w.+-]+@[\w.-]+", "write mail:NAME@HOST, or mail alone"),
    "command": (
        r"(?![^~/\s]\S*/).+",
        "write command:PROGRAM ARGUMENTS, quotes closed, and a path from / or ~ on",
    ),
    "apprise": (
        r"env:[A-Za-z_]\w*|file:[~/].*",
        "name what holds the address, a secret: apprise:env:VARIABLE or apprise:file:~/FILE",
    ),
}
"""Kind -> the text that must follow it, and how to write it."""
_MOST_BYTES = 4_096


def parse_channel(text: str) -> tuple[str, str]:
    """Return a channel's kind and what follows it. Raises ValueError with what is wrong and what to
    do, and without what may be a secret."""
    kind, _, rest = (part.strip() for part in text.partition(":"))
    if kind not in _FORMS:
        hint = "the kinds are mail, command, and apprise for Slack, ntfy and a hundred others"
        raise ValueError("has a channel of an unknown kind", hint)
    form, hint = _FORMS[kind]
    try:
        is_good = rest.isprintable() and re.fullmatch(form, rest, re.ASCII) and shlex.split(rest)
    except ValueError:  # quotes are open
        is_good = False
    if not is_good and text.strip() != "mail":
        raise ValueError(f"has {kind} without what must follow it", hint)
    return kind, rest


def mail_of(notify: Sequence[str]) -> str | None:
    """Return the address that the scheduler is to mail to; empty for the user's own, None where it
    is to mail nothing."""
    return next((rest for kind, rest in map(parse_channel, notify) if kind == "mail"), None)


def read_address(reference: str) -> str:
    """Return the address that a variable or a private file holds. Raises UserError."""
    source, _, name = reference.partition(":")
    if source == "env":
        if not (value := os.environ.get(name, "").strip()):
            hint = f"export {name} in the shell that submits, or in ~/.bashrc"
            raise UserError(f"notify: the variable {name} is not set on this host", hint=hint)
        return value
    path = Path(name).expanduser()
    try:
        with files.open_private(path) as file:
            return file.read(_MOST_BYTES).decode().split()[0]
    except (OSError, UnicodeDecodeError, IndexError):
        raise UserError(
            f"notify: {path} has no address that can be used",
            hint=f"it must be your own file, with the address in its first line, and private: "
            f"chmod 600 {path}",
        ) from None
