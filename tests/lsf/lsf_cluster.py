"""A simulated LSF site as tests see it; its commands are those of lsf_site.py.

`lsf_like(kill_interval_s=0.2)` is a site with other settings (SiteConfig).
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from machine import LIMIT_S, Machine
from queue_store import Store, signal_all, write_programs

_PROGRAM = Path(__file__).with_name("lsf_site.py")
_COMMANDS = ("bsub", "bjobs", "bkill", "brequeue", "bstop", "bqueues", "bhosts", "bparams")
_NOT_PASSED_ON = re.compile(
    "(SLURM|SBATCH|SRUN|SQUEUE|SACCT|SINFO|SALLOC|LSB|LSF|LS)_|HPCDIST_RUNS$|LSFUSER$"
)


@dataclass(frozen=True, kw_only=True)
class SiteConfig:
    """All that differs between sites."""

    hosts: tuple[str, ...] = ("hostA", "hostB", "hostC", "hostD")
    """Names that resolve where the jobs are to talk to each other: such as 127.0.1.1."""
    kill_interval_s: float = 1.0
    """Between SIGINT, SIGTERM and SIGKILL; 10 s on a real site."""
    limit_grace_s: float = 2.0
    """From SIGUSR2 at the run limit to SIGKILL; 10 minutes on a real site."""
    loss_known_s: float = 35.0
    """How long a lost host is called ok, gets jobs, and what runs on it is RUN."""
    rerun_after_s: float = 3.0
    """From the loss of a job's first host until LSF queues the job again, if it was submitted with
    -r; 135 s on a real site."""
    ssh: bool = False
    """Whether ssh leads to the hosts, in a fresh login and past LSF."""


class Site(Machine):
    """A site without jobs; its folder and processes are gone after `close`."""

    def __init__(self, config, command_server):
        self.folder = Path(tempfile.mkdtemp(prefix="hpcdist-lsf-", dir="/tmp"))
        own = (self.folder / "bin", Path(sys.executable).parent)
        self._path = os.pathsep.join([*map(str, own), os.environ.get("PATH", os.defpath)])
        names = ("HOME", "LANG", "TMPDIR", "OMP_WAIT_POLICY")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        login = kept | {"PATH": self._path, "SHELL": "/bin/sh", "LOGNAME": "user1", "USER": "user1"}
        settings = asdict(config) | {"login_environment": login}
        (self.folder / "config.json").write_text(json.dumps(settings))
        launchers = ("blaunch", "ssh") if config.ssh else ("blaunch",)
        names = (*_COMMANDS, *launchers)
        write_programs(self.folder / "bin", _PROGRAM, names, "LSF_SITE", self.folder)
        sbatch = self.folder / "bin" / "sbatch"  # a Slurm that may be installed is not this site's
        sbatch.write_text("#!/bin/sh\nexit 1\n")
        sbatch.chmod(0o755)
        self._store = Store(self.folder)
        super().__init__(command_server)

    def close(self):
        """Returns the jobs that had not ended after a while; the test fails by them."""
        with contextlib.suppress(pytest.fail.Exception):
            self.wait_for(lambda: not self._unfinished())
        left = self._unfinished()
        said = self._moms_said()
        while signal_all(signal.SIGKILL, LSF_SITE=self.folder):
            pass
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not said, said
        return left

    def _unfinished(self):
        return [job for job in self.jobs() if job.state not in ("DONE", "EXIT")]

    def _moms_said(self):
        log = self.folder / "moms.log"
        return log.read_text() if log.exists() else ""

    @property
    def environment(self):
        """Of a user's shell on the login host."""
        kept = {name: value for name, value in os.environ.items() if not _NOT_PASSED_ON.match(name)}
        return kept | {"PATH": self._path, "LSF_ENVDIR": str(self.folder)}

    def submit(self, script, *options, cwd="/tmp"):
        """Submit a script's text with bsub; returns the job's id."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        done = self.run("bsub", *options, input=text, cwd=cwd)
        return re.search(r"<(\d+)>", done.stdout)[1]

    # What is in it.

    def jobs(self):
        """All jobs, and elements of arrays, with the state in which the site has them."""
        with self._store() as known:
            found = known["jobs"].items()
        views = []
        for key, job in found:
            hosts = [host for host, _, _ in job["places"]]
            views.append(SimpleNamespace(**job | {"id": key, "hosts": hosts}))
            views[-1].reason = job["term_reason"]
        return views

    def job(self, job_id):
        """One job or element; None where there is none."""
        return next((one for one in self.jobs() if one.id == str(job_id)), None)

    def job_state(self, job_id):
        """Such as RUN; None for a job that it does not know."""
        job = self.job(job_id)
        return job and job.state

    def calls(self):
        """How often each command has been called."""
        with self._store() as known:
            return known["calls"]

    def wait_for_state(self, job_id, *states, limit_s=LIMIT_S):
        """The state of the job, once it is one of these; of an array, of all its elements."""

        def look():
            found = [
                one.state for one in self.jobs() if str(job_id) in (one.id, one.id.split("[")[0])
            ]
            return bool(found) and set(found) <= {*states} and max(found)  # EXIT before DONE

        return self.wait_for(look, limit_s)

    def wait_for_end(self, job_id, limit_s=LIMIT_S):
        """The state in which the job ended; of an array, EXIT if one of its elements did."""
        return self.wait_for_state(job_id, "DONE", "EXIT", limit_s=limit_s)

    def describe(self):
        rows = [(j.id, j.state, j.name, j.hosts, j.exit_code, j.reason) for j in self.jobs()]
        return "\n".join([*map(str, rows), self._moms_said()])

    # Its faults, and what its administrators do.

    @contextlib.contextmanager
    def switched(self, name, value):
        """While open: a fault of lsf_site.py, such as cut_off_bjobs, by which the command ends with
        255 and an answer in which there is nothing, as where it cannot reach the network."""
        with self._store() as known:
            known["switches"][name] = value
        try:
            yield
        finally:
            with self._store() as known:
                del known["switches"][name]

    def refusing(self, command, text):
        """While open, a command ends with 255 and says this."""
        return self.switched(f"refuse_{command}", text)

    def resending(self, times):
        """While open, bsub asks so often again, as while the master hangs, and each of its requests
        makes a job; it tells the last one's id."""
        return self.switched("resend_bsub", times)

    def lose_host(self, host):
        """As by a power cut: LSF calls the host ok for a while, and a job that began there RUN,
        then UNKWN; or it starts it again with -r. A brequeue in between ends it for good."""
        self._order("lose_host", host)

    def return_host(self, host):
        self._order("return_host", host)

    def reach_limit(self, job_id):
        """The job's run limit is now."""
        self._order("reach_limit", str(job_id))

    def requeue(self, job_id, reason="TERM_REQUEUE_ADMIN"):
        """As by an administrator."""
        self._order("requeue_as", str(job_id), reason)

    def _order(self, *words):
        command = [sys.executable, "-I", "-S", str(_PROGRAM), *words]
        subprocess.run(command, env={"LSF_SITE": str(self.folder)}, check=True, timeout=LIMIT_S)


@pytest.fixture
def lsf_like(command_process):
    """Call it with what a site is to have; a job that is left in it is an error."""
    made = []

    def make(**settings):
        made.append(Site(SiteConfig(**settings), command_process))
        return made[-1]

    yield make
    left = [job for site in made for job in site.close()]
    assert not left, "the test left jobs in the queue, and has to wait for their end or kill them"
