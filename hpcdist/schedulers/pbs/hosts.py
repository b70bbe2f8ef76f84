"""One agent on every host of a PBS job: PBS runs a job's script on the first host only. This
program runs in the script's place, and starts the agents of the others by pbs_tmrsh, which tells
how they ended; pbsdsh does not."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from hpcdist.schedulers import hosts
from hpcdist.schedulers.tasks import PLACE_VARIABLE, end_unless_adopted, own_place

_OF_FIRST_TASK = re.compile(r"PBS_(?!JOBID$|JOBNAME$|QUEUE$|O_\w+$|NODEFILE$|ARRAY_\w+$)\w+|NCPUS")


def main() -> None:
    """Start the command on all hosts, and wait: the last line of the job's script."""
    options = hosts.parse_options(sys.argv[1:], "pbs_hosts")
    successor = successor_file(Path(options.logs), options.job)
    if successor.exists():
        print("hpcdist: another job goes on with this run, and this one has nothing to do")
        sys.exit(0)
    place = os.environ.get(PLACE_VARIABLE, "")
    end_unless_adopted(Path(options.logs), own_place(), own_id())
    os.environ[hosts.LIFE_VARIABLE] = str(hosts.count_start(options.logs, options.job, place))
    slots = int(os.environ.get("NCPUS") or 1)
    given = [hosts.Host(name, slots) for name in read_nodefile(Path(os.environ["PBS_NODEFILE"]))]
    # The job of a shell may have more hosts than the run takes.
    first = given[: options.nodes]
    job = hosts.Job("PBS", first, _OF_FIRST_TASK, is_bare=True)
    code = hosts.run_on_hosts(options, job)
    sys.exit(int(successor.read_text()) if successor.exists() else code)


def own_id() -> str:
    """Return the id of the job that this process is part of, without the server."""
    return os.environ["PBS_JOBID"].partition(".")[0]


def read_nodefile(path: Path) -> list[str]:
    """Return the hosts of PBS_NODEFILE in their order, each once: it has one line per mpiprocs."""
    return list(dict.fromkeys(path.read_text().split()))


def successor_file(logs: Path, job: str) -> Path:
    """Return the file that is there once the run of a job goes on as another: where a host was
    lost, PBS may start the first one again all the same. It holds the exit code of the first."""
    return logs / f"{job}.successor"
