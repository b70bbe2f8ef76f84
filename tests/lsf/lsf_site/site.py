"""A simulated LSF site as a test sees it."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from machine import LIMIT_S, Machine

from lsf_site.config import SiteConfig
from lsf_site.daemon import COMMANDS, ORDER, SOCKET

_POLL_S = 0.02
_START_LIMIT_S = 60.0
_SHOULD_END_S = 60.0
_ENDED = ("DONE", "EXIT")
_NOT_PASSED_ON = re.compile(
    "(SLURM|SBATCH|SRUN|SQUEUE|SACCT|SINFO|SALLOC|LSB|LSF|LS)_|HPCDIST_RUNS$|LSFUSER$"
)
_SLURM = re.compile("s(batch|run|queue|cancel|control|info|acct|acctmgr|alloc|prio|stat|view)$")


@dataclass(frozen=True, kw_only=True)
class SiteJob:
    """A job, or an element of an array, as the site knows it."""

    id: str
    """12 or 12[3]."""
    name: str
    state: str
    hosts: list
    exit_code: int | None
    reason: str
    """Such as TERM_OWNER; of the last attempt where the job is pending again."""
    attempts: int
    options: dict
    """As bsub understood them, by option."""


def path_without_slurm(folder):
    """This PATH; folders that have Slurm's programs are replaced by links to their other ones."""
    found = []
    for source in filter(os.path.isdir, os.environ.get("PATH", os.defpath).split(os.pathsep)):
        names = os.listdir(source)
        if not any(map(_SLURM.match, names)):
            found.append(source)
            continue
        links = folder / os.path.realpath(source).replace("/", "-")
        found.append(str(links))
        if not links.exists():
            links.mkdir(parents=True)
            for name in names:
                if not _SLURM.match(name):
                    (links / name).symlink_to(Path(source, name))
    return os.pathsep.join(found)


