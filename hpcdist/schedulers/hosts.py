"""Starting one command on every host of a job, for schedulers that start its script on the first
host only, and being for the scheduler what the job is.

This program runs in the script's place: it starts the command on the first host by itself, and on
the others through the site's launcher, passes signals on, and ends as the first host's command
ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hpcdist.base import files
from hpcdist.base.ownership import NotOwnError, check_own_folder
from hpcdist.base.secrets import looks_secret
from hpcdist.machine.process import die_with_parent
from hpcdist.schedulers.notes import NOTES_VARIABLE, Note, write_note
from hpcdist.schedulers.tasks import NODE_VARIABLE, end_unless_adopted, own_place

HOSTS_VARIABLE = "HPCDIST_JOB_HOSTS"
"""The hosts of the job and their slots, "hostA 8 hostB 8", each host once, in the nodes' order."""
LIFE_VARIABLE = "HPCDIST_JOB_LIFE"
"""Number of starts of the job before this one."""
BEGIN_VARIABLE = "HPCDIST_JOB_BEGIN"
"""Unix time at which the job's script began: what it does first may take minutes."""
FIRST_END_VARIABLE = "HPCDIST_JOB_FIRST_END"
"""Path of a file that is there once the first host's command has ended: where it is not, that host
may be gone. It says how the command ended."""
KILLED, ENDED = "killed", "ended"
"""By the scheduler, which signalled it; or otherwise."""

_SIGNALS = (signal.SIGUSR2, signal.SIGINT, signal.SIGTERM)
"""Signals that come before a job is ended."""
_KILLS = frozenset({signal.SIGINT, signal.SIGTERM})
_OF_COMMAND = (1, 2, 126, 127)
"""Exit codes of an agent that cannot begin, or of a shell that does not find its Python."""
_POLL_S = 0.05
_OTHERS_END_S = 60.0
"""Time that the other hosts have to end after the first, before they are ended."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_ONE_HOST = re.compile(
    r"CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|HOSTNAME|HOST|TMPDIR|PWD|OLDPWD|SHLVL|_|DISPLAY"
    r"|SSH_\w+|XDG_\w+|JSM_\w+|PMIX_\w+"
)
"""Variables that mean the first host, or its shell, alone."""


class Host(NamedTuple):
    name: str
    slots: int


def read_hosts(text: str) -> list[Host]:
    """Return the hosts of "hostA 8 hostB 8 ", in their order."""
    words = text.split()
    pairs = zip(words[0::2], words[1::2], strict=False)
    return [Host(name, int(number)) for name, number in pairs]


def age_of_job() -> float:
    """Return the time for which the job has run, by BEGIN_VARIABLE; 0 where that is not set."""
    begin = os.environ.get(BEGIN_VARIABLE, "")
    return max(0.0, time.time() - float(begin)) if begin else 0.0


def main() -> None:
    """Start the command on all hosts of a job, and wait: the last line of its script."""
    from hpcdist.schedulers import load_scheduler

    options = _parse_options(sys.argv[1:])
    scheduler, place = load_scheduler(options.scheduler), own_place()
    end_unless_adopted(Path(options.logs), place, str(scheduler.own_job_id()))
    os.environ[LIFE_VARIABLE] = str(count_start(options.logs, options.job, place))
    code = run_on_hosts(options, scheduler.job_on_hosts())
    sys.exit(0 if end_well_file(Path(options.logs), options.job).exists() else code)


def end_well_file(logs: Path, job: str) -> Path:
    """Return the file that is there where a job is to end well, whatever its run's exit code: the
    run goes on as another job, and others wait for its success."""
    return logs / f"{job}.well"


def _parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, which the script's template gives; end this process where the folder that
    they name is somebody else's."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--logs", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--launcher", required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:  # what is written there now is executed on all hosts
        for folder in (Path(options.logs).parent, Path(options.logs)):
            check_own_folder(folder, with_content=False)
    except NotOwnError as error:
        sys.exit(f"hpcdist: {error.message}")
    return options


class Job(NamedTuple):
    """The hosts of a job, and the differences between schedulers."""

    hosts: Sequence[Host]
    of_first_task: re.Pattern[str]
    """Variables of what the scheduler has started on the first host."""
    is_bare: bool = False
    """The launcher brings neither a shell, which would read the command that it is given, nor an
    environment along: secrets stand in the hosts' private script."""


class _Launcher(NamedTuple):
    """A process that starts the command on another host and lasts as long as it does."""

    node: int
    process: subprocess.Popen[bytes]
    log: Path
    """Has the output of both."""
    begin: int
    """Length of the log before."""


