"""Starting one command on every host of a job, for schedulers that start its script on the first
host only, and being for the scheduler what the job is.

A program of the scheduler's runs in the script's place: it starts the command on the first host by
itself, and on the others through the site's launcher, passes signals on, and ends as the first
host's command ends. It imports little: it stands between the scheduler and every job's start.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from hpcdist.base import files
from hpcdist.base.ownership import NotOwnError, check_own_folder
from hpcdist.base.polling import poll
from hpcdist.base.secrets import looks_secret
from hpcdist.cluster.requirement import fill
from hpcdist.machine.process import die_with_parent
from hpcdist.schedulers import tasks
from hpcdist.schedulers.notes import NOTES_VARIABLE, Note, write_note

if TYPE_CHECKING:
    from hpcdist.schedulers.base import JobPlace

HOSTS_VARIABLE = "HPCDIST_JOB_HOSTS"
"""The hosts of the job and their slots, "hostA 8 hostB 8", each host once, in the nodes' order."""
LIFE_VARIABLE = "HPCDIST_JOB_LIFE"
"""Number of starts of the job before this one."""
_NODE_VARIABLES = ("SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_NODEID")
"""Number of the host, by which submitit knows it."""
BEGIN_VARIABLE = "HPCDIST_JOB_BEGIN"
"""Unix time at which the job's script began: what it does first may take minutes."""
FIRST_END_VARIABLE = "HPCDIST_JOB_FIRST_END"
"""Path of a file that is there once the first host's command has ended: where it is not, that host
may be gone. It says how the command ended."""
KILLED, ENDED = "killed", "ended"
"""By the scheduler, which signalled it; or otherwise."""

PLACE_VARIABLE = tasks.PLACE_VARIABLE
_SIGNALS = (signal.SIGUSR2, signal.SIGINT, signal.SIGTERM)
"""Signals that come before a job is ended."""
_PAUSES: dict[int, int] = {signal.SIGTSTP: signal.SIGSTOP, signal.SIGCONT: signal.SIGCONT}
"""Signals by which LSF suspends or resumes a parallel job -> those that stop any process."""
_KILLS = frozenset({signal.SIGINT, signal.SIGTERM})
_NO_SUCH_COMMAND = 127  # as a shell says it
_OF_COMMAND = (1, 2, 126, _NO_SUCH_COMMAND)
"""Exit codes of an agent that cannot begin, or of a shell that does not find its Python."""
_POLL_S = 0.05
_OTHERS_END_S = 60.0
"""Time that the other hosts have to end after the first, before they are ended."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_ONE_HOST = re.compile(
    r"CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|HOSTNAME|HOST|TMPDIR|PWD|OLDPWD|SHLVL|_|DISPLAY"
    r"|SSH_\w+|XDG_\w+|JSM_\w+|PMIX_\w+|LS_\w+"
)
"""Variables that mean the first host, or its shell, alone."""


class Host(NamedTuple):
    name: str
    slots: int


def read_hosts(text: str) -> list[Host]:
    """Return the hosts of "hostA 8 hostB 8 ", in their order; one that is named twice has the slots
    of both."""
    words = text.split()
    slots: dict[str, int] = {}
    for name, number in zip(words[0::2], words[1::2], strict=False):
        slots[name] = slots.get(name, 0) + int(number)
    return [Host(name, number) for name, number in slots.items()]


def place_on_hosts(place: JobPlace) -> JobPlace:
    """Return the place of an agent that was started in this way, with what is known of its host."""
    import msgspec

    hosts = read_hosts(os.environ.get(HOSTS_VARIABLE, ""))
    if not hosts:
        return place
    host = hosts[min(place.node_rank, len(hosts) - 1)]
    return msgspec.structs.replace(
        place,
        num_nodes=len(hosts),
        host=host.name,
        cpus=host.slots,
        age_s=age_of_job(),
    )


def age_of_job() -> float:
    """Return the time for which the job has run, by BEGIN_VARIABLE; 0 where that is not set."""
    begin = os.environ.get(BEGIN_VARIABLE, "")
    return max(0.0, time.time() - float(begin)) if begin else 0.0


def parse_options(arguments: Sequence[str], program: str) -> argparse.Namespace:
    """Return the options of such a program, which its script's template gives; end it where the
    folder that they name is somebody else's."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--logs", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--launcher", required=True)
    parser.add_argument("--first", action="store_true")  # so many of the hosts are enough
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:  # what is written there now is executed on all hosts
        for folder in (Path(options.logs).parent, Path(options.logs)):
            check_own_folder(folder, with_content=False)
    except NotOwnError as error:
        sys.exit(f"hpcdist: {error.message}")
    return options


