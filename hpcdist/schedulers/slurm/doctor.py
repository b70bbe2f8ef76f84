"""The doctor's questions to Slurm."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Finding, failed, passed, warned
from hpcdist.schedulers.slurm.directives import submission_environment
from hpcdist.schedulers.slurm.queue import job_fields, show_job

_TIMEOUT_S = 30.0
_NEEDED = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
_OLDEST = (20, 11)
_SHOWN_KEYS = ("JobState", "Reason", "ExitCode")
_LOAD = "go to a login node of the cluster, or load the site's Slurm module"


def examine() -> Iterator[Finding]:
    """Check the commands, their version, the controller and accounting, as far as they work."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        yield failed("commands", f"not found: {', '.join(missing)}", _LOAD)
        return
    yield passed("commands", f"{', '.join(_NEEDED)} are there")
    yield _version()
    controller = _controller()
    yield controller
    if controller.state == "pass":
        yield _accounting()


def try_script(script: str) -> Finding:
    """Ask sbatch --test-only about a script."""
    with tempfile.NamedTemporaryFile("w", prefix="hpcdist-", suffix=".sh") as file:
        file.write(script)
        file.flush()
        try:
            done = run_command(
                ["sbatch", "--test-only", file.name],
                timeout_s=_TIMEOUT_S,
                environment=submission_environment(os.environ, script),
            )
        except CommandFailedError as error:
            return failed(
                "directives",
                f"sbatch --test-only says: {_flat(error.said)}",
                "change the cluster profile, or the options; `hpcdist render check` shows what is "
                "asked for",
            )
        except SchedulerError as error:
            return failed("directives", error.message, error.hint)
    return passed("directives", _flat(done.stderr or done.stdout) or "sbatch accepts them")


def explain_end(run: Run) -> str:
    """Return what Slurm knows of a job's end, in its own words; empty: it does not answer."""
    job_id = run.read_job_id() or ""
    try:
        fields = job_fields(show_job(job_id))
    except SchedulerError:
        return ""
    found = [f"{key}={fields[key]}" for key in _SHOWN_KEYS if key in fields]
    return f"Slurm says {', '.join(found)} of job {job_id}"


def _version() -> Finding:
    try:
        said = run_command(["sbatch", "--version"], timeout_s=_TIMEOUT_S).stdout.strip()
    except SchedulerError as error:
        return failed("version", error.message, error.hint or _LOAD)
    number = re.search(r"(\d+)\.(\d+)", said)
    if number and (int(number[1]), int(number[2])) < _OLDEST:
        return failed(
            "version", f"{said}, and hpcdist needs 20.11 or newer", "ask the site for a newer one"
        )
    return passed("version", said)


def _controller() -> Finding:
    try:
        run_command(["squeue", "--noheader", "--me"], timeout_s=_TIMEOUT_S)
        said = run_command(["scontrol", "ping"], timeout_s=_TIMEOUT_S).stdout
    except SchedulerError as error:
        return failed(
            "controller",
            _flat(error.message),
            "Slurm's controller is down or cannot be reached from here; see `scontrol ping`, and "
            "tell the site if it lasts",
        )
    return passed("controller", _flat(said))


def _accounting() -> Finding:
    argv = ["sacct", "--noheader", "--allocations", "--format=JobID", "--starttime=now"]
    try:
        run_command(argv, timeout_s=_TIMEOUT_S)
    except SchedulerError as error:
        return warned(
            "accounting",
            _flat(error.message),
            "nothing to do: of jobs that Slurm has forgotten the run directory tells the end",
        )
    return passed("accounting", "sacct answers")


def _flat(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