class Site(Machine):
    """Is there from `start` on, and gone, with all its processes and files, after `stop`."""

    def __init__(self, config=None, *, programs=None, **settings):
        """`programs` is the PATH to this machine's own; of its own making where it is not given."""
        self.config = config or SiteConfig(**settings)
        self.hosts = self.config.hosts
        # /tmp and not TMPDIR: the path of a socket may have 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="hpcdist-lsf-", dir="/tmp"))
        self.bin = self.folder / "bin"
        own_programs = Path(sys.executable).parent
        programs = programs or path_without_slurm(self.folder / "system")
        self._path = os.pathsep.join(map(str, (self.bin, own_programs, programs)))
        self._process = None
        super().__init__(command_server=None)

    def start(self):
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self):
        self._write_programs()
        (self.folder / "site.json").write_text(
            json.dumps(
                {
                    "config": self.config.to_dict(),
                    "login_environment": self._login_environment(),
                }
            )
        )
        with (self.folder / "daemon.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lsf_site.daemon", str(self.folder)],
                # Little else: the mark of the tests must not pass on to what outlives a test.
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "PYTHONPATH": str(Path(__file__).parent.parent),
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait_for(self._has_begun, _START_LIMIT_S)

    def _has_begun(self):
        assert self._process.poll() is None, self.describe()
        return (self.folder / SOCKET).exists()

    def stop(self):
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_programs(self):
        """The site's commands: all are the same program under different names."""
        self.bin.mkdir()
        source = Path(__file__).with_name("client.py").read_text()
        interpreter = os.path.realpath(sys.executable)
        client = self.folder / "client"
        client.write_text(f"#!{interpreter} -IS\nSOCKET = {str(self.folder / SOCKET)!r}\n{source}")
        client.chmod(0o755)
        for name in (*COMMANDS, *self.config.launchers):
            (self.bin / name).symlink_to(client)

    # Commands as a user types them.

    @property
    def environment(self):
        """Of a user's shell on the login host."""
        kept = {name: value for name, value in os.environ.items() if not _NOT_PASSED_ON.match(name)}
        return kept | {"PATH": self._path, "LSF_ENVDIR": str(self.folder)}

    def _login_environment(self):
        """Of a fresh shell on another host."""
        names = ("HOME", "LANG", "TMPDIR", "OMP_WAIT_POLICY")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        return kept | {"PATH": self._path, "SHELL": "/bin/sh", "LOGNAME": "user1", "USER": "user1"}

    def submit(self, script, *options, cwd="/tmp", check=True):
        """Of a script's text, with bsub; returns the job's id, or what was said where `check`
        is false."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        done = self.run("bsub", *options, input=text, cwd=cwd, check=check)
        return re.search(r"<(\d+)>", done.stdout)[1] if check else done

    # What is in it.

    def jobs(self):
        """All that it remembers."""
        return [SiteJob(**one) for one in self._order("jobs")]

    def job(self, job_id):
        """One job or element; None where there is none."""
        found = [one for one in self.jobs() if one.id == str(job_id)]
        return found[0] if found else None

    def job_state(self, job_id):
        """Such as RUN; None for a job that it does not remember."""
        job = self.job(job_id)
        return job and job.state

    def calls(self):
        """How often each command has been called since `restore`."""
        return self._order("calls")

    def wait_for_state(self, job_id, *states, limit_s=LIMIT_S):
        """The state of the job, once it is one of these; of an array, of all its elements."""
        return self.wait_for(lambda: self._state_in(job_id, states), limit_s)

    def wait_for_end(self, job_id, limit_s=LIMIT_S):
        """The state in which the job ended; of an array, EXIT if one of its elements did."""
        return self.wait_for_state(job_id, *_ENDED, limit_s=limit_s)

    def _state_in(self, job_id, states):
        found = [one.state for one in self.jobs() if str(job_id) in (one.id, one.id.split("[")[0])]
        if not found or any(state not in states for state in found):
            return None
        return max(found)  # EXIT before DONE

    def describe(self):
        """For the message of a failed test."""
        log = (self.folder / "daemon.log").read_text()
        if not (self.folder / SOCKET).exists():
            return log
        rows = [(j.id, j.state, j.name, j.hosts, j.exit_code, j.reason) for j in self.jobs()]
        return "\n".join([*map(str, rows), log])

    # Its faults, and what its administrators do.

    @contextlib.contextmanager
    def silent(self):
        """While open, no command gets an answer; afterwards those that still wait do."""
        self._order("switch", "silent", True)
        try:
            yield
        finally:
            self._order("speak")

    @contextlib.contextmanager
    def switched(self, name, value):
        """While open: refuse_COMMAND with a text, slow_COMMAND with seconds."""
        self._order("switch", name, value)
        try:
            yield
        finally:
            self._order("switch", name, None)

    def refusing(self, command, text):
        """While open, a command ends with 255 and says this."""
        return self.switched(f"refuse_{command}", text)

    def cut_off(self, command):
        """While open, a command ends with 255 and an answer in which there is nothing, as where it
        cannot reach the network."""
        return self.switched(f"cut_off_{command}", True)

    def refusing_requeues(self):
        """While open, brequeue is not allowed."""
        return self.switched("brequeue_refused", True)

    def resending(self, times):
        """While open, bsub asks so often again, as while the master hangs, and each of its requests
        makes a job; it tells the last one's id."""
        return self.switched("resend_bsub", times)

    def forget(self, job_id):
        """The commands no longer know the job."""
        self._order("unknown", job_id)

    def remember(self, job_id):
        """The commands know it again."""
        self._order("known", job_id)

    def lose_host(self, host):
        """As by a power cut: LSF calls the host ok for a while, and a job that began there RUN,
        then UNKWN; or it starts it again with -r. A brequeue in between ends it for good."""
        self._order("lose_host", host)

    def return_host(self, host):
        self._order("return_host", host)

    def reach_limit(self, job_id):
        """The job's run limit is now."""
        self._order("limit", str(job_id))

    def requeue(self, job_id, reason="TERM_REQUEUE_ADMIN"):
        """As by an administrator."""
        self._order("requeue", str(job_id), reason)

    def preempt(self, job_id):
        """Ends it for another job; it is pending again."""
        self._order("requeue", str(job_id), "TERM_PREEMPT")

    # Between tests.

    def restore(self, should_end_s=_SHOULD_END_S):
        """As it was after the start; returns the jobs that had not ended by then, and kills them.

        What jobs that ended have left behind is not touched: it is for the test to fail by.
        """
        left = self._jobs_that_stay(should_end_s)
        self._order("restore", bool(left))
        assert not (said := (self.folder / "daemon.log").read_text()), said
        return left

    def _jobs_that_stay(self, limit_s):
        """A job whose work is done needs a moment to leave."""
        deadline = time.monotonic() + limit_s
        while (left := self._unfinished()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return left

    def _unfinished(self):
        return [one for one in self.jobs() if one.state not in _ENDED]

    def _order(self, *order):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LIMIT_S)
            connection.connect(str(self.folder / SOCKET))
            message = "\0".join([ORDER, "/", "1", json.dumps(order)]).encode()
            connection.sendall(b"C" + len(message).to_bytes(4, "little") + message)
            with connection.makefile("rb") as answer:
                data = answer.read()
        length = int.from_bytes(data[1:5], "little")
        found = json.loads(data[5 : 5 + length])
        if "error" in found:
            raise LookupError(f"{order}: {found['error']}")
        return found["value"]
