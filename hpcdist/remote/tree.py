"""The work tree on its way to a host, by rsync.

<project>/.tree-<8 digits>/    readable only, as the copies that runs have of it
<project>/.tree-last           a link to the newest: what is as there, is not sent again
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.base.ownership import is_own
from hpcdist.remote.request import Request
from hpcdist.remote.ssh import Connection, Where, copy
from hpcdist.runs.run import DEFAULT_RUNS
from hpcdist.runs.snapshot import RECEIVED, SnapshotPlan, parents_of

_LAST = ".tree-last"
_KEPT_S = 86400.0
_MOST_LINKS = 1000
_MODES = "Du=rwx,Dgo=,Fu-w,Fgo="


def send(connection: Connection, plan: SnapshotPlan, where: Where) -> tuple[str, list[str]]:
    """Copy a work tree into the project's folder at a host; return the name of the folder there,
    and the paths that git ignores, which are not sent."""
    name = f".tree-{secrets.token_hex(4)}"
    # What git ignores is a link to the original.
    ignored = {
        path for path, target in plan.targets.items() if target == os.path.join(plan.root, path)
    }
    sent = [path for path in plan.targets if path not in ignored]
    for path in sent:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{path!r} cannot be sent to a host: it is not UTF-8",
                hint="rename the file, or have git ignore it",
            ) from None
    folder = where.host.folder.removeprefix("~/")
    project = f"{folder}/{where.project}"
    copy(
        connection,
        [
            *("-clpt", f"--chmod={_MODES}", "--files-from=-", "--from0"),
            f"--link-dest=../{_LAST}",
            f"--rsync-path=cd; umask 077; mkdir -p {shlex.quote(project)} && rsync",
            f"{plan.root}/",
            f"{where.host.name}:{project}/{name}/",
        ],
        given=b"".join(os.fsencode(path) + b"\0" for path in sent),
    )
    return name, sorted(ignored)


def arrive(request: Request, project: Path, runs: Path) -> Path:
    """Return the folder of a work tree that has come, for the command to work in, with links to
    what lies in the project's folder and was not sent; older ones are removed."""
    assert request.tree is not None
    root = project / request.tree
    if not RECEIVED.fullmatch(request.tree):
        raise SchedulerError(f"{request.tree!r} is not the name of a work tree")
    root.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)  # of no file
    for path, target in _links(request, project, runs, root):
        os.symlink(target, path)
    aside = project / f"{_LAST}.{secrets.token_hex(4)}"
    aside.symlink_to(request.tree)
    os.replace(aside, project / _LAST)
    for name in files.list_names(project):
        old = project / name
        with suppress(OSError):
            is_old = RECEIVED.fullmatch(name) and time.time() - old.lstat().st_mtime > _KEPT_S
            if is_old and old != root and is_own(old):
                shutil.rmtree(old)
    os.utime(root)
    return root / request.within


def _links(request: Request, project: Path, runs: Path, root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield links to make, and where they lead."""
    taken = {os.path.relpath(runs, project), DEFAULT_RUNS}
    names = [name for name in sorted(files.list_names(project)) if not name.startswith(".")]
    for path in [*names, *request.ignored][:_MOST_LINKS]:
        parents = [root / parent for parent in parents_of(path)]
        is_nested = bool(parents) and not parents[0].is_dir()
        is_through_link = any(parent.is_symlink() for parent in parents)
        if path in taken or is_nested or is_through_link or os.path.lexists(root / path):
            continue
        if ".." not in path.split("/") and os.path.lexists(project / path):
            yield root / path, project / path
