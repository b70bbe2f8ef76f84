"""Starting one command on every host of an LSF job, and being for LSF what the job is.

LSF runs a job's script on the first host only, and sends its signals there. This runs in the
script's place: it starts the command on the first host by itself, and on the others through the
site's launcher (blaunch), passes LSF's signals on, and ends as the first host's command ends.
It imports little: it stands between LSF and every job's start.
"""

from __future__ import annotations

import argparse
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

_SIGNALS = (signal.SIGUSR2, signal.SIGINT, signal.SIGTERM)
_OTHERS_END_S = 60.0
"""How long the other hosts have to end after the first, before they are ended."""
_POLL_S = 0.05
_LONGEST_LINE = 300
"""What is shown of what a launcher said; its log has all."""
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
    environment: Mapping[str, str], cwd: str, command: Sequence[str], *, logs: str, task: str
) -> str:
    """What the launcher starts: a script that makes the directory and the environment its own.

    A launcher may bring neither along, and may go through a login shell of whatever kind: so it is
    given a path and a number, and nothing that needs quoting. `task` is what the number is in the
    script. Variables that look secret are left out: a launcher that brings the environment along
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
    lines = [
        f"cd {shlex.quote(cwd)} || exit 1",
        *exported,
        f'export {TASK_VARIABLE}="{task}"',
        f'exec >> {shlex.quote(logs)}"_${{{TASK_VARIABLE}}}_log.out" 2>&1',
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


class _Started:
    """The command's copies: those on this host, and the launchers of the others."""

    def __init__(self, options: argparse.Namespace, hosts: Sequence[Host], script: Path) -> None:
        self._options = options
        self._script = script
        self.here: list[subprocess.Popen[bytes]] = []
        self._launchers: dict[int, tuple[Host, subprocess.Popen[bytes]]] = {}
        per_node = options.tasks_per_node
        if "{host}" not in options.launcher:
            self.here.append(self._launch_all(hosts))
            return
        for task in range(per_node):
            self.here.append(_spawn(["/bin/sh", str(script), str(task)]))
        for task in range(per_node, per_node * len(hosts)):
            host = hosts[task // per_node]
            self._launchers[task] = (host, self._launch(host, task))

    def _launch_all(self, hosts: Sequence[Host]) -> subprocess.Popen[bytes]:
        words = launch_command(
            self._options.launcher,
            ["/bin/sh", str(self._script)],
            nodes=len(hosts),
            cpus=hosts[0].slots,
            gpus=self._options.gpus,
        )
        return _spawn(words)

    def _launch(self, host: Host, task: int) -> subprocess.Popen[bytes]:
        words = launch_command(
            self._options.launcher,
            ["/bin/sh", str(self._script), str(task)],
            host=host.name,
            nodes=self._options.nodes,
            cpus=host.slots,
            gpus=self._options.gpus,
        )
        with self._log(task).open("ab") as said:
            return _spawn(words, deaf_to=_SIGNALS, said=said)

    def _log(self, task: int) -> Path:
        return Path(self._options.logs, f"{self._options.job}_{task}_log.out")

    def signal(self, number: int) -> None:
        """LSF has sent a signal."""
        if "{host}" not in self._options.launcher:  # the launcher may keep it to itself
            write_note(signal=signal.Signals(number).name)
        for process in self.here:
            process.send_signal(number)  # nothing to one that has ended

    def note_failed_launches(self) -> None:
        """Tell the first host's command of launchers that ended with an error."""
        for task, (host, process) in list(self._launchers.items()):
            if process.poll() is not None:
                del self._launchers[task]
            if process.returncode:
                words = shlex.join(process.args[:1] if isinstance(process.args, list) else [])
                end = f"{words} ended with exit code {process.returncode}"
                last = _last_line(self._log(task))
                write_note(
                    node=task // self._options.tasks_per_node,
                    host=host.name,
                    said=f"{end}: {last}" if last else end,
                )

    def end_others(self) -> None:
        """Wait for the other hosts, and end them where they do not end."""
        deadline = time.monotonic() + _OTHERS_END_S
        processes = [process for _, process in self._launchers.values()] + self.here[1:]
        while any(one.poll() is None for one in processes) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for process in processes:
            process.kill()
            process.wait()


def _last_line(log: Path) -> str:
    """What was said last; empty where nothing was."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


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
    index = os.environ.get("LSB_JOBINDEX", "")
    os.environ[LIFE_VARIABLE] = str(count_start(options.logs, options.job, index))
    hosts = job_hosts(os.environ["LSB_MCPU_HOSTS"], skip_first=options.skip_first_host)
    os.environ[HOSTS_VARIABLE] = " ".join(f"{host.name} {host.slots}" for host in hosts)
    os.environ[TASKS_PER_NODE_VARIABLE] = str(options.tasks_per_node)
    notes = Path(options.logs, f"{options.job}.notes")
    notes.unlink(missing_ok=True)
    os.environ[NOTES_VARIABLE] = str(notes)
    if len(hosts) != options.nodes:
        print(f"hpcdist: LSF gave {len(hosts)} hosts, and {options.nodes} were asked for")
    received: list[int] = []
    for signum in _SIGNALS:
        signal.signal(signum, lambda number, _: received.append(number))
    started = _start(options, hosts[: options.nodes])
    code = _wait(started, received)
    started.end_others()
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
    )
    script.touch(mode=0o600)
    script.write_text(text)
    return _Started(options, hosts, script)


def _wait(started: _Started, received: Sequence[int]) -> int:
    """The exit code of the first host's command, as a shell would tell it."""
    first = started.here[0]
    passed_on = 0
    while first.poll() is None:
        while passed_on < len(received):
            started.signal(received[passed_on])
            passed_on += 1
        started.note_failed_launches()
        time.sleep(_POLL_S)
    code = first.returncode
    return 128 - code if code < 0 else code


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
    parser.add_argument("command", nargs="+")
    return parser.parse_args(arguments)
