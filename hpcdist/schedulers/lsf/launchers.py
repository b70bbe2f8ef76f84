"""The copies of one command on the hosts of a job: started, told of signals, and ended."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hpcdist.cluster.requirement import fill
from hpcdist.machine.process import die_with_parent
from hpcdist.schedulers.lsf.own_job import Host
from hpcdist.schedulers.notes import write_note

SIGNALS = (signal.SIGUSR2, signal.SIGINT, signal.SIGTERM)
"""What a job is told by before it is ended."""
PAUSES: dict[int, int] = {signal.SIGTSTP: signal.SIGSTOP, signal.SIGCONT: signal.SIGCONT}
"""What LSF sends to a parallel job that it suspends or resumes -> what stops anybody."""
NO_SUCH_COMMAND = 127  # as a shell says it
POLL_S = 0.05


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


class StartedCommand:
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
        return _spawn(words, deaf_to=SIGNALS if self._notes_tell_signals() else ())

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
        end = errors_of(self._options) or ".out"
        log = f"{self._options.logs}/{self._options.job}_{task}_log{end}"
        with open(log, "ab") as said:
            begin = said.tell()
            process = _spawn(words, deaf_to=SIGNALS, said=said)
        return _Launcher(host=host.name, process=process, log=Path(log), begin=begin)

    def signal(self, number: int) -> None:
        """LSF has sent a signal.

        A launcher of all hosts would end by it, and take the ranks along before they have saved,
        or keep it to itself: there a note tells it to the first agent. Functions read no notes.
        """
        if number in PAUSES:
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
                process.send_signal(PAUSES[number])

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
        codes += [NO_SUCH_COMMAND] if self._is_incomplete else []
        is_told = codes if self._options.wait_for_all else codes[:1]
        code = next(filter(None, is_told), 0)
        return 128 - code if code < 0 else code

    def end_others(self, limit_s: float) -> None:
        """Wait for the other hosts, and end them where they do not end."""
        deadline = time.monotonic() + limit_s
        processes = self._there + self.here[1:]
        while any(one.poll() is None for one in processes) and time.monotonic() < deadline:
            time.sleep(POLL_S)
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


def errors_of(options: argparse.Namespace) -> str:
    """The end of the name of the file for standard error; empty where it has none of its own."""
    return ".err" if options.separate_stderr else ""
