"""The lives of a job: each start of it by its scheduler, and what follows the end of one.

A life has one attempt, and more where its ranks were started again after failures. A job that is
stopped before its end leaves the verdict on its last attempt, and asks its scheduler to be started
again; only a run that will not go on gets a verdict.json.

Lives that bring the run no further are not repeated for ever. What a run has to show is a number
that only grows: the step of its newest checkpoint; for a script, the last step that it recorded,
and how often it stopped in good order (exit code 75), which is all that can be known of checkpoints
of its own. Of a script that has done neither nothing is known: it may well save, and is judged by a
generous number of lives alone. A life that others cut short before its first step says nothing of
the run: a preemption may come at any time, and twenty in a row; a node that is lost may be the
job's own doing, so that there is a limit to these.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import TypeVar

import msgspec

from hpcdist.agent.outcome import failure
from hpcdist.agent.outcome.lack import full_disk
from hpcdist.base import files
from hpcdist.base.errors import EXIT_STOPPED, SchedulerError
from hpcdist.base.text import listed
from hpcdist.job.spec import JobSpec, OwnCodeJob
from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Beginning, Kind, Verdict
from hpcdist.schedulers.base import Scheduler, former_lives
from hpcdist.schedulers.requeue import (
    RequeueRefusedError,
    RequeueUnclearError,
    is_overdue,
    with_cause,
)
from hpcdist.training.checkpoint import files as checkpoint_files

_MOST_STALLED = 2
_MOST_UNKNOWN = 10
"""Lives of a script that shows nothing of how far it comes; lives that lost a node before their
first step."""
_MOST_UNSTARTED = 3
"""Lives in a row in which no agent could be started."""
_GOES_ON = (
    "a script is started again after its limit if it leaves with 75 when record.should_stop() says "
    "so, or if it records its steps and has saved a checkpoint in HPCDIST_RUN_DIR; hpcdist resume "
    "starts it again by hand"
)
_OF_OTHERS = frozenset[Kind]({"preempted"})
_PERHAPS_OWN = frozenset[Kind]({"agent_lost", "launch"})
"""Kinds of ends that others bring about, and those that the job may have brought about itself."""

_TERMINATED_S = 15.0
"""After SIGTERM: well within Slurm's KillWait, 30 s where a site does not say otherwise."""
_CONCLUDE_S = 5.0
"""Time before a scheduler's SIGKILL in which the run gets its verdict, and is requeued."""
_PAUSE_S = 5.0

_T = TypeVar("_T")


class Attempts:
    """The attempts of a run as one agent knows them: only who knows the newest has a say."""

    def __init__(
        self, run: Run, job: JobSpec, requeuer: Scheduler | None, *, log: Callable[[str], None]
    ) -> None:
        self.number = 0
        """The attempt that the agent takes part in."""
        self.has_begun = False
        """The agent takes part in an attempt."""
        self._run = run
        self._job = job
        self._log = log
        self.newest = run.newest_attempt()
        """The newest attempt that it knows: its own, or from before its time."""
        self.life = requeuer.life() if requeuer is not None else former_lives()
        self.most_grace_s = (requeuer.kill_wait_s if requeuer else math.inf) - _CONCLUDE_S
        """Time that ranks have to end where the scheduler ends the job."""
        """The life of the job that the agent is of."""

    def claim(self) -> int:
        """Take the next attempt number for all agents, and return it."""
        self.begin(begin_attempt(self._run, self._job, life=self.life))
        return self.number

    def begin(self, number: int) -> None:
        self.number = self.newest = number
        self.has_begun = True

    def is_overtaken(self) -> bool:
        return self._run.newest_attempt() > self.newest

    def has_a_say(self) -> bool:
        """Return False, and write that to the agent's log, where a newer attempt has begun
        elsewhere."""
        newest = self._run.newest_attempt()
        if newest > self.newest:
            self._log(f"attempt {newest} has begun elsewhere: this one has no say any more")
        return newest <= self.newest


def begin_attempt(run: Run, job: JobSpec, *, life: int) -> int:
    """Take the next attempt number, and note how the attempt begins."""
    beginning = Beginning(life=life, progress=progress(run, job), time_s=time.time())
    attempt = run.claim_attempt()
    run.write_beginning(attempt, beginning)
    return attempt


def note_restart(run: Run, verdict: Verdict) -> str | None:
    """Write the verdict on an attempt after which another is to follow; return why it cannot be
    written."""
    try:
        run.write_attempt_verdict(verdict)
    except OSError as error:
        return full_disk(error, [run.path]) or f"its verdict cannot be written: {error.strerror}"
    return None


