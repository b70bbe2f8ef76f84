"""The doctor's questions to LSF."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Finding, failed, passed, skipped, warned
from hpcdist.schedulers.lsf.commands import call_lsf, lsf_lines
from hpcdist.schedulers.lsf.site import ask_queue, missing_launcher, parse_queue_states

_NEEDED = ("bsub", "bjobs", "bkill", "bqueues")
_QUEUE = re.compile(r"^#BSUB -q \"?([^\"\s]+)", re.MULTILINE)
_CLUSTER = re.compile(r"^My (cluster|master) name is (\S+)", re.MULTILINE)
_END = re.compile(
    r"(?:Exited with exit code \d+|Exited by signal \d+|Exited|Done successfully|Completed <\w+>)"
    r"(?:[;.] *TERM_\w+: [^;.]+)?|TERM_\w+: [^;.]+"
)
_LOAD = "go to a login node of the cluster, or load the site's LSF profile (profile.lsf)"
NAME_LAUNCHER = (
    "if they have not: name another command with lsf.launcher, such as ssh {host} {command}"
)
_NOT_TRIED = "LSF has no dry run: bsub judges the rest"


def _version() -> Finding:
    done = call_lsf(["bsub", "-V"])
    said = lsf_lines(done.stderr, done.stdout)
    if done.returncode != 0 or not said:
        return skipped("version", "bsub -V does not say")
    return passed("version", said[0])


def _daemons() -> Finding:
    done = call_lsf(["bqueues"])
    states = parse_queue_states(done.stdout)
    if not states:
        said = "; ".join(lsf_lines(done.stderr, done.stdout)[:2]) or "nothing"
        return failed("daemons", f"bqueues lists no queue and says: {said}", "tell the site")
    usable = [name for name, state in states.items() if state == "Open:Active"]
    cluster = ""
    # Another daemon answers lsid, and not every site has it.
    with contextlib.suppress(SchedulerError):
        found = _CLUSTER.findall(call_lsf(["lsid"]).stdout)
        cluster = "".join(f"{what} {name}, " for what, name in found)
    return passed("daemons", f"{cluster}{len(usable)} of {len(states)} queues are open")


class LsfDoctor:
    """The checks of doctor that ask LSF."""

    def examine(self) -> Iterator[Finding]:
        """Check the commands, their version and the daemons, as far as they work."""
        missing = [name for name in _NEEDED if shutil.which(name) is None]
        if missing:
            yield failed("commands", f"not found: {', '.join(missing)}", _LOAD)
            return
        listed = ", ".join(_NEEDED)
        if shutil.which("brequeue") is None:
            yield warned(
                "commands",
                f"{listed} are there, brequeue is not",
                "nothing to do: a run that is stopped at its limit is submitted again instead",
            )
        else:
            yield passed("commands", f"{listed}, brequeue are there")
        for check in (_version, _daemons):
            try:
                yield check()
            except SchedulerError as error:
                yield failed(check.__name__.strip("_"), error.message, error.hint)

    def examine_for(self, job: JobSpec, cluster: ClusterProfile) -> Iterator[Finding]:
        """Check, too, whether the command is here that starts agents on a job's other hosts."""
        yield from self.examine()
        program = missing_launcher(cluster.lsf.launcher)
        if program is not None and job.resources.nodes > 1:
            yield warned(
                "launcher",
                f"{program}, which starts the agents on a job's other hosts, is not here; the "
                "hosts may have it",
                NAME_LAUNCHER,
            )

    def try_script(self, script: str) -> Finding:
        """Look at the queue of a script; what it asks for was compared with the queue before."""
        named = _QUEUE.search(script)
        queue = ask_queue(named[1] if named else None)
        if queue is None:
            chosen = named[1] if named else "for jobs that name none"
            return skipped(
                "directives", f"bqueues reports nothing about the queue {chosen}; {_NOT_TRIED}"
            )
        if not queue.is_active:
            return warned(
                "directives",
                f"queue {queue.name} takes jobs, but starts none at present",
                "the job waits until it does; name another queue",
            )
        limits = [f"{queue.run_limit_min:g} minutes"] if queue.run_limit_min is not None else []
        limits += [f"{queue.max_slots} slots"] if queue.max_slots is not None else []
        allows = " and ".join(limits) or "jobs of any size"
        return passed(
            "directives", f"queue {queue.name} is open, and allows {allows}; {_NOT_TRIED}"
        )

    def explain_end(self, run: Run) -> str:
        """Return what LSF knows of a job's end, in its own words; empty: it does not answer."""
        job_id = run.read_job_id() or ""
        if not job_id:
            return ""
        try:
            said = call_lsf(["bjobs", "-l", job_id]).stdout
        except SchedulerError:
            return ""
        # The lines of bjobs -l go on in the next one after 21 blanks.
        words = dict.fromkeys(_END.findall(re.sub(r"\n {21}", "", said)))
        return f"LSF says of job {job_id}: {'; '.join(words)}" if words else ""
