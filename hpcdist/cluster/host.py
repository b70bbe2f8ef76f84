"""The host of a cluster: the login node that a laptop reaches by ssh, and the folder there."""

from __future__ import annotations

import re

from msgspec import Struct

from hpcdist.base.errors import UserError

DEFAULT_FOLDER = "hpcdist"
"""In the home there."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@%+-]*")
HOST_HINT = (
    "write it as ssh takes it, and a folder there if it is another than the default: "
    "me@login.site.org, or cluster:/work/me"
)


class Host(Struct, frozen=True):
    """A host as ssh knows it, and the folder there that holds the projects."""

    name: str
    folder: str = DEFAULT_FOLDER
    """Relative to the home there."""

    def __str__(self) -> str:
        return self.name if self.folder == DEFAULT_FOLDER else f"{self.name}:{self.folder}"


def why_no_host(text: str) -> str | None:
    """Return what is wrong with HOST[:FOLDER]; None where nothing is."""
    name, colon, folder = text.partition(":")
    if not _NAME.fullmatch(name):
        return f"is {text!r}, which is not the name of a host"
    if colon and (not folder.strip() or not folder.isprintable()):
        return f"is {text!r}, with an invalid folder"
    return None


def parse_host(text: str, *, origin: str) -> Host:
    """Return the host that HOST[:FOLDER] names; UserError where it names none."""
    if problem := why_no_host(text):
        raise UserError(f"{origin} {problem}", hint=HOST_HINT)
    name, _, folder = text.partition(":")
    return Host(name, folder or DEFAULT_FOLDER)