class Job(NamedTuple):
    """The differences between the programs of schedulers."""

    scheduler: str
    """The name in sentences."""
    hosts: Sequence[Host]
    of_first_task: re.Pattern[str]
    """Variables of what the scheduler has started on the first host."""
    is_launched_by_shell: bool = True
    """A shell on the host reads the command that the launcher is given."""
    tells_secrets: bool = False
    """The launcher brings no environment along: secrets stand in the hosts' private script."""


def run_on_hosts(options: argparse.Namespace, job: Job) -> int:
    """Start the command on all hosts, and wait; return the exit code."""
    hosts = job.hosts
    os.environ[HOSTS_VARIABLE] = " ".join(f"{host.name} {host.slots}" for host in hosts)
    job_files = f"{options.logs}/{options.job}"
    notes = Path(f"{job_files}.notes")
    notes.unlink(missing_ok=True)
    os.environ[NOTES_VARIABLE] = str(notes)
    first_end = Path(f"{job_files}.first_end")
    first_end.unlink(missing_ok=True)
    os.environ[FIRST_END_VARIABLE] = str(first_end)
    if len(hosts) != options.nodes:
        sentence = (
            f"{job.scheduler} gave the job {len(hosts)} hosts, and {options.nodes} were asked for"
        )
        print(f"hpcdist: {sentence}")
        for node in range(len(hosts), options.nodes):
            write_note(Note(node=node, host="none", said=sentence))
    received: list[int] = []
    for signum in (*_SIGNALS, *_PAUSES):
        signal.signal(signum, lambda number, _: received.append(number))
    script = Path(f"{job_files}_host.sh")
    text = host_script(os.environ, os.getcwd(), options.command, job, logs=job_files)
    files.write_whole(script, text)
    started = _StartedCommand(options, job, hosts[: options.nodes], script)
    poll(lambda: started.attend(received) or None, interval_s=_POLL_S)
    with contextlib.suppress(OSError):
        files.write_whole(first_end, started.first_end())
    started.end_others()
    code = started.exit_code()
    try:
        Path(f"{job_files}_exit_code").write_text(f"{code}\n")
    except OSError as error:  # a full disk must not become the job's exit code
        print(f"hpcdist: {error.filename}: {error.strerror}; the exit code is {code}")
    return code


def count_start(logs: str, job: str, index: str) -> int:
    """Return how often the job was started before; one that was submitted anew goes on counting."""
    with Path(logs, f"starts-{index or 0}").open("a+") as file:
        file.seek(0)
        before = len(file.readlines())
        file.write(f"{job}\n")
    return before


# The script for a host.


