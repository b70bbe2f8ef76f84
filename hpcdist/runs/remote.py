"""A run at a host that this machine reaches by ssh: what is kept of it here.

<runs>/<id>/remote.json    where it is, and its state when it was last asked for; the rest of the
                           directory is as at the host
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from hpcdist.base import files
from hpcdist.base.ownership import is_own
from hpcdist.runs.run import Run

FILE, _HOSTS = "remote.json", "hosts.json"


class Remote(Struct, frozen=True, kw_only=True):
    """The content of remote.json."""

    host: str
    """As ssh knows it."""
    folder: str
    """Holds the projects there."""
    project: str
    runs: str | None = None
    """The folder of the run there; None: the project's."""
    condition: dict[str, Any] | None = None
    """Its state; None before it was asked for."""
    is_whole: bool = False
    """It had ended, and all that summaries need of it is here."""


def is_remote(run: Run) -> bool:
    """Return whether a run is at a host, and what is here is a record of it."""
    return os.path.lexists(run.path / FILE)


def read_remote(run: Run) -> Remote | None:
    """Return where a run is that this machine reaches by ssh; None for one that is here."""
    path = run.path / FILE  # whoever wrote it says whom this machine connects to
    return files.read_as(path, Remote) if is_own(path) else None


def host_of_run(run: Run) -> str | None:
    """Return the host that a run is at; None for one that is here."""
    remote = read_remote(run)
    return remote.host if remote else None


def write_remote(path: Path, remote: Remote) -> None:
    files.write_json(path / FILE, msgspec.to_builtins(remote))


def forget_ends(runs: Iterable[Run]) -> None:
    """Have runs at hosts be asked for anew: they go on."""
    for run in runs:
        if (remote := read_remote(run)) is not None:
            run.verdict_file.unlink(missing_ok=True)
            write_remote(run.path, structs.replace(remote, is_whole=False, condition=None))


def known_hosts() -> list[str]:
    """Return the hosts that the user has named on this machine. A run directory that came from
    elsewhere must not have it connect to one of its own choice."""
    try:
        with files.open_private(files.user_cache() / _HOSTS) as file:
            return msgspec.json.decode(file.read(files.MOST_JSON_BYTES), type=list[str])
    except (OSError, RuntimeError, ValueError, msgspec.MsgspecError):
        return []


def remember_host(name: str) -> None:
    """Note that the user has named a host: a record of a run may lead there from now on."""
    with suppress(OSError, RuntimeError):  # such as a user without a home: --host leads there
        if name not in (known := known_hosts()):
            files.user_cache().mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
            files.write_json(files.user_cache() / _HOSTS, [*known, name])
