"""The doctor's questions to Slurm."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Finding, failed, look_for_commands, passed, warned
from hpcdist.schedulers.slurm.directives import submission_environment
from hpcdist.schedulers.slurm.queue import job_fields, show_job

_TIMEOUT_S = 30.0
_NEEDED = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
_OLDEST = (20, 11)
_SHOWN_KEYS = ("JobState", "Reason", "ExitCode")
_LOAD = "go to a login node of the cluster, or load the site's Slurm module"


def _asked(
    name: str,
    *commands: Sequence[str],
    advice: str,
    refused: Callable[[str, str, str], Finding] = failed,
) -> Finding:
    """Return the finding on commands that must succeed, with what the last of them says."""
    said = ""
    try:
        for argv in commands:
            said = run_command(argv, timeout_s=_TIMEOUT_S).stdout
    except SchedulerError as error:
        return refused(name, _flat(error.message), advice)
    return passed(name, _flat(said))


def _flat(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


class SlurmDoctor:
    """The checks of doctor that ask Slurm."""

    def examine(self) -> Iterator[Finding]:
        """Check the commands, their version, the controller and accounting, as far as they work."""
        commands = look_for_commands(_NEEDED, advice=_LOAD)
        yield commands
        if commands.state == "FAIL":
            return
        version = _asked("version", ["sbatch", "--version"], advice=_LOAD)
        number = re.search(r"(\d+)\.(\d+)", version.detail)
        if version.state == "pass" and number and (int(number[1]), int(number[2])) < _OLDEST:
            said = f"{version.detail}, and hpcdist needs 20.11 or newer"
            version = failed("version", said, "ask the site for a newer one")
        yield version
        controller = _asked(
            "controller",
            ["squeue", "--noheader", "--me"],
            ["scontrol", "ping"],
            advice="Slurm's controller is down or cannot be reached from here; see `scontrol "
            "ping`, and tell the site if it lasts",
        )
        yield controller
        if controller.state == "pass":
            accounting = _asked(
                "accounting",
                ["sacct", "--noheader", "--allocations", "--format=JobID", "--starttime=now"],
                advice="nothing to do: for jobs that Slurm has forgotten, the run directory "
                "says how they ended",
                refused=warned,
            )
            yield (
                passed("accounting", "sacct answers") if accounting.state == "pass" else accounting
            )

    def try_script(self, script: str) -> Finding:
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
                    "change the cluster profile, or the options; `hpcdist render check` shows what "
                    "is asked for",
                )
            except SchedulerError as error:
                return failed("directives", error.message, error.hint)
        return passed("directives", _flat(done.stderr or done.stdout) or "sbatch accepts them")

    def explain_end(self, run: Run) -> str:
        """Return what Slurm knows of a job's end, in its own words; empty: it does not answer."""
        job_id = run.read_job_id() or ""
        try:
            fields = job_fields(show_job(job_id))
        except SchedulerError:
            return ""
        found = [f"{key}={fields[key]}" for key in _SHOWN_KEYS if key in fields]
        return f"Slurm says {', '.join(found)} of job {job_id}"