def host_script(
    environment: Mapping[str, str],
    cwd: str,
    command: Sequence[str],
    job: Job,
    *,
    logs: str,
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
        and (job.tells_secrets or not looks_secret(name, value))
    ]
    umask = os.umask(0o077)
    os.umask(umask)
    lines = [
        f"cd {shlex.quote(cwd)} || exit 1",
        f"umask {umask:04o}",
        *exported,
        *(f'export {name}="$1"' for name in _NODE_VARIABLES),
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
            words.append(fill(word, command=" ".join(quoted), host=host))
    return words


# The commands.


class _Launcher(NamedTuple):
    """A process that starts the command on another host, and lasts as long as it does."""

    host: str
    process: subprocess.Popen[bytes]
    log: Path
    """File with the output of the launcher and of the command."""
    begin: int
    """Length of the log before; a former start of the job may have written to it."""

    def has_not_reached_it(self) -> bool:
        """Return whether the launcher itself has failed, and not what it was to start, whose exit
        codes and those of the host's shell are known: ssh and blaunch end with 255."""
        return self.process.returncode not in _OF_COMMAND

    def describe_end(self) -> str:
        """Return how it ended, with the last line of what was said."""
        words = self.process.args
        name = shlex.join(words[:1] if isinstance(words, list) else [])
        said = self.log.read_bytes()[self.begin :].decode(errors="replace").strip()
        last = f": {said.splitlines()[-1]}" if said else ""
        return f"{name} ended with exit code {self.process.returncode}{last}"


class _StartedCommand:
    """The command on this host, and the launchers of the others."""

    def __init__(
        self, options: argparse.Namespace, job: Job, hosts: Sequence[Host], script: Path
    ) -> None:
        self._options = options
        self._job = job
        self._there: list[subprocess.Popen[bytes]] = []
        self._launchers: dict[int, _Launcher] = {}
        """Node -> launcher, as far as none has been found to have ended."""
        self._is_killed = False
        commands = [["/bin/sh", str(script), str(node)] for node in range(max(1, len(hosts)))]
        self._here = _spawn(commands[0])
        for node, command in enumerate(commands[1:], 1):
            self._launch(hosts[node].name, node, command)

    def _launch(self, host: str, node: int, command: Sequence[str]) -> None:
        template = self._options.launcher
        log = Path(f"{self._options.logs}/{self._options.job}_{node}_log.out")
        try:
            with log.open("ab") as output:
                begin = output.tell()
                words = launch_command(
                    template, command, host=host, is_by_shell=self._job.is_launched_by_shell
                )
                process = _spawn(words, deaf_to=_SIGNALS, said=output)
        except OSError as error:
            said = f"{template} cannot be run: {error.strerror}"
            write_note(Note(node=node, host=host, said=said))
            return
        self._launchers[node] = _Launcher(host, process, log, begin)
        self._there.append(process)

    def attend(self, received: list[int]) -> bool:
        """Pass signals on to the command on this host, and return whether that has ended. Until
        then it is told of launchers that ended with an error."""
        while received:
            self._pass_on(received.pop(0))
        if self._here.poll() is not None:
            return True
        for node, launcher in list(self._launchers.items()):
            if launcher.process.poll() is not None:
                del self._launchers[node]
            if launcher.process.returncode:
                write_note(
                    Note(
                        node=node,
                        host=launcher.host,
                        said=launcher.describe_end(),
                        is_host_lost=launcher.has_not_reached_it(),
                    )
                )
        return False

    def _pass_on(self, number: int) -> None:
        self._is_killed |= number in _KILLS
        if number not in _PAUSES:
            self._here.send_signal(number)  # nothing to one that has ended
            return
        # What runs on this host is stopped, or goes on: its processes have sessions of their own.
        # On other hosts ranks go on to their next exchange with those of this one.
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process().children(recursive=True):
                child.send_signal(_PAUSES[number])

    def first_end(self) -> str:
        """Return how the first host's command ended, for the other hosts' agents."""
        return KILLED if self._is_killed else ENDED

    def exit_code(self) -> int:
        """Return that of the first host's command, as a shell would tell it."""
        code = self._here.returncode
        return 128 - code if code < 0 else code

    def end_others(self) -> None:
        """Wait for the other hosts, and end them where they do not end."""
        poll(
            lambda: all(one.poll() is not None for one in self._there) or None,
            interval_s=_POLL_S,
            limit_s=_OTHERS_END_S,
        )
        for process in self._there:
            process.kill()
            process.wait()


def _spawn(
    words: Sequence[str],
    *,
    deaf_to: Sequence[signal.Signals] = (),
    said: BinaryIO | None = None,
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