def run_on_hosts(options: argparse.Namespace, job: Job) -> int:
    """Start the command on all hosts, and wait; return the exit code of the first host's, as a
    shell would tell it."""
    # The job of a shell may have more hosts than the run takes.
    nodes, job_files = options.nodes, f"{options.logs}/{options.job}"
    hosts = job.hosts[:nodes]
    os.environ[HOSTS_VARIABLE] = " ".join(f"{host.name} {host.slots}" for host in hosts)
    notes, first_end = Path(f"{job_files}.notes"), Path(f"{job_files}.first_end")
    os.environ |= {NOTES_VARIABLE: str(notes), FIRST_END_VARIABLE: str(first_end)}
    for of_former_life in (notes, first_end):
        of_former_life.unlink(missing_ok=True)
    received: list[int] = []
    for signum in _SIGNALS:
        signal.signal(signum, lambda number, _: received.append(number))
    script = Path(f"{job_files}_host.sh")
    text = host_script(os.environ, os.getcwd(), options.command, job, logs=job_files)
    files.write_whole(script, text)
    here, is_killed = _spawn(["/bin/sh", str(script), "0"]), False
    launchers = list(_launch(options, job, script))
    others = [one.process for one in launchers]
    while here.poll() is None:
        while received:
            number = received.pop(0)
            is_killed |= number in _KILLS
            here.send_signal(number)  # nothing to one that has ended
        for one in [one for one in launchers if one.process.poll() is not None]:
            launchers.remove(one)
            _note_end(one, hosts[one.node].name)
        time.sleep(_POLL_S)
    with contextlib.suppress(OSError):
        files.write_whole(first_end, KILLED if is_killed else ENDED)
    limit_s = time.monotonic() + _OTHERS_END_S
    while time.monotonic() < limit_s and any(one.poll() is None for one in others):
        time.sleep(_POLL_S)
    for process in others:
        process.kill()
        process.wait()
    return 128 - here.returncode if here.returncode < 0 else here.returncode


def _launch(options: argparse.Namespace, job: Job, script: Path) -> Iterator[_Launcher]:
    """Start the script on all hosts but the first; note where that cannot be."""
    for node, host in enumerate(job.hosts[1 : options.nodes], 1):
        command = ["/bin/sh", str(script), str(node)]
        words = launch_command(
            options.launcher, command, host=host.name, is_by_shell=not job.is_bare
        )
        log = Path(f"{options.logs}/{options.job}_{node}_log.out")
        try:
            with log.open("ab") as output:
                begin = output.tell()  # a former start of the job may have written to it
                yield _Launcher(node, _spawn(words, _SIGNALS, output), log, begin)
        except OSError as error:
            said = f"{options.launcher} cannot be run: {error.strerror}"
            write_note(Note(node=node, host=host.name, said=said))


def _note_end(launcher: _Launcher, host: str) -> None:
    """Note how a launcher has failed, if it has, with the last line of what was said. The exit
    codes of what it starts and of the host's shell are known; others mean that it has not reached
    the host."""
    code, words = launcher.process.returncode, launcher.process.args
    if code != 0 and isinstance(words, list):
        text = launcher.log.read_bytes()[launcher.begin :].decode(errors="replace")
        last = "".join(f": {line}" for line in text.strip().splitlines()[-1:])
        said = f"{shlex.join(words[:1])} ended with exit code {code}{last}"
        lost = code not in _OF_COMMAND
        write_note(Note(node=launcher.node, host=host, said=said, is_host_lost=lost))


def _spawn(
    words: Sequence[str], deaf_to: Sequence[signal.Signals] = (), said: BinaryIO | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, so that it gets the signals from here, and once;
    where this process is killed, it is too.

    A launcher that is ended by a signal takes its host's ranks along before they have saved: it is
    to be deaf to what the scheduler sends, wherever that finds it.
    """
    parent = os.getpid()

    def become_child() -> None:
        die_with_parent(parent)
        for signum in deaf_to:
            signal.signal(signum, signal.SIG_IGN)

    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        start_new_session=True,
        preexec_fn=become_child,  # noqa: PLW1509 - there are no threads here
    )


def count_start(logs: str, job: str, place: int) -> int:
    """Return how often the job was started before; one that was submitted anew goes on counting."""
    with Path(logs, f"starts-{place}").open("a+") as file:
        file.seek(0)
        before = len(file.readlines())
        file.write(f"{job}\n")
    return before


# The script for a host.


def host_script(
    environment: Mapping[str, str], cwd: str, command: Sequence[str], job: Job, *, logs: str
) -> str:
    """Return what the launcher starts: a script that makes the directory and the environment its
    own, and is given the number of its host.

    A launcher may bring neither along, and may go through a login shell of whatever kind: so it is
    given a path and a number, and nothing that needs quoting. Variables that look secret are left
    out, unless `job` says that nothing else brings them.
    """
    exported = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(environment.items())
        if _NAME.fullmatch(name)
        and not means_first_host(name)
        and not job.of_first_task.fullmatch(name)
        and (job.is_bare or not looks_secret(name, value))
    ]
    umask = os.umask(0o077)
    os.umask(umask)
    lines = [
        f"cd {shlex.quote(cwd)} || exit 1",
        f"umask {umask:04o}",
        *exported,
        f'export {NODE_VARIABLE}="$1"',
        f'exec >> {shlex.quote(logs)}"_$1_log.out" 2>&1',
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def means_first_host(name: str) -> bool:
    """Return whether a variable of the first host, such as TMPDIR, would be wrong on others."""
    return bool(_OF_ONE_HOST.fullmatch(name))


def launch_command(
    template: str, command: Sequence[str], *, host: str, is_by_shell: bool = True
) -> list[str]:
    """Return the words of a launcher's command line.

    rsh, ssh and blaunch go through a shell on the host: what is not plain is quoted for it.
    """
    quoted = [shlex.quote(word) if is_by_shell else word for word in command]
    words: list[str] = []
    for word in shlex.split(template):
        if word == "{command}":
            words += quoted
        else:
            words.append(word.replace("{host}", host).replace("{command}", " ".join(quoted)))
    return words
