"""The tasks that blaunch has started, each below the daemon of its host and not below blaunch."""

import os
import subprocess
from dataclasses import dataclass, field

from lsf_site import environment, processes


@dataclass(kw_only=True)
class Launch:
    """One call of blaunch, until all its tasks have ended."""

    job: object
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
        self._number = 0

    def start(self, launch, places, words, call, *, through_shell):
        """One task per place; their ends are told by `ended`."""
        self._launches.append(launch)
        for number, place in enumerate(places):
            if place.host in self._batch.down:
                launch.said += f"blaunch: {place.host}: Host is down\n"
                launch.code = 255
                continue
            command = ["/bin/sh", "-c", " ".join(words)] if through_shell else words
            pid = self._start_one(launch.job, place, command, call, is_first=number == 0)
            launch.left[pid] = place.host
        self._close(launch)

    def _start_one(self, job, place, command, call, *, is_first):
        travels = self._batch.config.traits.environment_travels
        self._number += 1
        variables = environment.task_environment(
            job, place, self._number, call.environment, self._batch
        )
        process = subprocess.Popen(
            command,
            cwd=call.cwd if travels else variables.get("HOME", "/"),
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

    def signal(self, job, number):
        for launch in self._of(job):
            for pid in launch.left:
                processes.signal_group(pid, number)

    def end_all(self, job):
        """Kill what a job has on other hosts, because it is over."""
        roots = {pid for launch in self._of(job) for pid in launch.left}
        self._kill(roots, {processes.JOB_MARK: f"{job.key}.{job.attempts}"})

    def end_launch(self, launch):
        """Kill its tasks: the blaunch is gone."""
        roots = set(launch.left)
        processes.kill_all(lambda: processes.descendants(roots))

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
                launch.said += f"blaunch: Lost connection to host {host}\n"
                launch.code = 255
            self._close(launch)
        return lost

    def forget(self):
        self._launches = []

    def _of(self, job):
        return [launch for launch in self._launches if launch.job is job]
