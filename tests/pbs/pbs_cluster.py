"""A PBS as tests see it: the stand-in of pbs_site.py, or, with HPCDIST_TEST_PBS, the one whose
commands are on the PATH; its hosts share pytest's --basetemp with this one."""

import contextlib
import os
import re
from pathlib import Path

import pytest
from machine import LIMIT_S, Machine
from queue_store import write_programs

REAL = os.environ.get("HPCDIST_TEST_PBS")
COMMANDS = ("qsub", "qstat", "qselect", "qdel", "qalter", "pbsnodes", "pbs_tmrsh")


class Pbs(Machine):
    """Of two hosts with 4 CPUs each."""

    def jobs(self):
        """What qstat says of the user's jobs, by their ids without the server: {key: value}."""
        listed = self.run("qselect", "-x").stdout.split()
        said = self.run("qstat", "-x", "-f", "-t", *listed).stdout if listed else ""
        found = {}
        for line in said.replace("\n\t", "").splitlines():
            if line.startswith("Job Id: "):
                job = found[line.removeprefix("Job Id: ").partition(".")[0]] = {}
            elif " = " in line:
                key, _, value = line.strip().partition(" = ")
                job[key] = value
        return found

    def describe(self):
        keys = ("Job_Name", "job_state", "Exit_status", "exec_host", "comment")
        jobs = self.jobs().items()
        return "\n".join(str([job_id, *map(job.get, keys)]) for job_id, job in jobs)

    def hosts(self, job_id):
        """Of a job that has begun."""
        return [one.partition("/")[0] for one in self.jobs()[job_id]["exec_host"].split("+")]

    def fill(self):
        """Have a job on all CPUs; returns its id."""
        options = ("-f", "-N", "fill", "-l", "select=2:ncpus=4", "-r", "n", "-o", "/dev/null")
        done = self.run("qsub", *options, "--", "/bin/sleep", "600")
        return done.stdout.partition(".")[0]

    def wait_for_end(self, job_id, limit_s=LIMIT_S):
        """How the job ended."""

        def look():
            job = self.jobs()[job_id]
            return job["job_state"] in "FX" and (job.get("Exit_status") or "never began")

        return self.wait_for(look, limit_s)


def pid_outside(run_id, pid):
    """The pid, as it is seen from here, of a run's process that has this one in its host's own
    namespace."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            belongs = run_id.encode() in (folder / "environ").read_bytes()
            inner = re.search(r"^NSpid:.*\t(\d+)$", (folder / "status").read_text(), re.MULTILINE)
            if belongs and inner and int(inner[1]) == pid:
                return int(folder.name)
    raise ProcessLookupError(pid)


@pytest.fixture
def pbs(tmp_path, monkeypatch, command_process):
    """A job that the test leaves is an error."""
    if not REAL:
        commands, site = tmp_path / "bin", tmp_path / "site"
        site.mkdir()
        program = Path(__file__).with_name("pbs_site.py")
        write_programs(commands, program, COMMANDS, "PBS_SITE", site)
        monkeypatch.setenv("PBS_SITE", str(site))
        monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
        monkeypatch.setenv("HOME", str(site))  # the jobs' login shells read no profile
    cluster = Pbs(command_process)
    yield cluster
    cluster.wait_for(lambda: all(job["job_state"] in "FX" for job in cluster.jobs().values()))


@pytest.fixture
def pbs_folder(tmp_path):
    """A folder that all hosts see."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder
