"""Tasks on other hosts: each is below the daemon of its host, not below what it was started by."""

import os
import subprocess
from dataclasses import dataclass, field

from lsf_site import processes


@dataclass(kw_only=True)
class Launch:
    """One call of blaunch or its like, until all its tasks have ended."""

    job: object
    """None for what LSF does not know of."""
    answer: object
    """Call it with (text for stderr, return code), once."""
    left: dict = field(default_factory=dict)
    """Host by pid."""
    code: int = 0
    said: str = ""


class Tasks:
    """Of all jobs."""

    def __init__(self, batch):
        self._batch = batch
        self._launches = []

    def start(self, launch, hosts, command, call, variables):
        """One task per host, each with its variables; their ends are told by `ended`."""
        self._launches.append(launch)
        for number, (host, own) in enumerate(zip(hosts, variables, strict=True)):
            if host in self._batch.lost:
                launch.said += f"{call.name}: connect to host {host}: No route to host\n"
                launch.code = 255
                continue
            try:
                pid = self._start_one(command, own, call, is_first=number == 0)
            except OSError as error:  # without a shell between, nobody else says so
                launch.said += f"{call.name}: {error}\n"
                launch.code = 127
                continue
            launch.left[pid] = host
        self._close(launch)

    def _start_one(self, command, variables, call, *, is_first):
        process = subprocess.Popen(
            command,
            cwd=call.cwd,
            env=variables,
            stdin=call.files[0] if is_first and call.passes_input else subprocess.DEVNULL,
            stdout=call.files[1],
            stderr=call.files[2],
            start_new_session=True,
        )
        self._batch.popens[process.pid] = process
        return process.pid

    def ended(self, pid, code):
        for launch in [*self._launches]:
            if launch.left.pop(pid, None):
                launch.code = launch.code or code
                self._close(launch)

    def _close(self, launch):
        if not launch.left and launch in self._launches:
            self._launches.remove(launch)
            launch.answer(launch.said, launch.code)

    def end_all(self, job):
        """Kill what a job has on other hosts, because it is over."""
        roots = {pid for launch in self._of(job) for pid in launch.left}
        self._kill(roots, {processes.JOB_MARK: f"{job.key}.{job.attempts}"})

    def _kill(self, roots, marks):
        below = os.getpid()

        def find():
            mine = processes.marked(below, **marks)
            return processes.descendants(roots) | {
                pid for pid in mine if processes.has_variable(pid, processes.TASK_MARK)
            }

        processes.kill_all(find)

    def lose(self, host):
        """Break the connections to a host; returns the processes of its tasks."""
        lost = set()
        for launch in [*self._launches]:
            for pid in [pid for pid, on in launch.left.items() if on == host]:
                lost.add(pid)
                del launch.left[pid]
                launch.said += f"Lost connection to host {host}\n"
                launch.code = 255
            self._close(launch)
        return lost

    def forget(self):
        """Whoever waits for tasks would wait for ever."""
        launches, self._launches = self._launches, []
        for launch in launches:
            launch.answer("", 255)

    def _of(self, job):
        return [launch for launch in self._launches if launch.job is job]
