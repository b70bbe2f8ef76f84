"""A verb at a host: it works in a copy of the laptop's work tree, or in the project's folder.

<project>/.tree-<8 digits>/    the work tree, readable only, as the copies that runs have of it
<project>/.tree-last           a link to the newest: what is as there, is not sent again
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, structs

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError
from hpcdist.base.version import SERVED_VARIABLE, __version__
from hpcdist.cluster.load import PROFILES_VARIABLE
from hpcdist.remote.ssh import NONE_THERE, Connection, ConnectionLostError, Where
from hpcdist.runs.snapshot import SnapshotPlan
from hpcdist.submission.workspace import SUBMISSION_VARIABLE, SUBMIT_DIR_VARIABLE

Note = Callable[[str], None]

START_FILE = ".local/share/hpcdist/start"
"""A script in the home there that starts hpcdist, for one that is not on PATH."""
_UNCLEAR_S = 86400.0
"""So long the same command is taken for the one whose connection broke."""
_MOST_LINKS = 1000
_MODES = "Du=rwx,Dgo=,Fu-w,Fgo="
_ARRIVE = """\
mkdir -p -m 700 {tree}
for path in * {ignored}; do
    [ "$path" = runs ] || [ "$PWD/$path" = "$HPCDIST_RUNS" ] || [ ! -e "$path" ] ||
        [ -e {tree}/"$path" ] || ln -s "$PWD/$path" {tree}/"$path" 2>/dev/null
done
ln -sfn {tree} .tree-last
touch {tree}
find . -maxdepth 1 -name '.tree-????????' -user "$UID" -mmin +1440 -exec rm -rf {{}} +
cd {tree}/{within} || exit 1
"""
"""What lies in the project's folder and was not sent is linked to; trees of older days go."""


class Verb(Struct, frozen=True, kw_only=True):
    """A verb to run at a host."""

    where: Where
    argv: list[str]
    tree: SnapshotPlan | None = None
    """The work tree that goes along."""
    profiles: str | None = None
    """An hpcdist.yaml that counts in place of the host's."""

    def run(self) -> int:
        """Run it; return its exit code."""
        with Connection(self.where.host) as connection:
            return connection.call(self.script(connection))[0]

    def script(self, connection: Connection, submission: str = "") -> str:
        """Send the work tree; return the script of bash that runs the verb in it."""
        project = quoted(f"{self.where.host.folder}/{self.where.project}")
        runs = quoted(self.where.runs) if self.where.runs else '"${HPCDIST_RUNS:-runs}"'
        lines = [
            f"cd; (umask 077; mkdir -p {project}) && cd {project} || exit 1",
            f"runs={runs}; case $runs in /*) ;; *) runs=$PWD/$runs; esac",
            f'export HPCDIST_RUNS="$runs" {SUBMIT_DIR_VARIABLE}="$PWD"',
            f"export {SERVED_VARIABLE}={__version__} {SUBMISSION_VARIABLE}={submission}",
        ]
        if self.profiles is not None:
            lines += [
                f'export {PROFILES_VARIABLE}="$PWD/.profiles-$$.yaml"',
                f"trap 'rm -f \"${PROFILES_VARIABLE}\"' EXIT",
                f'(umask 077; printf %s {shlex.quote(self.profiles)} >"${PROFILES_VARIABLE}")',
            ]
        if self.tree is not None:
            within = shlex.quote(os.path.relpath(self.tree.cwd, self.tree.root))
            name, ignored = self._send(connection, self.tree)
            lines += [
                f'{SUBMIT_DIR_VARIABLE}="$PWD"/{within}',
                _ARRIVE.format(tree=name, ignored=shlex.join(ignored), within=within),
            ]
        lines += [
            f'start="$HOME/{START_FILE}"',
            f'[ -x "$start" ] || start=$(command -v hpcdist) || exit {NONE_THERE}',
            f'"$start" {shlex.join(self.argv)}',
        ]
        return "\n".join(lines)

    def _send(self, connection: Connection, plan: SnapshotPlan) -> tuple[str, list[str]]:
        """Copy a work tree into the project's folder; return the name of the folder there, and the
        paths that git ignores, which are not sent."""
        host = self.where.host
        name = f".tree-{secrets.token_hex(4)}"
        # What git ignores is a link to the original.
        ignored = [
            path for path, target in plan.targets.items() if target == os.path.join(plan.root, path)
        ]
        sent = plan.targets.keys() - set(ignored)
        project = f"{host.folder.removeprefix('~/')}/{self.where.project}"
        connection.copy(
            [
                *("-clpt", f"--chmod={_MODES}", "--files-from=-", "--from0"),
                "--link-dest=../.tree-last",
                f"--rsync-path=cd; umask 077; mkdir -p {shlex.quote(project)} && rsync",
                f"{plan.root}/",
                f"{host.name}:{project}/{name}/",
            ],
            given=b"".join(os.fsencode(path) + b"\0" for path in sent),
        )
        return name, sorted(ignored)[:_MOST_LINKS]


def quoted(path: str) -> str:
    """Return a path for bash, of which ~ is the home there."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def submit_at(verb: Verb, note: Note, record: Callable[[Connection, str], None]) -> int:
    """Submit at a host, and return the exit code; `record` gets what was printed, before the end of
    the runs is waited for. Where the connection breaks, the same command submits nothing twice."""
    given = verb.argv.index("--") if "--" in verb.argv else len(verb.argv)
    argv = [word for word in verb.argv[:given] if word != "--wait"] + verb.argv[given:]
    with Connection(verb.where.host) as connection:
        name, file = _name_of([verb.where.host.name, os.getcwd(), *verb.argv], note)
        try:
            script = structs.replace(verb, argv=argv).script(connection, name)
            if file is not None:  # from here on the host may have heard of it
                file.write_text(name)
            code, out = connection.call(script, is_captured=True)
        except ConnectionLostError as error:
            raise SchedulerError(
                f"{error.message}; it is not known whether the job was submitted",
                hint="run the same command again: nothing is submitted twice",
            ) from None
        if file is not None:
            file.unlink(missing_ok=True)
        follows = code == 0 and argv != verb.argv
        if not follows:
            sys.stdout.buffer.write(out)
            sys.stdout.flush()
        record(connection, out.decode(errors="replace"))
        if follows:  # by the name, what was submitted is found
            script = structs.replace(verb, tree=None).script(connection, name)
            code, _ = connection.call(script)
        return code


def _name_of(words: list[str], note: Note) -> tuple[str, Path | None]:
    """Return a name for a submission and the file that keeps it until its outcome is known: a new
    name, or, where the connection of the same command broke within a day, the name that it had."""
    name = secrets.token_hex(8)
    digest = hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:32]
    try:
        path = files.user_cache() / "submissions" / digest
        path.parent.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        # It stays open, and locked, as long as this process lives.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, files.PRIVATE_FILE)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, RuntimeError):  # no home, or the same command at work beside this one
        return name, None
    before = os.read(descriptor, 100).decode(errors="replace")
    if before.isalnum() and 0 <= time.time() - os.fstat(descriptor).st_mtime < _UNCLEAR_S:
        note("the connection broke when this was submitted before; it is not submitted again")
        return before, path
    return name, path
