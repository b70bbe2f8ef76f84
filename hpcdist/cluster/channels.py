"""The ways by which a user is told of the end of runs: `notify` of a profile, and --notify.

Each is one text, a kind and what belongs to it: `slack:env:SLACK_URL`. In hpcdist.yaml it may be
`slack: env:SLACK_URL`. Addresses of services are secrets, as whoever has one can write there: they
are named by the variable or the private file that holds them, and read when a message is sent.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcdist.base import files
from hpcdist.base.errors import UserError
from hpcdist.base.text import nearest

MAIL, COMMAND = "mail", "command"
SERVICES = ("slack", "teams", "discord", "ntfy", "apprise")
KINDS = (MAIL, COMMAND, *SERVICES)
NONE = "none"
"""In place of channels: nobody is told."""
_ADDRESS = re.compile(r"[\w.+-]+@[\w.-]+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MOST_BYTES = 4_096


class Channel(NamedTuple):
    """One way to tell."""

    kind: str
    to: str
    """The address of a mail, a command, or the reference to a service's address."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.to}" if self.to else self.kind

    def argv(self) -> list[str]:
        """Return the words of a command; no shell sees them."""
        program, *words = shlex.split(self.to)
        return [os.path.expanduser(program), *words]

    def address(self) -> str:
        """Return the address of a service. Raises UserError where it cannot be had here."""
        source, _, name = self.to.partition(":")
        if source == "env":
            if not (value := os.environ.get(name, "").strip()):
                raise UserError(
                    f"notify: {self.kind}: the variable {name} is not set on this host",
                    hint=f"export {name} in the shell that submits, or in ~/.bashrc",
                )
            return value
        path = Path(name).expanduser()
        try:
            with files.open_private(path) as file:
                lines = file.read(_MOST_BYTES).decode().split()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror or "" if isinstance(error, OSError) else "it is no text"
            raise UserError(
                f"notify: {self.kind}: {path} cannot be used: {why or 'others may read it'}",
                hint=f"it must be your own file, with the address in its first line, and private: "
                f"chmod 600 {path}",
            ) from None
        if not lines:
            raise UserError(f"notify: {self.kind}: {path} is empty", hint="write the address there")
        return lines[0]


def as_texts(value: Any) -> Any:
    """Return the value of `notify` with `kind: rest`, which YAML reads as a section, as one text;
    what else it may hold is for others to refuse."""
    if isinstance(value, dict | str):
        value = [value]
    if not isinstance(value, list):
        return value
    return [
        ":".join(map(str, *item.items())) if isinstance(item, dict) and len(item) == 1 else item
        for item in value
    ]


def parse_channel(text: str) -> Channel:
    """Return a channel. Raises ValueError with what is wrong and what to do; it does not repeat
    what may be a secret."""
    kind, _, to = (part.strip() for part in text.partition(":"))
    if kind not in KINDS:
        near = nearest(kind, KINDS)
        known = f"they are {', '.join(KINDS)}"
        shown = kind if kind.isalnum() and len(kind) < 20 else "what it names"
        raise ValueError(
            f"has {shown}, which is no kind of channel",
            f"did you mean {near}? {known}" if near else known,
        )
    if problem := _problem(kind, to):
        raise ValueError(*problem)
    return Channel(kind, to)


def _problem(kind: str, to: str) -> tuple[str, str] | None:
    if not to.isprintable():
        return f"has {kind} with a character that cannot be printed", "remove it"
    if kind == COMMAND:
        return _command_problem(to)
    if kind in SERVICES:
        return _reference_problem(kind, to)
    if to and not _ADDRESS.fullmatch(to):
        return f"has mail:{to}, which is no address", "write mail:NAME@HOST, or mail alone"
    return None


def _reference_problem(kind: str, to: str) -> tuple[str, str] | None:
    source, _, name = to.partition(":")
    is_known = bool(_VARIABLE.fullmatch(name)) if source == "env" else source == "file" and name
    if not is_known:
        hint = (
            f"its address is a secret: name where it is, {kind}:env:VARIABLE or "
            f"{kind}:file:~/.config/{kind}-address"
        )
        return f"has {kind} with what is no reference", hint
    if source == "file" and not os.path.isabs(os.path.expanduser(name)):
        return f"has {kind}:{to}, which is a relative path", "begin it with / or ~"
    return None


def _command_problem(to: str) -> tuple[str, str] | None:
    try:
        words = shlex.split(to)
    except ValueError as error:
        return f"has command:{to}, which cannot be split into words ({error})", "close the quotes"
    if not words:
        return "has a command without a program", "write command:PROGRAM ARGUMENTS"
    if "/" in words[0] and not words[0].startswith(("/", "~")):
        return (
            f"has command:{to}, with a relative path",
            "it may run on any host: begin it with / or ~, or name a program in PATH",
        )
    return None


def channels_of(notify: Sequence[str]) -> list[Channel]:
    """Return the channels of a checked profile."""
    return [parse_channel(text) for text in notify]


def mail_of(notify: Sequence[str]) -> str | None:
    """Return the address that the scheduler is to mail to; empty for the user's own, None where it
    is to mail nothing."""
    return next((one.to for one in channels_of(notify) if one.kind == MAIL), None)


def own_channels(notify: Sequence[str]) -> list[Channel]:
    """Return the channels that hpcdist itself tells by."""
    return [one for one in channels_of(notify) if one.kind != MAIL]


def check_channels(channels: Iterable[Channel]) -> None:
    """Raise UserError for a channel that could not tell anything from here."""
    for channel in channels:
        if channel.kind in SERVICES:
            channel.address()
            if importlib.util.find_spec("apprise") is None:
                raise UserError(
                    f"notify: {channel.kind} needs the package apprise, which is not there",
                    hint="install it: pip install 'hpcdist[notify]'",
                )
