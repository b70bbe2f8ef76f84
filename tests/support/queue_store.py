"""What the stand-ins of LSF and PBS have in common: jobs in a file, and processes known by marks.

Each is one program under the names of the scheduler's commands. Every job has a process of its
own, a `mom`, which waits until the job may start, starts it, ends it in time and notes its end.
"""

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path


class Store:
    """What all commands and moms of a site know, in one file of its folder."""

    def __init__(self, folder, begin):
        self.folder, self._begin = Path(folder), begin

    @contextlib.contextmanager
    def __call__(self):
        """All of it, to be looked at and changed by one process at a time."""
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self.folder / "jobs.json"
            before = path.read_text() if path.exists() else json.dumps(self._begin)
            found = json.loads(before)
            try:
                yield found
            finally:
                if (after := json.dumps(found)) != before:
                    path.with_suffix(".new").write_text(after)
                    path.with_suffix(".new").rename(path)


def marked(**variables):
    """Processes that were started with these variables."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted <= set(path.read_bytes().split(b"\0")):
                yield int(path.parent.name)


def signal_all(signum, **variables):
    """Signal them; returns whether there were any."""
    pids = [pid for pid in marked(**variables) if pid != os.getpid()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
    return bool(pids)


def write_programs(folder, program, names, variable, site):
    """Put commands of these names into a folder; each knows its site by the variable."""
    folder.mkdir()
    for name in names:
        run = f'exec "{sys.executable}" -I -S "{program}" {name} "$@"'
        (folder / name).write_text(f"#!/bin/sh\nexport {variable}='{site}'\n{run}\n")
        (folder / name).chmod(0o755)
