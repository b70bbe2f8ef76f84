"""A simulated LSF site as tests see it; its commands are those of lsf_site.py."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from machine import LIMIT_S, Machine
from queue_store import Store, signal_all, write_programs

_PROGRAM = Path(__file__).with_name("lsf_site.py")
_COMMANDS = ("bsub", "bjobs", "bkill", "brequeue", "bhosts", "blaunch")
_NOT_PASSED_ON = re.compile(
    "(SLURM|SBATCH|SRUN|SQUEUE|SACCT|SINFO|SALLOC|LSB|LSF|LS)_|HPCDIST_RUNS$|LSFUSER$"
)


class Site(Machine):
    """A site without jobs; its folder and processes are gone after `close`.

    Names of its hosts resolve where the jobs are to talk to each other: such as 127.0.1.1.
    """

    def __init__(self, command_server, hosts):
        self.folder = Path(tempfile.mkdtemp(prefix="hpcdist-lsf-", dir="/tmp"))
        own = (self.folder / "bin", Path(sys.executable).parent)
        self._path = os.pathsep.join([*map(str, own), os.environ.get("PATH", os.defpath)])
        (self.folder / "hosts").write_text(" ".join(hosts))
        write_programs(self.folder / "bin", _PROGRAM, _COMMANDS, "LSF_SITE", self.folder)
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
        return [
            SimpleNamespace(**job | {"id": key, "hosts": [host for host, *_ in job["places"]]})
            for key, job in found
        ]

    def job(self, job_id):
        """One job or element; None where there is none."""
        return next((one for one in self.jobs() if one.id == str(job_id)), None)

    def job_state(self, job_id):
        """Such as RUN; None for a job that it does not know."""
        job = self.job(job_id)
        return job and job.state

    def wait_for_state(self, job_id, *states):
        """The state of the job, once it is one of these."""
        return self.wait_for(lambda: (state := self.job_state(job_id)) in states and state)

    def wait_for_end(self, job_id):
        """The state in which the job ended."""
        return self.wait_for_state(job_id, "DONE", "EXIT")

    def describe(self):
        rows = [(j.id, j.state, j.name, j.hosts, j.exit_code, j.term_reason) for j in self.jobs()]
        return "\n".join([*map(str, rows), self._moms_said()])

    # Its faults, and what its administrators do.

    @contextlib.contextmanager
    def _switched(self, name, value):
        with self._store() as known:
            known["switches"][name] = value
        try:
            yield
        finally:
            with self._store() as known:
                del known["switches"][name]

    def refusing(self, command, text):
        """While open, a command ends with 255 and says this."""
        return self._switched(f"refuse_{command}", text)

    def resending(self, times):
        """While open, bsub asks so often again, as while the master hangs, and each of its requests
        makes a job; it tells the last one's id."""
        return self._switched("resend_bsub", times)

    def lose_host(self, host):
        """As by a power cut: LSF calls the host ok for a while, and a job that began there RUN; or
        it starts it again with -r. A brequeue in between ends it for good."""
        self._order("lose_host", host)

    def reach_limit(self, job_id):
        """The job's run limit is now."""
        self._order("reach_limit", str(job_id))

    def requeue(self, job_id):
        """As by an administrator."""
        self._order("requeue_as", str(job_id))

    def _order(self, *words):
        command = [sys.executable, "-I", "-S", str(_PROGRAM), *words]
        subprocess.run(command, env={"LSF_SITE": str(self.folder)}, check=True, timeout=LIMIT_S)


@pytest.fixture
def lsf_like(command_process):
    """Call it for a site, perhaps with the names of its hosts; a job left in it is an error."""
    made = []

    def make(hosts=("hostA", "hostB", "hostC", "hostD")):
        made.append(Site(command_process, hosts))
        return made[-1]

    yield make
    left = [job for site in made for job in site.close()]
    assert not left, "the test left jobs in the queue, and has to wait for their end or kill them"
