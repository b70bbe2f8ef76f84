"""Starting one command on every host of an LSF job, and being for LSF what the job is.

LSF runs a job's script on the first host only, and sends its signals there. This runs in the
script's place: it starts the command on the first host by itself, and on the others through the
site's launcher (blaunch), passes LSF's signals on, and ends as the first host's command ends.
It imports little: it stands between LSF and every job's start.
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
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hpcdist.cluster.placeholders import fill
from hpcdist.death_signal import die_with_parent
from hpcdist.launch.notes import NOTES_VARIABLE, write_note
from hpcdist.secrets import looks_secret

HOSTS_VARIABLE = "HPCDIST_LSF_HOSTS"
"""The hosts and slots of the job, as LSB_MCPU_HOSTS has them, each host once."""
LIFE_VARIABLE = "HPCDIST_LSF_LIFE"
"""How often LSF had started the job before."""
TASK_VARIABLE = "HPCDIST_LSF_TASK"
"""Number of the command's copy, counted over all hosts."""
TASKS_PER_NODE_VARIABLE = "HPCDIST_LSF_TASKS_PER_NODE"

_KILLS = frozenset({signal.SIGINT, signal.SIGTERM})
_SIGNALS = (signal.SIGUSR2, *sorted(_KILLS))
_PAUSES: dict[int, int] = {signal.SIGTSTP: signal.SIGSTOP, signal.SIGCONT: signal.SIGCONT}
"""What LSF sends to a parallel job that it suspends or resumes -> what stops anybody."""
_OTHERS_END_S = 60.0
"""How long the other hosts have to end after the first, before they are ended."""
_KILLED_END_S = 5.0
"""The same for tasks that need not end together, when LSF has ended the job."""
_POLL_S = 0.05
_NO_SUCH_COMMAND = 127  # as a shell says it
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_ONE_HOST = re.compile(
    r"CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|HOSTNAME|HOST|TMPDIR|PWD|OLDPWD|SHLVL|_|DISPLAY"
    r"|SSH_\w+|XDG_\w+|JSM_\w+|PMIX_\w+|LS_\w+"
)
"""Variables that mean the first host, or its shell, alone."""
_OF_FIRST_TASK = re.compile(
    r"LSB_(?!(?:JOBID|JOBINDEX|JOBNAME|QUEUE|MCPU_HOSTS|HOSTS|SUB_HOST|DJOB_\w+)$)\w+"
)
"""Variables that mean what LSF has started there."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host of the job."""

    name: str
    slots: int


def job_hosts(text: str, *, skip_first: bool = False) -> list[Host]:
    """The hosts of LSB_MCPU_HOSTS, "hostA 8 hostB 8 ", in their order; one that is named twice has
    the slots of both.

    `skip_first` is for sites whose first host only launches (IBM CSM). Source: IBM Spectrum LSF
    10.1 documentation, Environment variables set for job execution.
    """
    words = text.split()
    slots: dict[str, int] = {}
    for name, number in zip(words[0::2], words[1::2], strict=False):
        slots[name] = slots.get(name, 0) + int(number)
    hosts = [Host(name=name, slots=number) for name, number in slots.items()]
    return hosts[1:] if skip_first else hosts


def host_script(
    environment: Mapping[str, str],
    cwd: str,
    command: Sequence[str],
    *,
    logs: str,
    task: str,
    errors: str = "",
) -> str:
    """What the launcher starts: a script that makes the directory and the environment its own.

    A launcher may bring neither along, and may go through a login shell of whatever kind: so it is
    given a path and a number, and nothing that needs quoting. `task` is what the number is in the
    script, `errors` the end of the name of the file for standard error, where it has one of its
    own. Variables that look secret are left out: a launcher that brings the environment along
    brings them.
    """
    exported = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(environment.items())
        if _NAME.fullmatch(name)
        and not means_first_host(name)
        and not _OF_FIRST_TASK.fullmatch(name)
        and not looks_secret(name, value)
    ]
    log = shlex.quote(logs) + f'"_${{{TASK_VARIABLE}}}_log'
    lines = [
        f"cd {shlex.quote(cwd)} || exit 1",
        *exported,
        f'export {TASK_VARIABLE}="{task}"',
        f'exec >> {log}.out" ' + (f'2>> {log}{errors}"' if errors else "2>&1"),
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def means_first_host(name: str) -> bool:
    """Whether a variable of the job's first host, such as TMPDIR, would be wrong on any other."""
    return bool(_OF_ONE_HOST.fullmatch(name))


def launch_command(template: str, command: Sequence[str], **values: str | int) -> list[str]:
    """The words of a launcher's command line.

    One that is told a host goes through a shell there, as rsh, ssh and blaunch do: what is not
    plain is quoted for it. One for all hosts (jsrun) executes the words as they are.
    """
    quoted = [shlex.quote(word) for word in command]
    words: list[str] = []
    for word in shlex.split(template):
        if word == "{command}":
            words += quoted if "{host}" in template else command
        else:
            words.append(fill(word, command=" ".join(quoted), **values))
    return words


def exit_code_for_lsf(code: int, requeued: str) -> int:
    """The exit code that LSF is told: never one for which it would start the job again.

    `requeued` is LSB_EXIT_REQUEUE: codes, or `all` but some (`all ~1`), and EXCLUDE(codes). A job
    that was killed, or stopped for good, must not come back; what is to come back is requeued by
    name.
    """
    if code == 0:
        return 0
    return next((one for one in (code, *range(1, 256)) if not _requeues(one, requeued)), code)


def _requeues(code: int, requeued: str) -> bool:
    words = requeued.replace("EXCLUDE(", " ").replace(")", " ").split()
    return f"~{code}" not in words and (str(code) in words or "all" in words)


def count_start(logs: str, job: str, index: str) -> int:
    """How often the job was started before; a job that was submitted anew goes on counting."""
    with Path(logs, f"starts-{index or 0}").open("a+") as file:
        file.seek(0)
        before = len(file.readlines())
        file.write(f"{job}\n")
    return before


@dataclass(frozen=True, kw_only=True)
class _Launcher:
    """What starts the command on another host, and lasts as long as it does."""

    host: str
    process: subprocess.Popen[bytes]
    log: Path
    """Of the launcher and of the command."""
    begin: int
    """Length of the log before; a former start of the job may have written to it."""

    def end_in_words(self) -> str:
        """How it ended, with the last line of what was said."""
        words = self.process.args
        name = shlex.join(words[:1] if isinstance(words, list) else [])
        said = self.log.read_bytes()[self.begin :].decode(errors="replace").strip()
        last = f": {said.splitlines()[-1]}" if said else ""
        return f"{name} ended with exit code {self.process.returncode}{last}"


class _Started:
    """The command's copies: those on this host, and the launchers of the others."""

    def __init__(self, options: argparse.Namespace, hosts: Sequence[Host], script: Path) -> None:
        self._options = options
        self._script = script
        self.here: list[subprocess.Popen[bytes]] = []
        self._there: list[subprocess.Popen[bytes]] = []
        self._launchers: dict[int, _Launcher] = {}
        self._is_incomplete = False
        per_node = options.tasks_per_node
        if "{host}" not in options.launcher:
            self.here.append(self._launch_all(hosts))
            return
        for task in range(per_node):
            self.here.append(_spawn(["/bin/sh", str(script), str(task)]))
        for task in range(per_node, per_node * len(hosts)):
            self._try_to_launch(hosts[task // per_node], task)

    def _try_to_launch(self, host: Host, task: int) -> None:
        try:
            launcher = self._launch(host, task)
        except OSError as error:
            self._is_incomplete = True
            write_note(
                node=task // self._options.tasks_per_node,
                host=host.name,
                said=f"{self._options.launcher} cannot be run: {error.strerror}",
            )
        else:
            self._launchers[task] = launcher
            self._there.append(launcher.process)

    def _launch_all(self, hosts: Sequence[Host]) -> subprocess.Popen[bytes]:
        words = launch_command(
            self._options.launcher,
            ["/bin/sh", str(self._script)],
            nodes=len(hosts),
            cpus=hosts[0].slots,
            gpus=self._options.gpus,
        )
        return _spawn(words, deaf_to=_SIGNALS if self._notes_tell_signals() else ())

    def _notes_tell_signals(self) -> bool:
        return "{host}" not in self._options.launcher and not self._options.wait_for_all

    def _launch(self, host: Host, task: int) -> _Launcher:
        words = launch_command(
            self._options.launcher,
            ["/bin/sh", str(self._script), str(task)],
            host=host.name,
            nodes=self._options.nodes,
            cpus=host.slots,
            gpus=self._options.gpus,
        )
        end = _errors_of(self._options) or ".out"
        log = f"{self._options.logs}/{self._options.job}_{task}_log{end}"
        with open(log, "ab") as said:
            begin = said.tell()
            process = _spawn(words, deaf_to=_SIGNALS, said=said)
        return _Launcher(host=host.name, process=process, log=Path(log), begin=begin)

    def signal(self, number: int) -> None:
        """LSF has sent a signal.

        A launcher of all hosts would end by it, and take the ranks along before they have saved,
        or keep it to itself: there a note tells it to the first agent. Functions read no notes.
        """
        if number in _PAUSES:
            self._pause(number)
        elif self._notes_tell_signals():
            write_note(signal=signal.Signals(number).name)
        else:
            for process in self.here:
                process.send_signal(number)  # nothing to one that has ended

    def _pause(self, number: int) -> None:
        """Stop what runs on this host, or have it go on: its processes have sessions of their own.
        On other hosts ranks go on to their next exchange with those of this one."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process().children(recursive=True):
                process.send_signal(_PAUSES[number])

    def note_failed_launches(self) -> None:
        """Tell the first host's command of launchers that ended with an error."""
        for task, launcher in list(self._launchers.items()):
            if launcher.process.poll() is not None:
                del self._launchers[task]
            if launcher.process.returncode:
                node = task // self._options.tasks_per_node
                write_note(node=node, host=launcher.host, said=launcher.end_in_words())

    def are_all_ended(self) -> bool:
        """The copies on all hosts, as far as the launchers tell."""
        return all(one.poll() is not None for one in self.here + self._there)

    def exit_code(self) -> int:
        """Of the first host's command, as a shell would tell it, where all have to end well that of
        the first that did not."""
        codes = [one.returncode or 0 for one in self.here + self._there]
        codes += [_NO_SUCH_COMMAND] if self._is_incomplete else []
        is_told = codes if self._options.wait_for_all else codes[:1]
        code = next(filter(None, is_told), 0)
        return 128 - code if code < 0 else code

    def end_others(self, limit_s: float) -> None:
        """Wait for the other hosts, and end them where they do not end."""
        deadline = time.monotonic() + limit_s
        processes = self._there + self.here[1:]
        while any(one.poll() is None for one in processes) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for process in processes:
            process.kill()
            process.wait()


def _spawn(
    words: Sequence[str],
    *,
    deaf_to: Sequence[signal.Signals] = (),
    said: BinaryIO | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, so that it gets LSF's signals from here, and once;
    where this process is killed, it is too.

    A launcher that is ended by a signal takes its host's ranks along before they have saved: it is
    to be deaf to what LSF sends, wherever LSF finds it.
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
    for signum in (*_SIGNALS, *_PAUSES):
        signal.signal(signum, lambda number, _: received.append(number))
    try:
        started = _start(options, hosts[: options.nodes])
    except OSError as error:
        print(f"hpcdist: {options.launcher} cannot be run: {error.strerror}")
        sys.exit(_NO_SUCH_COMMAND)
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


def _start(options: argparse.Namespace, hosts: Sequence[Host]) -> _Started:
    script = Path(options.logs, f"{options.job}_host.sh")
    variable = options.node_rank_variable
    text = host_script(
        os.environ,
        os.getcwd(),
        options.command,
        logs=f"{options.logs}/{options.job}",
        task=f"${{{variable}}}" if variable else "$1",
        errors=_errors_of(options),
    )
    script.touch(mode=0o600)
    script.write_text(text)
    return _Started(options, hosts, script)


def _wait(started: _Started, received: Sequence[int], *, for_all: bool) -> None:
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
        time.sleep(_POLL_S)


def _errors_of(options: argparse.Namespace) -> str:
    """The end of the name of the file for standard error; empty where it has none of its own."""
    return ".err" if options.separate_stderr else ""


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
