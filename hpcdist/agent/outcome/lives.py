"""The lives of a job: each start of it by its scheduler, and what follows the end of one.

A life has one attempt, and more where its ranks were started again after failures. A job that is
stopped before its end leaves the verdict on its last attempt, and asks its scheduler to be started
again; only a run that will not go on gets a verdict.json.

A job is not started again after several lives in a row that brought it no further. What a run has
to show is a number that only grows: the step of its newest checkpoint; for a script, the last step
that it recorded, and how often it stopped in good order (exit code 75). Of a script that has done
neither nothing is known: it may well save, and may have more lives. A life that was preempted
before its first step says nothing of the run, and does not count.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from hpcdist.agent.outcome import words
from hpcdist.base import files
from hpcdist.base.errors import EXIT_STOPPED, SchedulerError
from hpcdist.job.spec import JobSpec, OwnCodeJob
from hpcdist.rank.exit import full_disk
from hpcdist.runs import nodes
from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Beginning, Verdict
from hpcdist.schedulers.base import Scheduler, former_lives
from hpcdist.schedulers.requeue import (
    RequeueRefusedError,
    RequeueUnclearError,
    Sequel,
    is_overdue,
    with_cause,
)
from hpcdist.training.checkpoint import files as checkpoint_files

_MOST_IN_VAIN = 3
_MOST_UNKNOWN = 10
"""Lives in a row without progress after which a job is not started again; `_MOST_UNKNOWN` is for a
script that shows nothing of how far it has come."""
_TERMINATED_S = 15.0
"""After SIGTERM: well within Slurm's KillWait, 30 s where a site does not say otherwise."""
_CONCLUDE_S = 5.0
"""Time before a scheduler's SIGKILL in which the run gets its verdict, and is requeued."""
_PAUSE_S = 5.0
_CONSENT_S = 20.0
"""Time for which the scheduler is asked whether a run may go on without nodes that it has lost."""

_T = TypeVar("_T")


class Attempts:
    """The attempts of a run as one agent knows them: it may decide on the run only as long as it
    knows the newest."""

    def __init__(self, run: Run, job: JobSpec, requeuer: Scheduler | None) -> None:
        self.run = run
        self.job = job
        self.requeuer = requeuer
        self.number = 0
        """The attempt that the agent takes part in."""
        self.has_begun = False
        """The agent takes part in an attempt."""
        self.newest = run.newest_attempt()
        """The newest attempt that it knows: its own, or from before its time."""
        self.life = requeuer.life() if requeuer is not None else former_lives()
        """The life of the job that the agent is of."""
        self.most_grace_s = (requeuer.kill_wait_s if requeuer else math.inf) - _CONCLUDE_S
        """Limit of the time that ranks have to end where the scheduler ends the job."""

    def claim(self, leader: int = 0) -> int:
        """Take the next attempt number for all agents, note how the attempt begins, and return the
        number."""
        return self._begin(self.run.claim_attempt(), leader)

    def claim_next(self, leader: int) -> bool:
        """Take the number after the newest that this agent knows, for this node's; return False
        where others have it, who were cut off from this agent: of two parts of a run one goes
        on."""
        is_taken = self.run.take_attempt(self.newest + 1)
        if is_taken:
            self._begin(self.newest + 1, leader)
        return is_taken

    def _begin(self, number: int, leader: int) -> int:
        progress = _progress(self.run, self.job)
        self.begin(number)
        now_s = time.time()
        beginning = Beginning(life=self.life, progress=progress, leader=leader, time_s=now_s)
        self.run.write_beginning(self.number, beginning)
        return self.number

    def begin(self, number: int) -> None:
        """Take part in an attempt that node 0's agent has claimed."""
        self.number, self.newest, self.has_begun = number, number, True

    def is_overtaken(self) -> bool:
        """Return True where a newer attempt has begun elsewhere: this agent must decide nothing."""
        return self.run.is_overtaken(self.newest)


def _progress(run: Run, job: JobSpec) -> int:
    """Return how far the run has come, as a number."""
    if not isinstance(job, OwnCodeJob):
        checkpoints = checkpoint_files.list_checkpoints(run.checkpoints_folder)
        return checkpoint_files.step_of(checkpoints[0]) if checkpoints else 0
    step = stops = 0
    for attempt in run.attempts():
        verdict = run.read_attempt_verdict(attempt)
        stops += verdict is not None and verdict.exit_code == EXIT_STOPPED
        with contextlib.suppress(OSError):  # a file that cannot be read counts as empty
            steps = [event.get("step") for event in read_events(run.event_file(0, attempt))]
            step = max([step, *(one for one in steps if isinstance(one, int))])
    return step + stops


