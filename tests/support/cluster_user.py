"""A user of a cluster: calls the command on its login node, and looks at the runs."""

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run, Sweep

START_LIMIT_S = 90
END_LIMIT_S = 90
CPU = ("--set", "launch.device=cpu")
TWO = ("--nodes", 2, "--gpus", 1)
COUNT = """\
import os, sys, time
from pathlib import Path
from hpcdist import record
saved = Path(os.environ["HPCDIST_RUN_DIR"], f"saved-{os.environ['RANK']}")
begin = step = int(saved.read_text()) if saved.exists() else 0
record.start(first_step=begin)
while not Path("gate").exists():
    time.sleep(0.02)
    record.step(samples=1)
    step += 1
    if record.should_stop():
        saved.write_text(str(step))
        print("stopped", step, flush=True)
        sys.exit(record.EXIT_STOPPED)
print("counted from", begin, flush=True)
"""


@dataclass
class User:
    """Works in one folder."""

    cluster: object
    folder: Path
    options: tuple = ()
    """Of each submission: which scheduler, where it is not the one that is found."""

    def __call__(self, *arguments, **options):
        """Call the command; returns what `subprocess.run` does."""
        words = (sys.executable, "-m", "hpcdist", *arguments)
        options = {"check": False, "timeout": 90} | options
        return self.cluster.run(*words, cwd=self.folder, **options)

    def start(self, *arguments, **options):
        """Call the command, and go on at once."""
        words = (sys.executable, "-m", "hpcdist", *arguments)
        defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return self.cluster.start_command(*words, cwd=self.folder, **defaults | options)

    def write(self, name, text):
        """A file in the folder."""
        path = self.folder / name
        path.write_text(text)
        return name

    def submit(self, *arguments, **options):
        """Submit a job, which must succeed; returns its run."""
        done = self("submit", *self.options, *arguments, **options)
        assert done.returncode == 0, done.stderr
        return Run(self.folder / "runs" / done.stdout.strip())

    def submit_sweep(self, *arguments, **options):
        """Submit a sweep, which must succeed."""
        done = self("submit", *self.options, *arguments, **options)
        assert done.returncode == 0, done.stderr
        return Sweep(self.folder / "runs" / done.stdout.splitlines()[0])

    @contextlib.contextmanager
    def following(self, *arguments, **options):
        """While open, a command goes on that submits with --wait."""
        verb, *words = arguments
        with self.start(verb, *self.options, *words, **options) as process:
            try:
                yield process
            finally:
                process.kill()

    def runs(self):
        """All runs that have been submitted, in the order of their ids."""
        files = sorted(self.folder.glob("runs/*/submission.json"))
        return [Run(path.parent) for path in files]

    def status(self, run):
        """What `hpcdist status --json` says of a run."""
        (found,) = json.loads(self("status", run.id, "--json").stdout)
        return found

    def verdict(self, run, limit_s=END_LIMIT_S):
        """The run's verdict, once it is there."""
        return self.cluster.wait_for(run.read_verdict, limit_s)

    def done(self, run, limit_s=END_LIMIT_S):
        """The run, once it is done; any other end fails the test."""
        verdict = self.verdict(run, limit_s)
        assert verdict.state == "done", verdict.message
        self.cluster.wait_for_end(job_id(run))
        return run

    def wait_for_line(self, run, text, *, rank=0, limit_s=START_LIMIT_S):
        """Until a rank of any attempt has printed this."""
        self.cluster.wait_for(lambda: text in log(run, rank), limit_s)


def job_id(run):
    """The id of the run's job."""
    return run.read_job_id()


def log(run, rank=0):
    """What a rank has printed, in all attempts."""
    return "".join(path.read_text() for found, _, path in run.log_files() if found == rank)


def printed(run, rank):
    """The JSON that a rank's script printed; torch may have printed warnings."""
    (line,) = [line for line in log(run, rank).splitlines() if line.startswith("{")]
    return json.loads(line)


def events(run, name, *, rank=0):
    """The events of one kind of a rank, over all attempts."""
    files = [path for found, _, path in run.event_files() if found == rank]
    return [one for path in files for one in read_events(path) if one["event"] == name]


def agent_pid(run, node):
    """The process of a node's agent, as this machine numbers it."""
    return json.loads(run.agent_file(node).read_text())["process"]["pid"]
