"""What LSF's daemon on a host does: starts a job's script, and keeps what it writes."""

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lsf_site import environment
from lsf_site.report import report


@dataclass(frozen=True, kw_only=True)
class Spool:
    """Where a running job's output goes before it reaches its file."""

    output: Path
    error: Path | None


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
    job.files = Spool(output=folder / "output", error=folder / "error" if job.error else None)
    with contextlib.ExitStack() as stack:
        output, error = _open_outputs(job, batch.config, stack)
        return subprocess.Popen(
            [str(script)] if job.script.startswith("#!") else ["/bin/sh", str(script)],
            cwd=_working_directory(job),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=error or output,
            start_new_session=True,
        )


def _working_directory(job):
    """LSF goes to /tmp where the job's own directory is not there."""
    wanted = job.run_cwd or job.cwd
    return wanted if os.path.isdir(wanted) else "/tmp"


def _open_outputs(job, config, stack):
    if not config.output_direct:
        output = stack.enter_context(job.files.output.open("wb"))
        return output, job.files.error and stack.enter_context(job.files.error.open("wb"))
    paths = [path and environment.expand(path, job) for path in (job.output, job.error)]
    files = [
        path and stack.enter_context(_open(path, overwrites=overwrites))
        for path, overwrites in zip(paths, job.overwrites, strict=True)
    ]
    return files[0] or stack.enter_context(open(os.devnull, "ab")), files[1]


def _open(path, *, overwrites):
    """What cannot be opened is lost without a word."""
    try:
        return open(path, "wb" if overwrites else "ab")
    except OSError:
        return open(os.devnull, "ab")


def deliver(job, batch):
    """Put what an ended job has written where it belongs."""
    if job.output:
        text = "" if batch.config.output_direct else _read(job.files.output)
        if not job.mails_report:
            text = report(job, batch.config, text)
        is_new = job.overwrites[0] and not batch.config.output_direct
        _write(environment.expand(job.output, job), text, overwrites=is_new)
    if job.error and not batch.config.output_direct:
        _write(
            environment.expand(job.error, job),
            _read(job.files.error),
            overwrites=job.overwrites[1],
        )


def _read(path):
    return path.read_text(errors="surrogateescape")


def _write(path, text, *, overwrites):
    with _open(path, overwrites=overwrites) as file:
        file.write(text.encode(errors="surrogateescape"))


def run_time_s(job):
    """So far, or in all."""
    return 0.0 if job.start_s is None else (job.end_s or time.time()) - job.start_s
