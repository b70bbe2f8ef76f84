"""The lives of a job: each start of it by its scheduler, and whether they bring the run further.

A life has one attempt, and more where its ranks were started again after failures. What a run has
to show is a number that only grows: the step of its newest checkpoint; for a script, the last step
that it recorded, and how often it stopped in good order (exit code 75), which is all that can be
known of checkpoints of its own. Of a script that has done neither nothing is known: it may well
save, and is judged by a generous number of lives alone.
"""

from __future__ import annotations

import time

import msgspec

from hpcdist.base.errors import EXIT_FAILED, EXIT_STOPPED
from hpcdist.base.text import listed
from hpcdist.job.spec import JobSpec, OwnCodeJob
from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.training.checkpoint import files as checkpoint_files

_MOST_STALLED = 2
_MOST_UNKNOWN = 10
"""Lives of a script that shows nothing of how far it comes."""


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt began, as it stands in attempts/NNNNN/begin.json."""

    life: int
    """How often the scheduler had started the job before."""
    progress: int
    """What the run had to show then."""
    time_s: float


def begin_attempt(run: Run, job: JobSpec, *, life: int) -> int:
    """Take the next attempt number, and note how the attempt begins."""
    beginning = Beginning(life=life, progress=progress(run, job), time_s=time.time())
    attempt = run.claim_attempt()
    run.write_beginning(attempt, msgspec.to_builtins(beginning))
    return attempt


def beginnings(run: Run) -> dict[int, Beginning]:
    """How each attempt began, by attempt; those whose file is missing or damaged are left out."""
    found: dict[int, Beginning] = {}
    for attempt in run.attempts():
        try:
            found[attempt] = msgspec.convert(run.read_beginning(attempt), Beginning)
        except msgspec.ValidationError:
            continue
    return found


def progress(run: Run, job: JobSpec) -> int:
    """What the run has to show now."""
    if isinstance(job, OwnCodeJob):
        stops = sum(_stopped_well(run.read_attempt_verdict(a)) for a in run.attempts())
        return _last_recorded_step(run) + stops
    checkpoints = checkpoint_files.list_checkpoints(run.checkpoints_folder)
    return checkpoint_files.step_of(checkpoints[0]) if checkpoints else 0


def has_saved(run: Run, job: JobSpec) -> bool:
    """Whether there is a checkpoint newer than the begin of this life. Of a script that did not
    stop when it was told to, that is taken to be no: nothing says that it could go on."""
    begun = beginnings(run)
    if isinstance(job, OwnCodeJob) or not begun:
        return False
    life = begun[max(begun)].life
    first = min(attempt for attempt, one in begun.items() if one.life == life)
    return progress(run, job) > begun[first].progress


def stalled_at_begin(run: Run, job: JobSpec) -> Verdict | None:
    """The final verdict where another life would be in vain; None where it may begin."""
    return _verdict_if_stalled(job, beginnings(run), progress(run, job), reason="")


def stalled_at_end(run: Run, job: JobSpec, verdict: Verdict) -> Verdict | None:
    """The final verdict at the end of a life, where another would be in vain."""
    now = progress(run, job)
    if isinstance(job, OwnCodeJob):
        now += _stopped_well(verdict)
    return _verdict_if_stalled(job, beginnings(run), now, reason=verdict.message)


def lives_in_vain(begun: dict[int, Beginning], now: int) -> list[int]:
    """The newest lives, first attempt of each, that brought the run no further; oldest first."""
    first: dict[int, int] = {}
    for attempt in sorted(begun):
        first.setdefault(begun[attempt].life, attempt)
    in_vain: list[int] = []
    after = now
    for attempt in reversed(first.values()):
        before = begun[attempt].progress
        if after > before:
            break
        in_vain.insert(0, attempt)
        after = before
    return in_vain


def _verdict_if_stalled(
    job: JobSpec, begun: dict[int, Beginning], now: int, *, reason: str
) -> Verdict | None:
    in_vain = lives_in_vain(begun, now)
    shows_nothing = isinstance(job, OwnCodeJob) and now == 0
    if len(in_vain) < (_MOST_UNKNOWN if shows_nothing else _MOST_STALLED):
        return None
    attempts = listed(in_vain).replace("rank", "attempt")
    last = f" (the last: {reason})" if reason else ""
    return Verdict(
        kind="no_progress",
        state="failed",
        message=(
            f"no progress in {len(in_vain)} starts in a row: those of {attempts} ended without "
            f"{_missing(job, now)}{last}; it is not started again. {_advice(job)}"
        ),
        exit_code_of_run=EXIT_FAILED,
        step=None if isinstance(job, OwnCodeJob) else now,
        attempt=max(begun),
        time_s=time.time(),
    )


def _missing(job: JobSpec, now: int) -> str:
    """What a start in vain did not bring."""
    if not isinstance(job, OwnCodeJob):
        return f"a checkpoint newer than step {now}"
    return "a newly recorded step or a stop with exit code 75"


def _advice(job: JobSpec) -> str:
    if not isinstance(job, OwnCodeJob):
        return "Give it more time, or save more often (checkpoint.every_steps)"
    return (
        "Give it more time; have it record its steps, counted on from its own checkpoint "
        "(record.start(first_step=...)), or leave with 75 when record.should_stop() says so"
    )


def _stopped_well(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.exit_code == EXIT_STOPPED


def _last_recorded_step(run: Run) -> int:
    """Of rank 0, in any attempt; files that cannot be read say nothing."""
    steps = [0]
    for attempt in run.attempts():
        try:
            events = read_events(run.event_file(0, attempt)).events
        except OSError:
            continue
        steps += [step for event in events if isinstance(step := event.get("step"), int)]
    return max(steps)
