"""The command on the login node of a PBS: the stand-in of pbs_site.py, or, where HPCDIST_TEST_PBS
names a folder that the hosts share, the one whose commands are on the PATH."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_user import COUNT_BY_RANK
from forked_command import run_command
from waiting import wait_for

from hpcdist.runs.run import Run

REAL = os.environ.get("HPCDIST_TEST_PBS")
COMMANDS = ("qsub", "qstat", "qselect", "qdel", "qalter", "pbsnodes", "pbs_tmrsh")
CPU = ("--scheduler", "pbs", "--set", "launch.device=cpu")


class User:
    """Calls hpcdist in one folder, and looks at what becomes of it."""

    def __init__(self, folder, server):
        self.folder = folder
        self._server = server

    def __call__(self, *words, code=0):
        environment = os.environ
        done = run_command(
            self._server, words, cwd=self.folder, environment=environment, limit_s=100
        )
        assert done.returncode == code, done.stderr
        return done

    def submit(self, *words):
        done = self("submit", "count.py", *CPU, *words)
        return Run(self.folder / "runs" / done.stdout.split()[0])

    def open_gate(self):
        (self.folder / "gate").touch()

    def status(self, run):
        (found,) = json.loads(self("status", run.id, "--json").stdout)
        return found

    def wait_for_state(self, run, *states):
        """Until status says so; returns all that it says."""

        def look():
            found = self.status(run)
            return found if found["state"] in states else None

        return wait_for(look)

    def wait_for_start(self, run, life=0, ranks=2):
        wait_for(
            lambda: run.newest_attempt() >= life and len(run.event_files()) >= ranks * (life + 1)
        )


@pytest.fixture
def user(tmp_path, monkeypatch, command_process):
    folder = Path(REAL, tmp_path.name) if REAL else tmp_path / "work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if not REAL:
        commands, site = tmp_path / "bin", tmp_path / "site"
        commands.mkdir()
        site.mkdir()
        program = Path(__file__).parent / "pbs_site.py"
        for name in COMMANDS:
            text = f'#!/bin/sh\nexec "{sys.executable}" -I -S "{program}" {name} "$@"\n'
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
        monkeypatch.setenv("PBS_SITE", str(site))
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    (folder / "count.py").write_text(COUNT_BY_RANK)
    user = User(folder, command_process)
    yield user
    user.open_gate()
    wait_for(lambda: "_state = R" not in shown() and "_state = Q" not in shown())


def shown():
    """What PBS has of this user's jobs."""
    listed = subprocess.run(["qselect"], check=True, capture_output=True, text=True).stdout.split()
    argv = ["qstat", "-f", *listed]
    return (
        subprocess.run(argv, check=False, capture_output=True, text=True).stdout if listed else ""
    )