def _has_saved(run: Run, job: JobSpec) -> bool:
    """Return True where a checkpoint is newer than the begin of this life; a script must have
    recorded steps, too, by which it goes on from what it saved."""
    begun = run.read_beginnings()
    own = [attempt for attempt, one in begun.items() if one.life == begun[max(begun)].life]
    if not own or _progress(run, job) <= begun[min(own)].progress:
        return False
    if not isinstance(job, OwnCodeJob):
        return True
    begin = run.attempt_file(min(own), "begin.json")  # by the file server's clock
    saved = checkpoint_files.list_saved(run.path).values()
    return max(saved, default=0) > begin.stat().st_mtime_ns


def verdict_if_stalled(run: Run, job: JobSpec, ended: Verdict | None = None) -> Verdict | None:
    """Return the final verdict where another life would be in vain; None where it may begin.

    `ended` is the verdict on the life that is at its end, which is not written yet.
    """
    is_own_code, now = isinstance(job, OwnCodeJob), _progress(run, job)
    if is_own_code and ended is not None and ended.exit_code == EXIT_STOPPED:
        now += 1
    begun, attempts_of_life = run.read_beginnings(), dict[int, list[int]]()
    for attempt in sorted(begun):
        if begun[attempt].life >= former_lives():  # who resumes a run has looked at the others
            attempts_of_life.setdefault(begun[attempt].life, []).append(attempt)
    in_vain: list[int] = []
    for attempts in reversed(attempts_of_life.values()):
        if now > begun[attempts[0]].progress:
            break
        end = run.read_attempt_verdict(attempts[-1])
        if end is None and attempts[-1] == max(begun):
            end = ended
        if end is None or end.kind != "preempted" or end.step is not None:
            in_vain.insert(0, attempts[0])
    if len(in_vain) < (_MOST_UNKNOWN if is_own_code and now == 0 else _MOST_IN_VAIN):
        return None
    step = None if is_own_code else now
    return Verdict(
        kind="no_progress",
        message=words.no_progress(in_vain, None if ended is None else ended.message, step),
        step=step,
        attempt=run.newest_attempt(),
        time_s=time.time(),
    )


def note_lost_attempt(run: Run, *, life: int) -> None:
    """Give the newest attempt a verdict where it is of a former life and has none.

    Nobody is left to say why a job of one node ended with it, or one whose node 0 went down
    together with its ranks, where the scheduler starts the job again before another agent has
    spoken. Every agent calls this before it writes its own file: the files name former hosts.
    """
    attempt = run.newest_attempt()
    begun = run.read_beginnings().get(attempt)
    if begun is None or begun.life >= life or run.read_attempt_verdict(attempt) is not None:
        return
    found = [one for path in run.agent_files() if isinstance(one := files.read_json(path), dict)]
    where = found[0] if len(found) == 1 else {}
    node, host = where.get("node"), where.get("host")
    message = words.lost_with_node(node, host)
    lost = Verdict(kind="agent_lost", message=message, node=node, host=host, attempt=attempt)
    lost = replace(lost, time_s=time.time())
    run.write_attempt_verdict(lost)
    nodes.note_verdict(run.id, lost)


def note_restart(run: Run, verdict: Verdict) -> str | None:
    """Write the verdict on an attempt after which another is to follow; return why it cannot be
    written."""
    try:
        run.write_attempt_verdict(verdict)
    except OSError as error:
        return full_disk(error, [run.path]) or f"its verdict cannot be written: {error.strerror}"
    return None


def note_node(attempts: Attempts, verdict: Verdict) -> None:
    """Note the nodes that a verdict blames in the ledger, where submissions will read it."""
    if attempts.requeuer is not None and attempts.requeuer.shares_files:
        nodes.note_verdict(attempts.run.id, verdict)
        for host, why in verdict.left_out.items():
            nodes.note("preflight", host, attempts.run.id, why)


def is_ours(attempts: Attempts, verdict: Verdict) -> bool:
    """Return True where the scheduler says that the job runs, and is neither to end nor to be
    started again. Agents that cannot ask may be cut off, and do not go on."""
    if (requeuer := attempts.requeuer) is None:
        return True
    asked = replace(verdict, try_elsewhere=False, left_out={})
    try:
        decision = _retry(lambda: requeuer.decide(asked), time.monotonic() + _CONSENT_S)
    except (SchedulerError, OSError):
        return False
    return decision.sequel == "requeue" and decision.cause == "nothing"


