"""Commands at a host, over as many connections as it takes; `hpcdist submit` is made there once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError
from hpcdist.base.text import show_bytes
from hpcdist.cli.printing import note, say
from hpcdist.remote.bring import bring, request_to
from hpcdist.remote.call import Output, call
from hpcdist.remote.request import Request
from hpcdist.remote.ssh import Connection, ConnectionLostError, Where
from hpcdist.remote.tree import send
from hpcdist.runs.run import runs_folder
from hpcdist.runs.snapshot import SnapshotPlan

_WAITS_S = (1, 2, 4, 8, 15, *[30] * 15)
"""Between the attempts to connect again."""
_LASTED_S = 60.0
"""After a connection that lasted so long, attempts are counted anew."""
_LARGE_BYTES = 1_000_000
"""It may take a while to send so much."""
_UNCLEAR_S = 86400.0
"""So long the same command is taken for the one whose connection broke."""


def call_at(
    where: Where,
    request: Request,
    output: Output | None = None,
    *,
    tree: SnapshotPlan | None = None,
    again: bool = False,
) -> int:
    """Run a command at a host; `again` connects and runs it anew where the connection breaks."""
    output = output or Output()
    waits = iter(_WAITS_S if again else ())
    has_begun = False
    while True:
        begun_s = time.monotonic()
        try:
            with Connection(where.host) as connection:
                if has_begun:
                    say(f"connected to {where.host.name} again")
                has_begun = True
                return call(connection, with_tree(connection, where, request, tree), output)
        except SchedulerError as error:
            if time.monotonic() - begun_s > _LASTED_S:
                waits = iter(_WAITS_S if again else ())
            wait_s = next(waits, None)
            if not has_begun or wait_s is None:
                raise
            if isinstance(error, ConnectionLostError):
                say(f"{error.message}; connecting again")
            time.sleep(wait_s)


def with_tree(
    connection: Connection, where: Where, request: Request, tree: SnapshotPlan | None
) -> Request:
    """Return the request with the work tree, which is copied to the host."""
    if tree is None:
        return request
    if tree.num_bytes > _LARGE_BYTES:
        size = show_bytes(tree.num_bytes)
        note(f"the work tree ({size}) goes to {where.host.name}, but for what is there already")
    name, ignored = send(connection, tree, where)
    within = os.path.relpath(tree.cwd, tree.root)
    return msgspec.structs.replace(request, tree=name, within=within, ignored=ignored)


@dataclass
class _Submission:
    """A submission, as far as it is known here."""

    where: Where
    name: str
    is_sent: bool = False
    """The host may have heard of it."""
    is_known: bool = False
    """Its runs are recorded here."""

    def record(self, connection: Connection) -> None:
        """Make records of the runs that were submitted, by which their names are known here."""
        request = request_to(self.where, submission=self.name)
        runs = runs_folder()
        listed = bring(connection, self.where, request, runs, with_events=False, note=note)
        self.is_known = self.is_known or bool(listed.runs)


def submit_there(request: Request, where: Where, tree: SnapshotPlan | None, *, wait: bool) -> int:
    """Submit at a host and return the exit code. Where the connection breaks, the host is asked
    again by the name of the submission, which it makes once."""
    host, output, argv = where.host.name, Output(), request.argv
    given = argv.index("--") if "--" in argv else len(argv)
    at_first = [word for word in argv[:given] if word != "--wait"] + argv[given:]
    submission = _Submission(where, "")
    with _name_of(request, host, submission) as submission.name:
        request = msgspec.structs.replace(request, submission=submission.name)
        waits = iter(_WAITS_S)
        while True:
            begun_s = time.monotonic()
            try:
                with Connection(where.host) as connection:
                    if not submission.is_known:
                        sent = with_tree(connection, where, request, tree)
                        sent = msgspec.structs.replace(sent, argv=at_first)
                        submission.is_sent = True
                        code = call(connection, sent, Output(captured=True) if wait else output)
                        submission.record(connection)
                        if code or not wait:
                            return code
                    return call(connection, request, output)
            except SchedulerError as error:
                if time.monotonic() - begun_s > _LASTED_S:
                    waits = iter(_WAITS_S)
                wait_s = next(waits, None)
                if not submission.is_sent:
                    raise
                if wait_s is None:
                    raise _given_up(submission, error) from None
                say(f"{error.message}; asking {host} again")
                time.sleep(wait_s)


def _given_up(submission: _Submission, error: SchedulerError) -> SchedulerError:
    """Return the error for a connection that does not come again."""
    if submission.is_known:
        return SchedulerError(
            f"{error.message}; what was submitted continues there",
            hint="follow it again with: hpcdist watch last",
        )
    return SchedulerError(
        f"{error.message}; it is not known whether the job was submitted",
        hint="run the same command again: it continues from here, and submits nothing twice",
    )


class _Before(msgspec.Struct, frozen=True):
    """A submission that was begun."""

    name: str
    begun_s: float


@contextmanager
def _name_of(request: Request, host: str, submission: _Submission) -> Iterator[str]:
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
            is_unclear = not submission.is_known and (before is not None or submission.is_sent)
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
