"""Starting one command on every host of an LSF job, and being for LSF what the job is.

LSF runs a job's script on the first host only, and sends its signals there. This runs in the
script's place: it starts the command on the first host by itself, and on the others through the
site's launcher (blaunch), passes LSF's signals on, and ends as the first host's command ends.
It imports little: it stands between LSF and every job's start.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcdist.schedulers.lsf.host_script import host_script
from hpcdist.schedulers.lsf.launchers import (
    NO_SUCH_COMMAND,
    PAUSES,
    POLL_S,
    SIGNALS,
    StartedCommand,
    errors_of,
)
from hpcdist.schedulers.lsf.own_job import (
    HOSTS_VARIABLE,
    LIFE_VARIABLE,
    TASKS_PER_NODE_VARIABLE,
    Host,
    count_start,
    exit_code_for_lsf,
    job_hosts,
)
from hpcdist.schedulers.notes import NOTES_VARIABLE, write_note

_KILLS = frozenset({signal.SIGINT, signal.SIGTERM})
_OTHERS_END_S = 60.0
"""How long the other hosts have to end after the first, before they are ended."""
_KILLED_END_S = 5.0
"""The same for tasks that need not end together, when LSF has ended the job."""


def main() -> None:
    """What the job's script ends in."""
    options = _parse(sys.argv[1:])
    if not options.wait_for_all:
        index = os.environ.get("LSB_JOBINDEX", "")
        os.environ[LIFE_VARIABLE] = str(count_start(options.logs, options.job, index))
    hosts = job_hosts(os.environ["LSB_MCPU_HOSTS"], skip_first=options.skip_first_host)
    os.environ[HOSTS_VARIABLE] = " ".join(f"{host.name} {host.slots}" for host in hosts)
    os.environ[TASKS_PER_NODE_VARIABLE] = str(options.tasks_per_node)
    notes = Path(options.logs, f"{options.job}.notes")
    notes.unlink(missing_ok=True)
    os.environ[NOTES_VARIABLE] = str(notes)
    if len(hosts) != options.nodes:
        sentence = f"LSF gave the job {len(hosts)} hosts, and {options.nodes} were asked for"
        print(f"hpcdist: {sentence}")
        for node in range(len(hosts), options.nodes):
            write_note(node=node, host="none", said=sentence)
    received: list[int] = []
    for signum in (*SIGNALS, *PAUSES):
        signal.signal(signum, lambda number, _: received.append(number))
    try:
        started = _start(options, hosts[: options.nodes])
    except OSError as error:
        print(f"hpcdist: {options.launcher} cannot be run: {error.strerror}")
        sys.exit(NO_SUCH_COMMAND)
    _wait(started, received, for_all=options.wait_for_all)
    started.end_others(_KILLED_END_S if options.wait_for_all else _OTHERS_END_S)
    code = started.exit_code()
    _write_exit_code(Path(options.logs, f"{options.job}_exit_code"), code)
    sys.exit(exit_code_for_lsf(code, os.environ.get("LSB_EXIT_REQUEUE", "")))


def _write_exit_code(file: Path, code: int) -> None:
    """A full disk must not become the job's exit code."""
    try:
        file.write_text(f"{code}\n")
    except OSError as error:
        print(f"hpcdist: {file}: {error.strerror}; the exit code is {code}")


def _start(options: argparse.Namespace, hosts: Sequence[Host]) -> StartedCommand:
    script = Path(options.logs, f"{options.job}_host.sh")
    variable = options.node_rank_variable
    text = host_script(
        os.environ,
        os.getcwd(),
        options.command,
        logs=f"{options.logs}/{options.job}",
        task=f"${{{variable}}}" if variable else "$1",
        errors=errors_of(options),
    )
    script.touch(mode=0o600)
    script.write_text(text)
    return StartedCommand(options, hosts, script)


def _wait(started: StartedCommand, received: Sequence[int], *, for_all: bool) -> None:
    """Until the first host's command has ended, and with `for_all` the others too, unless LSF has
    ended the job: it does not tell the other hosts."""
    first = started.here[0]
    passed_on = 0
    while True:
        is_over = first.poll() is not None and (
            not for_all or started.are_all_ended() or not _KILLS.isdisjoint(received)
        )
        while passed_on < len(received):
            started.signal(received[passed_on])
            passed_on += 1
        if is_over:
            return
        started.note_failed_launches()
        time.sleep(POLL_S)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lsf_hosts")
    parser.add_argument("--logs", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--tasks-per-node", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--launcher", required=True)
    parser.add_argument("--node-rank-variable")
    parser.add_argument("--skip-first-host", action="store_true")
    parser.add_argument("--wait-for-all", action="store_true")
    parser.add_argument("--separate-stderr", action="store_true")
    parser.add_argument("command", nargs="+")
    return parser.parse_args(arguments)
