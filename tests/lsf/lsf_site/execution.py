"""What LSF's daemon on a host does: starts a job's script, and keeps what it writes."""

import contextlib
import os
import subprocess
import time

from lsf_site import environment
from lsf_site.report import report


def start(job, batch):
    """Start a job that has its hosts; returns the process."""
    folder = batch.folder / "spool" / f"{job.key}.{job.attempts}"
    folder.mkdir(parents=True)
    script = folder / "job"
    script.write_text(job.script, errors="surrogateescape")
    script.chmod(0o755)
    host_file = folder / "hosts"
    hosts = environment.listed_hosts(job)
    host_file.write_text("".join(f"{host}\n" * slots for host, slots in hosts))
    variables = environment.job_environment(job, batch, script=script, host_file=host_file)
    job.spooled = folder / "output"
    with job.spooled.open("wb") as output:
        return subprocess.Popen(
            [str(script)] if job.script.startswith("#!") else ["/bin/sh", str(script)],
            cwd=_working_directory(job),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _working_directory(job):
    """LSF goes to /tmp where the job's own directory is not there."""
    wanted = job.run_cwd or job.cwd
    return wanted if os.path.isdir(wanted) else "/tmp"


def deliver(job, batch):
    """Put what an ended job has written where it belongs; what cannot be is lost without a word."""
    if not job.output:
        return
    text = report(job, batch.config, job.spooled.read_text(errors="surrogateescape"))
    path = environment.expand(job.output, job)
    with contextlib.suppress(OSError), open(path, "wb" if job.overwrites else "ab") as file:
        file.write(text.encode(errors="surrogateescape"))


def run_time_s(job):
    """So far, or in all."""
    return 0.0 if job.start_s is None else (job.end_s or time.time()) - job.start_s
