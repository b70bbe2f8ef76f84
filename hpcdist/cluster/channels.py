"""The channels by which a user is told of the end of runs: `notify` of a profile, and --notify.

A channel is one text: `mail:ADDRESS`, by the scheduler; `command:PROGRAM ARGUMENTS`; or
`apprise:env:VARIABLE`, with the variable that holds the address of a service. Whoever has a
service's address can write there, so it stands in no run directory.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

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
        r"env:[A-Za-z_]\w*",
        "name the variable that holds the address, which is a secret: apprise:env:VARIABLE",
    ),
}
"""Kind -> the text that must follow it, and how to write it."""


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
    """Return the address that the variable of `env:VARIABLE` holds. Raises UserError."""
    name = reference.partition(":")[2]
    if not (value := os.environ.get(name, "").strip()):
        hint = f"export {name} in the shell that submits, or in ~/.bashrc"
        raise UserError(f"notify: the variable {name} is not set on this host", hint=hint)
    return value