def beginnings(run: Run) -> dict[int, Beginning]:
    """Return how each attempt began, by attempt, without those whose file is missing or damaged."""
    begun = {attempt: run.read_beginning(attempt) for attempt in run.attempts()}
    return {attempt: beginning for attempt, beginning in begun.items() if beginning is not None}


def newest_of_life(run: Run, life: int) -> int | None:
    """Return the newest attempt of one life; None where it had none."""
    return max(
        (attempt for attempt, begun in beginnings(run).items() if begun.life == life), default=None
    )


def progress(run: Run, job: JobSpec) -> int:
    """Return how far the run has come, as a number."""
    if isinstance(job, OwnCodeJob):
        step = stops = 0
        for attempt in run.attempts():
            stops += _stopped_well(run.read_attempt_verdict(attempt))
            with contextlib.suppress(OSError):  # a file that cannot be read counts as empty
                for event in read_events(run.event_file(0, attempt)).events:
                    found = event.get("step")
                    step = max(step, found if isinstance(found, int) else 0)
        return step + stops
    checkpoints = checkpoint_files.list_checkpoints(run.checkpoints_folder)
    return checkpoint_files.step_of(checkpoints[0]) if checkpoints else 0


def has_saved(run: Run, job: JobSpec) -> bool:
    """Return True where a checkpoint is newer than the begin of this life; of a script, where it
    has recorded steps, too: without them nothing says that it goes on from what it saved."""
    begun = beginnings(run)
    if not begun:
        return False
    life = begun[max(begun)].life
    first = min(attempt for attempt, one in begun.items() if one.life == life)
    is_further = progress(run, job) > begun[first].progress
    if not is_further or not isinstance(job, OwnCodeJob):
        return is_further
    saved = checkpoint_files.list_saved(run.path)
    begin = run.attempts_folder / f"{first:05d}" / "begin.json"  # by the file server's clock
    return max(saved.values(), default=0) > begin.stat().st_mtime_ns


def verdict_if_stalled(run: Run, job: JobSpec, ended: Verdict | None = None) -> Verdict | None:
    """Return the final verdict where another life would be in vain; None where it may begin.

    `ended` is the verdict on the life that is at its end.
    """
    is_own_code = isinstance(job, OwnCodeJob)
    now = progress(run, job) + (is_own_code and _stopped_well(ended))
    # Whoever resumes a run has looked at what came before.
    former = former_lives()
    begun = {number: one for number, one in beginnings(run).items() if one.life >= former}
    ends = attempt_verdicts(run, ended)
    in_vain = [
        life for life in lives_in_vain(begun, now) if not _ended_early(run, life, ends, _OF_OTHERS)
    ]
    counted = [life for life in in_vain if not _ended_early(run, life, ends, _PERHAPS_OWN)]
    most = _MOST_UNKNOWN if is_own_code and now == 0 else _MOST_STALLED
    if len(counted) < most and len(in_vain) < _MOST_UNKNOWN:
        return None
    if is_own_code:
        missing = "a newly recorded step or a stop with exit code 75"
        advice = (
            "Give it more time; have it record its steps, counted on from its own checkpoint "
            "(record.start(first_step=...)), or leave with 75 when record.should_stop() says so"
        )
    else:
        missing = f"a checkpoint newer than step {now}"
        advice = "Give it more time, or save more often (checkpoint.every_steps)"
    last = f" (the last: {ended.message})" if ended is not None else ""
    firsts = [life[0] for life in in_vain]
    return failure.without_rank(
        "no_progress",
        f"no progress in {len(in_vain)} starts: those of {listed(firsts, 'attempt')} "
        f"ended without {missing}{last}; it is not started again. {advice}",
        step=None if is_own_code else now,
        attempt=max(begun),
        time_s=time.time(),
    )


def lives_in_vain(begun: dict[int, Beginning], now: int) -> list[list[int]]:
    """Return the newest lives that brought the run no further: the attempts of each, oldest
    first."""
    lives: dict[int, list[int]] = {}
    for attempt in sorted(begun):
        lives.setdefault(begun[attempt].life, []).append(attempt)
    in_vain: list[list[int]] = []
    after = now
    for attempts in reversed(lives.values()):
        before = begun[attempts[0]].progress
        if after > before:
            break
        in_vain.insert(0, attempts)
        after = before
    return in_vain


def attempt_verdicts(run: Run, ended: Verdict | None) -> dict[int, Verdict]:
    """Return the verdicts on attempts; `ended` is on the last, and not written yet."""
    found = {attempt: run.read_attempt_verdict(attempt) for attempt in run.attempts()}
    verdicts = {attempt: verdict for attempt, verdict in found.items() if verdict is not None}
    return verdicts if ended is None else {max(found, default=0): ended} | verdicts


