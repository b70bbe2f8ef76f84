"""The command as a user calls it: in a process of its own, in a folder of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

LIMIT_S = 110.0


@dataclass
class Hpcdist:
    """Calls the command in one folder."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments):
        return [sys.executable, "-m", "hpcdist", *map(str, arguments)]

    def settings(self):
        return {"cwd": self.folder, "env": os.environ | self.environment}

    def __call__(self, *arguments, **options):
        return subprocess.run(
            self.command(*arguments),
            **self.settings(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            **options,
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
        return sorted((self.folder / "runs").glob("*"))


@pytest.fixture
def hpcdist(tmp_path, monkeypatch):
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Hpcdist(tmp_path)


@pytest.fixture
def processes_of():
    return _processes_of


def _processes_of(folder):
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
