"""A laptop's request, which goes to a host in one line of JSON, and the host's list of runs."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.base.version import __version__
from hpcdist.runs.spec import Accounting
from hpcdist.schedulers.base import Condition

GREETING = "hpcdist-1"
"""The host's first word; its number grows when the two sides would not understand each other."""
MOST_BYTES = 64_000_000


class Request(Struct, frozen=True, kw_only=True):
    """A command to run at a host, or runs to list there."""

    version: str = __version__
    argv: list[str] = []
    """Empty: the runs are listed."""
    folder: str
    """Holds the projects."""
    project: str
    runs: str | None = None
    """The folder of the runs, where the user has named one."""
    tree: str | None = None
    """Name of the folder in the project's that the laptop's work tree was copied to."""
    within: str = "."
    """The folder in the work tree that the command is called from."""
    ignored: list[str] = []
    """Paths that git ignores: where the project has them at the host, the job finds them."""
    profiles: str | None = None
    """An hpcdist.yaml that counts in place of the host's."""
    submission: str | None = None
    """Name that the laptop gives a submission: a second one of that name is not made."""
    wanted: list[str] | None = None
    """Runs to list; None: all, or those of the submission."""
    accounting: bool = True
    """List them with what the scheduler has of their use, which it may take long to tell."""
    out: bool = False
    """stdout is a terminal."""
    err: bool = False
    columns: int = 80
    lines: int = 24
    variables: dict[str, str] = {}
    """TERM, NO_COLOR and their like."""

    def line(self) -> bytes:
        """Return the request as a line; UserError for a text that is no UTF-8, such as the name of
        a file."""
        try:
            return msgspec.json.encode(self) + b"\n"
        except UnicodeEncodeError as error:
            raise UserError(
                f"{error.object!r} cannot be sent to a host: it is not UTF-8",
                hint="rename the file, have git ignore it, or write the argument in UTF-8",
            ) from None


class ListedRun(Struct, frozen=True, kw_only=True):
    """One run as it is now."""

    id: str
    condition: Condition | None = None
    accounting: Accounting | None = None
    is_settled: bool = False
    """It has ended, and nothing of it will change."""


class Listed(Struct, frozen=True, kw_only=True):
    """The runs of a project."""

    runs: list[ListedRun]
    folder: str
    """Holds them."""
    sweeps: list[str] = []
    """The sweeps that they are of."""
    notes: list[str] = []


def decode(content: bytes, kind: Any) -> Any:
    """Return what the other side sent; SchedulerError where it is something else."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SchedulerError(f"what the other side sent cannot be read: {error}") from None