def _ended_early(
    run: Run, life: Sequence[int], ends: Mapping[int, Verdict], kinds: Collection[Kind]
) -> bool:
    """Return True where a life, of these attempts, ended before its first step, and not by itself:
    the verdict on its last attempt is of one of these kinds."""
    last = ends.get(life[-1])
    if last is None or last.kind not in kinds:
        return False
    told = any(
        attempt in ends and (ends[attempt].first or ends[attempt]).step is not None
        for attempt in life
    )
    # Of a lost node nothing says how far it came but what was recorded.
    return not told and not any(_has_recorded_steps(run, attempt) for attempt in life)


def _has_recorded_steps(run: Run, attempt: int) -> bool:
    with contextlib.suppress(OSError):
        events = read_events(run.event_file(0, attempt)).events
        return any(isinstance(one.get("step"), int) for one in events if one["event"] != "resume")
    return False


def note_lost_attempt(run: Run, *, life: int) -> None:
    """Give the newest attempt a verdict where it is of a former life and has none.

    Nobody is left to say why a job of one node ended with it, or one whose node 0 went down
    together with its ranks, where the scheduler starts the job again before another agent has
    spoken. Every agent calls this before it writes its own file: the files name the former hosts,
    and of several agents the first, who sees all of them, is the one that writes.
    """
    begun = beginnings(run)
    attempt = run.newest_attempt()
    is_former = attempt in begun and begun[attempt].life < life
    if not is_former or run.read_attempt_verdict(attempt) is not None:
        return
    agents = [
        found for path in run.agent_files() if isinstance(found := files.read_json(path), dict)
    ]
    where = agents[0] if len(agents) == 1 else {}
    *others, last = [f"node {one.get('node')} (host {one.get('host')})" for one in agents] or [
        "the job"
    ]
    who = f"the agents of {', '.join(others)} and {last}" if others else f"the agent of {last}"
    lost = failure.without_rank(
        "agent_lost",
        f"{who} left no verdict before the job was started again: lost with a node",
        time_s=time.time(),
        attempt=attempt,
        node=where.get("node"),
        host=where.get("host"),
    )
    run.write_lost_attempt_verdict(lost)


