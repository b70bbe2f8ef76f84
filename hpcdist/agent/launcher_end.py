"""The end of srun, which starts the agents of a job, where they did not say how the run ended.

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

from hpcdist.agent.outcome import failure, lives
from hpcdist.agent.task import AgentTask
from hpcdist.base.errors import SchedulerError
from hpcdist.base.polling import poll
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.schedulers import load_requeuer
from hpcdist.schedulers.base import Scheduler

_ON_ITS_WAY_S = 5.0
"""Time in which a verdict that another node wrote is seen here, on a shared file system."""
_POLL_S = 0.5
_NO_STEP = re.compile(
    r"unable to create (?:job )?step|step creation|unable to confirm allocation"
    r"|task launch .*failed|communication connection failure|unable to contact slurm controller"
    r"|socket timed out|application launch failed",
    re.IGNORECASE,
)
"""Messages of srun where it could start nothing, through no fault of what it was to start."""


def main() -> None:
    """Say how the run ended, or have its job requeued; the scheduler's script calls this after srun
    has ended with an error: with submitit's folder, the error, and the length that the script's log
    had before."""
    from hpcdist.schedulers.submitting import load_task

    folder, code, begin = sys.argv[1:]
    task = load_task(Path(folder))
    assert isinstance(task, AgentTask)
    run = Run(Path(task.run_path))
    job, _, _ = run.read_launch()
    requeuer = load_requeuer(task.scheduler)
    if requeuer is not None:
        said = failure.srun_errors(Path("/dev/stderr"), begin=int(begin))
        conclude(run, job, requeuer, code=int(code), said=said)


def conclude(run: Run, job: JobSpec, requeuer: Scheduler, *, code: int, said: list[str]) -> None:
    """Say how the run ended, or have its job requeued, unless its agents did, or it is being
    ended."""
    life = requeuer.life()
    attempt = lives.newest_of_life(run, life)
    if _is_concluded(run, life, wait_s=0.0 if attempt is None else _ON_ITS_WAY_S):
        return
    who = "no agent was started: srun" if attempt is None else "srun, which had started the agents,"
    verdict = failure.without_rank(
        "launch" if attempt is None else "agent_lost",
        f"{who} {_ended(code)}{failure.quoted(said)}",
        time_s=time.time(),
        attempt=attempt or 0,
    )
    patience = lives.Patience(verdict, _sleep)
    try:
        if patience.retry(lambda: requeuer.decide(verdict)).sequel == "final":
            return  # whoever ends the job, its scheduler says why
    except (SchedulerError, OSError):
        pass  # which is told below
    if attempt is not None:
        lives.conclude(
            run,
            job,
            verdict,
            requeuer,
            patience=patience,
            has_a_say=lambda: run.newest_attempt() <= attempt,
        )
    elif any(map(_NO_STEP.search, said)):
        lives.conclude_unstarted(run, job, verdict, requeuer, patience=patience)
    else:
        run.write_verdict(verdict)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _is_concluded(run: Run, life: int, *, wait_s: float) -> bool:
    def look() -> bool | None:
        return run.verdict_file.exists() or run.has_claimed_end_of_life(life) or None

    return run.cancel_file.exists() or bool(poll(look, interval_s=_POLL_S, limit_s=wait_s))


def _ended(code: int) -> str:
    names = {128 + number: number.name for number in signal.Signals}
    if code in names:
        return f"or its tasks were killed by {names[code]}"
    return f"ended with exit code {code}"
