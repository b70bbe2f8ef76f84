"""A run that a test has started, as the test sees it."""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from waiting import wait_for

from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run

LIMIT_S = 150.0  # all is well long before; a busy machine may stand still for a minute


@dataclass
class LaunchedRun:
    """A run that goes on, and what it leaves."""

    run: Run
    start_agent: Callable[[int], None] | None = None

    def verdict(self, limit_s=LIMIT_S):
        """The verdict, when it is there."""
        self.wait(self.run.verdict_file.exists, limit_s)
        return self.run.read_verdict()

    def wait(self, condition, limit_s=LIMIT_S):
        return wait_for(condition, limit_s, told=self.everything_said)

    def log(self, rank, attempt=0):
        try:
            return self.run.log_file(rank, attempt).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def logs(self):
        return [self.log(rank, attempt) for rank, attempt, _ in self.run.log_files()]

    def said(self, rank, attempt=0):
        """What a rank printed as JSON, one object per line; a line that is still being written is
        left for later."""
        whole, _, _ = self.log(rank, attempt).rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def events(self, rank, attempt=0):
        return read_events(self.run.event_file(rank, attempt))

    def pid(self, rank, attempt=0):
        """Of a rank, once it has started."""
        file = self.run.event_file(rank, attempt)
        return self.wait(lambda: file.exists() and read_events(file))[0]["pid"]

    def agent_pid(self, node):
        value = self.wait(lambda: _read(self.run.agent_file(node)))
        return value["process"]["pid"]

    def agents_alive(self):
        """The processes of agents that go on."""
        files = self.run.launch_folder.glob("agent-*.json")
        pids = [_read(file)["process"]["pid"] for file in files]
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    def kill_agents(self):
        """After a test that failed half way; with the agents go their ranks."""
        for pid in [] if self.run.verdict_file.exists() else self.agents_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def everything_said(self):
        folders = (self.run.submitit_folder, self.run.logs_folder)
        files = [file for folder in folders for file in sorted(folder.glob("*.[lo][ou][gt]"))]
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')}" for file in files)


def _read(path):
    return json.loads(path.read_text()) if path.exists() else None