class Patience:
    """One span of time for all that a scheduler is asked at the end of a life.

    A controller that is restarted or busy is silent for a while, and a job that gives up then has
    lost its place. How long it may try depends on how long it will be left alive.
    """

    def __init__(
        self,
        verdict: Verdict,
        pause: Callable[[float], bool],
        requeuer: Scheduler | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pause` waits so many seconds, or until SIGTERM comes, and then returns True."""
        self._pause = pause
        self._now = now
        is_terminated = verdict.signal == "SIGTERM"
        warned_s = (requeuer or Scheduler).patience_s
        self._deadline = now() + (_TERMINATED_S if is_terminated else warned_s)

    def retry(self, ask: Callable[[], _T], *, at_once: bool = True) -> _T:
        """Return the answer, once there is one; raise the last SchedulerError or OSError after the
        time.

        Not `at_once`: a first try has just failed.
        """
        if not at_once:
            self._wait()
        while True:
            try:
                return ask()
            except (SchedulerError, OSError):
                if self._now() >= self._deadline:
                    raise
                self._wait()

    def _wait(self) -> None:
        left_s = self._deadline - self._now()
        if left_s > 0 and self._pause(min(_PAUSE_S, left_s)):
            self._deadline = min(self._deadline, self._now() + _TERMINATED_S)


def conclude(
    run: Run,
    job: JobSpec,
    verdict: Verdict,
    requeuer: Scheduler | None,
    *,
    patience: Patience,
    has_a_say: Callable[[], bool] = lambda: True,
    begin_attempt: Callable[[], int] | None = None,
) -> Verdict:
    """Write the verdict on the run; or that on its last attempt, and have the job started again.

    Returns the verdict with what the scheduler knows of it. `has_a_say` turns false once a newer
    attempt has begun elsewhere, as it may while the scheduler is asked: then nothing is written.
    `begin_attempt` takes an attempt number where the job ended before it had one. Of several agents
    that call this at the end of one life, one acts.
    """
    may_go_on = (
        verdict.exit_code_of_run == EXIT_STOPPED
        or verdict.kind in {"agent_lost", "preempted"}
        or verdict.try_elsewhere
        or is_overdue(verdict)
    )
    if requeuer is None or not may_go_on:
        run.write_verdict(verdict)
        return verdict
    try:
        decision = patience.retry(lambda: requeuer.decide(verdict))
    except (SchedulerError, OSError) as error:
        explained = with_cause(verdict, None)
        if has_a_say():
            _end_undecided(run, job, explained, error)
        return explained
    explained = with_cause(verdict, decision)
    if not has_a_say():
        return explained
    is_lost = is_overdue(explained) and not has_saved(run, job)
    goes_on = job.launch.requeue or decision.sequel == "open"
    if decision.sequel == "final" or not goes_on or is_lost:
        explained = _with_advice(explained, job) if is_lost else explained
        run.write_verdict(explained)
    elif (stalled := verdict_if_stalled(run, job, explained)) is not None:
        run.write_verdict(stalled)
        return stalled
    elif run.claim_end_of_life(requeuer.life()):
        if begin_attempt is not None:
            explained = msgspec.structs.replace(explained, attempt=begin_attempt())
        if _note_end_of_life(run, explained) and decision.sequel == "requeue":
            _requeue(run, explained, requeuer, patience, has_a_say)
    return explained


def conclude_unstarted(
    run: Run, job: JobSpec, verdict: Verdict, requeuer: Scheduler, *, patience: Patience
) -> None:
    """Have a job started again in which no agent could be started, through no fault of its own; or
    write the verdict, where that was in vain before."""
    life = requeuer.life()
    note_lost_attempt(run, life=life)
    times = _num_unstarted(run) + 1
    if not job.launch.requeue or times >= _MOST_UNSTARTED:
        again = f" (in {times} starts in a row)" if times > 1 else ""
        run.write_verdict(msgspec.structs.replace(verdict, message=verdict.message + again))
    elif run.claim_end_of_life(life):
        attempt = begin_attempt(run, job, life=life)
        verdict = msgspec.structs.replace(verdict, attempt=attempt)
        if _note_end_of_life(run, verdict):
            _requeue(run, verdict, requeuer, patience, lambda: run.newest_attempt() <= attempt)


def _num_unstarted(run: Run) -> int:
    """Return how many of the newest attempts no agent had a part in."""
    verdicts = map(run.read_attempt_verdict, reversed(run.attempts()))
    unstarted = takewhile(lambda verdict: verdict and verdict.kind == "launch", verdicts)
    return sum(1 for _ in unstarted)


def _note_end_of_life(run: Run, verdict: Verdict) -> bool:
    """Write the verdict on the last attempt; where that cannot be, it is the run's, and False."""
    reason = note_restart(run, verdict)
    if reason is not None:
        run.write_verdict(_not_requeued(verdict, reason))
    return reason is None


def _end_undecided(run: Run, job: JobSpec, verdict: Verdict, error: Exception) -> None:
    """Conclude without the scheduler, which could not be asked. An agent that has lost the others
    may be the one that is cut off, while they go on: it leaves the run to them, and the
    scheduler."""
    if not job.launch.requeue:
        run.write_verdict(verdict)
    elif verdict.kind == "agent_lost":
        run.write_attempt_verdict(_not_requeued(verdict, error))
    else:
        run.write_verdict(_not_requeued(verdict, error))


def _requeue(
    run: Run,
    verdict: Verdict,
    requeuer: Scheduler,
    patience: Patience,
    has_a_say: Callable[[], bool],
) -> None:
    def requeue_unless_heard() -> str | None:
        """Ask whether the first request was heard after all: a second one would be refused."""
        sequel = requeuer.decide(verdict).sequel
        if sequel == "requeue":
            return requeuer.requeue(run)
        if sequel == "final":
            raise SchedulerError("the job is being ended")
        return None

    try:
        try:
            difference = requeuer.requeue(run)
        except (SchedulerError, OSError):
            difference = patience.retry(requeue_unless_heard, at_once=False)
        if difference is not None:
            note_restart(run, _with_words(verdict, difference))
    except RequeueUnclearError as error:
        note_restart(run, _with_words(verdict, error.message))
    except (RequeueRefusedError, SchedulerError, OSError) as error:
        if has_a_say():
            run.write_verdict(_not_requeued(verdict, error))


def _not_requeued(verdict: Verdict, reason: Exception | str) -> Verdict:
    return _with_words(verdict, f"it could not be requeued: {reason}")


def _with_advice(verdict: Verdict, job: JobSpec) -> Verdict:
    """Return the verdict on a run that was ended at its limit with what a script could do."""
    if not isinstance(job, OwnCodeJob) or not job.launch.requeue:
        return verdict
    return _with_words(verdict, _GOES_ON)


def _with_words(verdict: Verdict, sentence: str) -> Verdict:
    return msgspec.structs.replace(verdict, message=f"{verdict.message}; {sentence}")


def _stopped_well(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.exit_code == EXIT_STOPPED
