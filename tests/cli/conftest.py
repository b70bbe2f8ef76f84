"""The command as a user calls it: in a process of its own, in a folder of its own.

Hundreds of calls are forked from a process that has imported the command already. What goes on
while a test looks at it is started anew, and so is what runs a rank in the command's own process,
or needs another PYTHONPATH.
"""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness import Zygote, run_command

LIMIT_S = 110.0
_PYTHON_PATH = os.environ.get("PYTHONPATH")


@dataclass
class Hpcdist:
    """Calls the command in one folder."""

    folder: Path
    server: Zygote
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments):
        return [sys.executable, "-m", "hpcdist", *map(str, arguments)]

    def settings(self):
        return {"cwd": self.folder, "env": os.environ | self.environment}

    def __call__(self, *arguments):
        environment = os.environ | self.environment
        if environment.get("PYTHONPATH") == _PYTHON_PATH:
            return run_command(
                self.server,
                arguments,
                cwd=self.folder,
                environment=environment,
                limit_s=LIMIT_S,
            )
        return subprocess.run(
            self.command(*arguments),
            **self.settings(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def start(self, *arguments, **options):
        return subprocess.Popen(self.command(*arguments), **self.settings(), **options)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    @property
    def runs(self):
        """The folders of runs and sweeps, in the order in which they were submitted."""
        return sorted((self.folder / "runs").glob("*"), key=_submitted)


def _submitted(folder):
    files = [file for name in ("spec", "sweep") if (file := folder / f"{name}.json").exists()]
    spec = json.loads(files[0].read_text()) if files else {}
    return spec.get("created_s", math.inf), folder


@pytest.fixture
def hpcdist(tmp_path, monkeypatch, command_process):
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Hpcdist(tmp_path, command_process)


@pytest.fixture
def processes_of():
    return find_processes


def find_processes(folder):
    """Commands of the living processes that know `folder`, by their id."""
    needle = os.fsencode(folder)
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            state = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[0]
            command = Path("/proc", entry, "cmdline").read_bytes()
            environment = Path("/proc", entry, "environ").read_bytes()
            where = os.fsencode(os.readlink(f"/proc/{entry}/cwd"))
        except OSError:
            continue
        if state != "Z" and any(needle in text for text in (command, environment, where)):
            found[int(entry)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found
