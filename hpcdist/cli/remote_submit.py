"""`hpcdist submit` at a host: once, whatever becomes of the connection, and with a record here."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, SchedulerError
from hpcdist.cli.printing import note, say
from hpcdist.remote import wire
from hpcdist.remote.bring import Where, bring, remote_of
from hpcdist.remote.call import Output, call
from hpcdist.remote.ssh import Connection, ConnectionLostError
from hpcdist.runs.folder import make_runs_folder
from hpcdist.runs.remote import write_remote
from hpcdist.runs.run import is_run_name, runs_folder
from hpcdist.runs.snapshot import SnapshotPlan

_WAITS_S = (1, 2, 5, 10, 30)
_UNCLEAR_S = 86400.0
"""So long the same command is taken for the one whose connection broke."""


@dataclass
class _Submitted:
    """What the host has told of a submission."""

    where: Where
    runs: Path
    ids: list[str] = field(default_factory=list)
    sweep: str | None = None

    def take(self, value: dict[str, Any]) -> None:
        """Make records of the runs that were submitted, which their names are known by here."""
        told = value.get("submitted")
        ids = [name for name in told if isinstance(name, str)] if isinstance(told, list) else []
        sweep = value.get("sweep")
        if not ids or not all(map(is_run_name, ids)) or any("/" in name for name in ids):
            return
        self.ids, self.sweep = ids, sweep if isinstance(sweep, str) else None
        make_runs_folder(self.runs)
        for name in ids:
            folder = self.runs / name
            with suppress(FileExistsError):
                folder.mkdir(mode=files.PRIVATE_FOLDER)
                spec = {"id": name, "created_s": time.time(), "job": {}}
                files.write_json(folder / "spec.json", spec)
                write_remote(
                    folder,
                    remote_of(self.where, wire.SentRun(id=name, runs=str(value.get("runs", "")))),
                )

    def bring(self, connection: Connection) -> None:
        """Bring what there is of the runs so far: size and job, for `hpcdist runs`."""
        if self.ids:
            names = [*self.ids, *([self.sweep] if self.sweep else [])]
            wanted = [wire.WantedRun(id=name) for name in names]
            request = wire.Bring(place=self.where.place, runs=wanted, files=False)
            bring(connection, request, self.runs, note=note)


def submit_there(request: wire.Call, where: Where, tree: SnapshotPlan | None) -> int:
    """Submit at a host and return the exit code. Where the connection breaks, the host is asked
    again by the name of the submission, which it makes once."""
    host = where.host.name
    submitted = _Submitted(where, runs_folder())
    output = Output(told=submitted.take)
    with _name_of(request, host) as name:
        request = msgspec.structs.replace(request, submission=name)
        waits = iter(_WAITS_S)
        has_begun = False
        while True:
            try:
                with Connection(where.host) as connection:
                    if said := connection.greet():
                        note(said)
                    has_begun = True
                    code = call(connection, request, output, tree=tree)
                    with suppress(SchedulerError):
                        submitted.bring(connection)
                    return code
            except SchedulerError as error:
                wait_s = next(waits, None)
                is_lost = isinstance(error, ConnectionLostError)
                if not (has_begun and (is_lost or output.is_begun)) or isinstance(
                    error, wire.WireError
                ):
                    raise
                if wait_s is None:
                    raise SchedulerError(
                        f"{error.message}; it is not known whether the job was submitted",
                        hint="the same command again goes on from here, and submits nothing twice",
                    ) from None
                say(f"{error.message}; asking {host} again")
                output.forget()
                time.sleep(wait_s)


@contextmanager
def _name_of(request: wire.Call, host: str) -> Iterator[str]:
    """Give a name for a submission: a new one, or, where the connection of the same command broke
    and nobody knows how it ended, the name that it had."""
    name = secrets.token_hex(8)
    try:
        folder = files.user_cache() / "submissions"
        folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # without a home only this command asks again
        yield name
        return
    words = json.dumps([host, os.getcwd(), request.argv])
    path = folder / hashlib.sha256(words.encode(errors="surrogateescape")).hexdigest()[:32]
    with suppress(OSError, ValueError):
        before = files.load_json(path)
        if 0 <= time.time() - before["begun_s"] < _UNCLEAR_S and before["name"].isalnum():
            name = before["name"]
            note("the connection broke when this was submitted before: it is not submitted twice")
    files.write_json(path, {"name": name, "begun_s": time.time()})
    try:
        yield name
    except SchedulerError:
        raise
    except HpcdistError:
        path.unlink(missing_ok=True)
        raise
    else:
        path.unlink(missing_ok=True)
