"""The end of srun, which starts the agents of a job: its words, and what follows where the agents
did not say how the run ended.

srun may be killed while the agents live, or be told to end them at once; and it may start none at
all. Slurm 22.05 knows of no GPUs of a job that it had started on a lost node before: it creates no
step of it ("Invalid generic resource (gres) specification"), until the job is requeued.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from hpcdist.agent.outcome import lives
from hpcdist.base.progress import poll
from hpcdist.base.text import one_line
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers import load_requeuer
from hpcdist.schedulers.base import Scheduler
from hpcdist.schedulers.notes import Notes
from hpcdist.schedulers.slurm.nodes import srun_errors, step_hosts
from hpcdist.schedulers.tasks import end_unless_adopted, own_place, read_task

_ON_ITS_WAY_S = 5.0
"""Time in which a verdict that another node wrote is seen here, on a shared file system."""
_POLL_S = 0.5
_LONGEST_WORDS = 500
_NO_STEP = re.compile(
    r"unable to create (?:job )?step|step creation|unable to confirm allocation"
    r"|task launch .*failed|communication connection failure|unable to contact slurm controller"
    r"|socket timed out|application launch failed",
    re.IGNORECASE,
)
"""Messages of srun where it could start nothing, through no fault of what it was to start."""
_MISSING_STEP = re.compile(
    r"(?:(?:missing step|io error|slurmstepd) on|test connection to|communicate with) node (\d+)",
    re.IGNORECASE,
)
"""Messages of srun that name a node whose slurmstepd it has lost: which one it prints depends on
whether it or slurmctld misses that first (step_launch.c of Slurm)."""


def main() -> None:
    """Say how the run ended, or have its job requeued, and exit with its code; the scheduler's
    script calls this after srun has ended with an error: with submitit's folder, the error, and the
    length that the script's log had before. An error of srun is none of a run that is done: it may
    have gone on without nodes that srun has lost."""
    folder, code, begin = sys.argv[1:]
    task = read_task(Path(folder))
    run = Run(Path(task.run_path))
    if (requeuer := load_requeuer(task.scheduler)) is not None:
        end_unless_adopted(Path(folder), own_place(), str(requeuer.own_job_id()))
        said = srun_errors(Path("/dev/stderr"), int(begin))
        conclude(run, run.read_launch()[0], requeuer, code=int(code), said=said)
    verdict = run.read_verdict()
    sys.exit(0 if verdict is not None and verdict.state == "done" else int(code))


def conclude(run: Run, job: JobSpec, requeuer: Scheduler, *, code: int, said: list[str]) -> None:
    """Say how the run ended, or have its job requeued, unless its agents did, or it is being
    ended."""
    attempts = lives.Attempts(run, job, requeuer)
    own = [n for n, begun in run.read_beginnings().items() if begun.life == attempts.life]
    files = run.verdict_file, run.end_of_life_file(attempts.life)
    if run.cancel_file.exists() or poll(
        lambda: any(file.exists() for file in files) or None,
        interval_s=_POLL_S,
        limit_s=_ON_ITS_WAY_S if own else 0.0,
    ):
        return
    ended = f"ended with exit code {code}"
    if code - 128 in {*signal.Signals}:
        ended = f"or its tasks were killed by {signal.Signals(code - 128).name}"
    ended += f", and said: {_quote(said)}" if said else ""
    if own:
        attempts.begin(max(own))
        sentence = f"srun, which had started the agents, {ended}"
        verdict = Verdict(kind="agent_lost", message=sentence, attempt=attempts.number)
    else:
        lives.note_lost_attempt(run, life=attempts.life)
        elsewhere = any(map(_NO_STEP.search, said))
        sentence = f"no agent was started: srun {ended}"
        verdict = Verdict(kind="launch", message=sentence, try_elsewhere=elsewhere)
    verdict = replace(verdict, time_s=time.time())
    lives.conclude(attempts, verdict, leaves_final=True)


def after_launcher(verdict: Verdict, notes: Notes) -> Verdict:
    """Return the verdict on a lost agent that names the node which srun missed first: srun kills
    the healthy tasks then, so that the order in which agents are lost does not name the cause."""
    if verdict.kind != "agent_lost":
        return verdict
    said = srun_errors(notes.srun_log, notes.srun_begin)
    missed = next(filter(None, map(_MISSING_STEP.search, said)), None)
    if missed is None:
        return verdict
    node, host = int(missed[1]), step_hosts().get(int(missed[1]))
    name = f"node {node} (host {host})" if host else f"node {node}"
    sentence = f"Slurm's part of the job on {name} was lost; srun said: {_quote(said)}"
    return replace(verdict, message=sentence, node=node, host=host)


def _quote(said: list[str]) -> str:
    return one_line("; ".join(dict.fromkeys(said)))[:_LONGEST_WORDS]
