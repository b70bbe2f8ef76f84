"""`hpcdist submit` at a host: once, whatever becomes of the connection, and with a record here."""

from __future__ import annotations

import fcntl
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
from hpcdist.base.errors import SchedulerError
from hpcdist.cli.printing import note, say
from hpcdist.cli.reconnecting import LASTED_S, WAITS_S, Shown
from hpcdist.remote import wire
from hpcdist.remote.bring import Where, bring, remote_of
from hpcdist.remote.call import Output, call
from hpcdist.remote.ssh import Connection, ConnectionLostError, connected
from hpcdist.runs.folder import make_runs_folder
from hpcdist.runs.remote import write_remote
from hpcdist.runs.run import is_run_name, runs_folder
from hpcdist.runs.snapshot import SnapshotPlan

_WAITS_S = (1, 2, 5, 10, 30)
_UNCLEAR_S = 86400.0
"""So long the same command is taken for the one whose connection broke."""


class _Before(msgspec.Struct, frozen=True):
    """A submission that was begun."""

    name: str
    begun_s: float


@dataclass
class _Submitted:
    """The host's answer about a submission."""

    where: Where
    runs: Path
    ids: list[str] = field(default_factory=list)
    sweep: str | None = None
    is_sent: bool = False
    """The host may have heard of it."""
    shown: Shown = field(default_factory=Shown)
    """Lines of the log of a run that is followed."""

    def take(self, value: dict[str, Any]) -> None:
        """Make records of the runs that were submitted, which their names are known by here."""
        self.shown.take(value)
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

    def given_up(self, error: SchedulerError) -> SchedulerError:
        """Return the error for a connection that does not come again."""
        if self.ids:
            name = self.sweep or self.ids[0]
            return SchedulerError(
                f"{error.message}; {name} continues there",
                hint=f"follow it again with: hpcdist watch {name}",
            )
        return SchedulerError(
            f"{error.message}; it is not known whether the job was submitted",
            hint=("run the same command again: it continues from here, and submits nothing twice"),
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
    with _name_of(request, host, submitted) as name:
        request = msgspec.structs.replace(request, submission=name)
        waits = iter(_WAITS_S)
        has_begun = is_known = False
        while True:
            begun_s = time.monotonic()
            try:
                with connected(where.host, note) as connection:
                    has_begun = True
                    submitted.is_sent = True
                    code = call(connection, submitted.shown.resumed(request), output, tree=tree)
                    with suppress(SchedulerError):
                        submitted.bring(connection)
                    return code
            except SchedulerError as error:
                if submitted.ids and (not is_known or time.monotonic() - begun_s > LASTED_S):
                    waits, is_known = iter(WAITS_S), True
                wait_s = next(waits, None)
                is_lost = isinstance(error, ConnectionLostError)
                if not (has_begun and (is_lost or output.is_begun)) or isinstance(
                    error, wire.WireError
                ):
                    raise
                if wait_s is None:
                    raise submitted.given_up(error) from None
                say(f"{error.message}; asking {host} again")
                output.forget()
                time.sleep(wait_s)


@contextmanager
def _name_of(request: wire.Call, host: str, submitted: _Submitted) -> Iterator[str]:
    """Give a name for a submission: a new one, or, where the connection of the same command broke
    and nobody knows how it ended, the name that it had."""
    name = secrets.token_hex(8)
    words = json.dumps([host, os.getcwd(), request.argv])
    digest = hashlib.sha256(words.encode(errors="surrogateescape")).hexdigest()[:32]
    try:
        folder = files.user_cache() / "submissions"
        folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        file = os.open(folder / digest, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, files.PRIVATE_FILE)
    except (OSError, RuntimeError):  # without a home only this command asks again
        yield name
        return
    with open(file, "r+b") as record:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # the same command at work beside this one is a submission of its own
            yield name
            return
        before = _unclear_name(record.read(files.MOST_JSON_BYTES))
        if before is not None:
            name = before
            note("the connection broke when this was submitted before; it is not submitted again")
        record.seek(0)
        record.truncate()
        record.write(json.dumps({"name": name, "begun_s": time.time()}).encode())
        record.flush()
        is_unclear = False
        try:
            yield name
        except (SchedulerError, KeyboardInterrupt):
            is_unclear = not submitted.ids and (before is not None or submitted.is_sent)
            raise
        finally:
            if not is_unclear:
                (folder / digest).unlink(missing_ok=True)


def _unclear_name(content: bytes) -> str | None:
    """Return the name of the same command's submission before, of which nobody knows how it
    ended."""
    try:
        before = files.convert(files.parse_json(content), _Before)
    except msgspec.ValidationError:
        return None
    is_late = not 0 <= time.time() - before.begun_s < _UNCLEAR_S
    return None if is_late or not before.name.isalnum() else before.name