def _retry(ask: Callable[[], _T], deadline: float) -> _T:
    """Return the answer of a scheduler, once there is one; raise the last error once it is too
    late, by the monotonic clock.

    A controller that is restarted or busy is silent for a while, and a job that gives up then has
    lost its place.
    """
    while True:
        try:
            return ask()
        except (SchedulerError, OSError):
            if (left_s := deadline - time.monotonic()) <= 0:
                raise
            time.sleep(min(_PAUSE_S, left_s))


def conclude(attempts: Attempts, verdict: Verdict, *, leaves_final: bool = False) -> Verdict:
    """Write verdict.json, after a failure of the program at once; or, where the job can go on, the
    verdict on its last attempt, and have the scheduler start the job again.

    Returns the verdict with what the scheduler knows of it. Where a newer attempt has begun
    elsewhere, as it may while the scheduler is asked, nothing is written; nor, with `leaves_final`,
    where the scheduler ends the job and says why. Of several agents that call this at the end of
    one life, one acts.
    """
    run, requeuer = attempts.run, attempts.requeuer
    if requeuer is None or not (leaves_final or _may_go_on(verdict)):
        run.write_verdict(verdict)
        return verdict
    limit_s = _TERMINATED_S if verdict.signal == "SIGTERM" else requeuer.patience_s
    deadline = time.monotonic() + limit_s
    try:
        decision = _retry(lambda: requeuer.decide(verdict), deadline)
    except (SchedulerError, OSError) as error:
        verdict = with_cause(verdict, None)
        # An agent that has lost the others may be the one that is cut off, while they go on: it
        # leaves the run to them, and to the scheduler.
        is_wanted = attempts.job.launch.requeue and _may_go_on(verdict)
        is_open = is_wanted and verdict.kind == "agent_lost"
        write = run.write_attempt_verdict if is_open else run.write_verdict
        if not attempts.is_overtaken():
            write(words.not_requeued(verdict, error) if is_wanted else verdict)
        return verdict
    verdict = with_cause(verdict, decision)
    if attempts.is_overtaken() or (leaves_final and decision.sequel == "final"):
        return verdict
    if (final := _final_verdict(run, attempts.job, verdict, decision.sequel)) is not None:
        run.write_verdict(final)
        return final
    if run.claim_end_of_life(attempts.life):
        if not attempts.has_begun:
            verdict = replace(verdict, attempt=attempts.claim())
        if reason := note_restart(run, verdict):
            run.write_verdict(words.not_requeued(verdict, reason))
        elif decision.sequel == "requeue":
            _requeue(attempts, requeuer, verdict, deadline)
    return verdict


def _final_verdict(run: Run, job: JobSpec, verdict: Verdict, sequel: Sequel) -> Verdict | None:
    """Return the verdict on a run that will not go on; None where it will."""
    if not _may_go_on(verdict):  # the scheduler's cause may have changed it
        return verdict
    if is_overdue(verdict) and not _has_saved(run, job):
        has_hint = isinstance(job, OwnCodeJob) and job.launch.requeue
        return words.add(verdict, words.GOES_ON) if has_hint else verdict
    if sequel == "final" or not (job.launch.requeue or sequel == "open"):
        return verdict
    return verdict_if_stalled(run, job, verdict)


def _requeue(attempts: Attempts, requeuer: Scheduler, verdict: Verdict, deadline: float) -> None:
    run, was_asked = attempts.run, False

    def requeue_unless_heard() -> str | None:
        """Ask whether a former request was heard after all: a second one would be refused."""
        nonlocal was_asked
        sequel = requeuer.decide(verdict).sequel if was_asked else "requeue"
        was_asked = True
        if sequel == "final":
            raise SchedulerError("the job is being ended")
        return requeuer.requeue(run) if sequel == "requeue" else None

    try:
        remark = _retry(requeue_unless_heard, deadline)
    except RequeueUnclearError as error:
        remark = error.message
    except (RequeueRefusedError, SchedulerError, OSError) as error:
        if not attempts.is_overtaken():
            run.write_verdict(words.not_requeued(verdict, error))
        return
    if remark is not None:
        note_restart(run, words.add(verdict, remark))


def _may_go_on(verdict: Verdict) -> bool:
    """Return True where the job may be started again after this."""
    return (
        verdict.exit_code_of_run == EXIT_STOPPED
        or verdict.kind in {"agent_lost", "preempted"}
        or verdict.try_elsewhere
        or is_overdue(verdict)
    )
