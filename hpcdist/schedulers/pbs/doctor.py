"""The doctor's questions to PBS."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import run_command
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Finding, failed, look_for_commands, passed, skipped, warned
from hpcdist.schedulers.pbs.qstat import ask_jobs
from hpcdist.schedulers.pbs.site import ask_queues, ask_server

_NEEDED = ("qsub", "qstat", "qselect", "qdel", "qalter", "pbsnodes")
_TIMEOUT_S = 30.0
_QUEUE = re.compile(r"^#PBS -q (\S+)", re.MULTILINE)
_LOAD = "go to a login node of the cluster, or load the site's PBS module"
_NOT_TRIED = "PBS has no dry run: qsub judges the rest"


class PbsDoctor:
    """The checks of doctor that ask PBS."""

    def examine(self) -> Iterator[Finding]:
        """Check the commands, the server, and whether it remembers jobs that have ended."""
        commands = look_for_commands(_NEEDED, advice=_LOAD)
        yield commands
        if commands.state == "FAIL":
            return
        try:
            run_command(["qstat", "-B"], timeout_s=_TIMEOUT_S)
        except SchedulerError as error:
            yield failed("server", error.message, "PBS's server is down; tell the site if it lasts")
            return
        server, queues = ask_server(), ask_queues()
        usable = sum(one.is_enabled and one.is_started for one in queues)
        version = server.get("pbs_version", "unknown")
        yield passed("server", f"PBS {version}; {usable} of {len(queues)} queues are open")
        if server.get("job_history_enable") == "True":
            yield passed("history", "PBS remembers jobs that have ended")
        else:
            yield warned(
                "history",
                "PBS forgets jobs when they end (job_history_enable is off)",
                "nothing to do: the run directory tells the end, and `summary` has no books",
            )

    def try_script(self, script: str) -> Finding:
        """Look at the queue of a script; what it asks for was compared with the nodes before."""
        found = _QUEUE.search(script)
        name = found[1] if found else ask_server().get("default_queue", "")
        queue = next((one for one in ask_queues() if one.name == name), None)
        if queue is None:
            return skipped("directives", f"qstat tells nothing of a queue {name!r}; {_NOT_TRIED}")
        if not queue.is_started:
            return warned(
                "directives",
                f"queue {name} takes jobs, but starts none at present",
                "the job waits until it does; name another queue",
            )
        return passed("directives", f"queue {name} is open; {_NOT_TRIED}")

    def explain_end(self, run: Run) -> str:
        """Return what PBS knows of a job's end, in its own words; empty: it does not answer."""
        job_id = run.read_job_id() or ""
        try:
            jobs = [job for job in ask_jobs([job_id]) if job.job_id == job_id] if job_id else []
        except SchedulerError:
            return ""
        return f"PBS says of job {job_id}: {jobs[0].comment}" if jobs and jobs[0].comment else ""
