"""The findings of a drill, disturbance by disturbance: facts, and sentences with advice. Pure.

A job has lost work where it began again though it had saved, where it could not be started again,
or where it never saved. What cannot be known is said to be so, and is no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from hpcdist.base.text import number_of, show_time
from hpcdist.drill.attempts import Attempt
from hpcdist.job.spec import JobSpec, OwnCodeJob, TrainingJob
from hpcdist.runs.drill import JournalEntry, SavedFile, is_newer
from hpcdist.runs.spec import DisturbanceName
from hpcdist.runs.verdict import Verdict

_SAME = 1e-6
"""Relative difference of losses that are the same."""
_VARIES = 0.02
"""Relative difference of two runs before any disturbance with which losses say nothing."""
_LEAST_LOSS = 1e-6


class Finding(Struct, frozen=True, kw_only=True):
    """The effect of one disturbance."""

    name: DisturbanceName
    was_tried: bool = True
    noticed_s: float | None = None
    """From the disturbance; None: nothing noticed it."""
    verdict: str | None = None
    """Kind of the verdict; None: the run did not end."""
    is_verdict_right: bool | None = None
    """None: none was due."""
    went_on: str = "-"
    """Where, in words."""
    loss: str = "-"
    """Against the undisturbed run, in words."""
    lost: str = "-"
    """In words."""
    lost_steps: int | None = None
    lost_s: float | None = None
    is_work_lost: bool = False
    advice: str | None = None
    """Advice for the user; of what was not tried, the reason."""

    @property
    def is_well(self) -> bool:
        """There is nothing that its user might want to look into."""
        return self.was_tried and not self.is_work_lost and self.loss in {"-", "same"}


class Trouble(NamedTuple):
    """A sentence that `hpcdist watch` would have shown."""

    time_s: float
    """Unix time of its first appearance."""
    sentence: str


class Evidence(Struct, frozen=True, kw_only=True):
    """All that a drill left."""

    job: JobSpec
    undisturbed: Attempt
    attempts: dict[int, Attempt]
    journal: list[JournalEntry]
    troubles: list[Trouble]
    undisturbed_run: str
    disturbed_run: str
    """Directories."""
    may_save: bool
    """The program's text speaks of saving; always, where it has none that can be read."""
    may_stop: bool
    """It speaks of the warning."""


class _Return(Struct, frozen=True, kw_only=True):
    """How a run went on after its ranks, or its job, had ended."""

    how: Literal["step", "file", "start", "failed", "unknown"]
    step: int | None = None
    attempt: Attempt
    said: str = ""
    """Why it failed."""
    lost: str
    """In words."""
    lost_steps: int | None = None
    lost_s: float | None = None


def judge(evidence: Evidence, names: Sequence[DisturbanceName]) -> list[Finding]:
    """Return what was found on each of these disturbances."""
    return [_judge(evidence, name) for name in names]


def remarks(evidence: Evidence, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what the user should know of the job beside the disturbances."""
    job, undisturbed = evidence.job, evidence.undisturbed
    died = any(f.name in {"kill-rank", "stop-rank"} and f.was_tried for f in findings)
    if died and job.launch.max_restarts == 0:
        yield (
            "launch.max_restarts is 0: after such a failure the run ends, and continues with "
            "`hpcdist resume`; with --max-restarts 3 it continues by itself"
        )
    if isinstance(job, TrainingJob) and (most := _most_between_saves(job, undisturbed)):
        yield most
    if undisturbed.first_step is None:
        yield (
            "the job records no steps, so only its checkpoints show what it lost, and its losses "
            "cannot be compared; record.step(samples=..., loss=loss) records both"
        )
    elif any(one.loss.endswith("off") for one in findings):
        yield (
            "the losses differ from those of the undisturbed run: perhaps its checkpoints lack "
            "something (random state, order of the data, optimizer)? hpcdist diff "
            f"{evidence.undisturbed_run} {evidence.disturbed_run} names the first step"
        )
    elif _varies(evidence):
        yield (
            "the losses differ from run to run even undisturbed, so they cannot be compared: seed "
            "the random number generators"
        )


def _most_between_saves(job: TrainingJob, undisturbed: Attempt) -> str | None:
    every = job.checkpoint.every_steps
    if not every and (per_epoch := undisturbed.steps_per_epoch):
        every = job.checkpoint.every_epochs * per_epoch
    if not every:
        return None
    step_time_s = undisturbed.step_time_s
    time = "" if step_time_s is None else f", {show_time(every * step_time_s)}"
    return (
        "the drill saves checkpoints more often than the job does; in the job, a failure costs "
        f"up to {number_of(every, 'step')}{time} (checkpoint.every_epochs, checkpoint.every_steps)"
    )


# One disturbance.


def _judge(evidence: Evidence, name: DisturbanceName) -> Finding:
    noted = {one.event: one for one in reversed(evidence.journal) if one.name == name}
    entry, over = noted.get("disturb"), noted.get("over")
    if entry is None:
        return Finding(name=name, was_tried=False, advice=_why_not_tried(evidence, name))
    attempt = evidence.attempts.get(entry.attempt, Attempt(number=entry.attempt))
    has_gone_on = over is not None and over.outcome == "went on"
    before = evidence.attempts.get(entry.attempt - 1)
    verdict = attempt.verdict
    if verdict and before and verdict.signal is None and _failed_by_itself(evidence, before):
        said = f"the job failed again and again, undisturbed: {verdict.message}"
        return Finding(name=name, was_tried=False, advice=said)
    if name == "slow-rank" or (name in {"stop-rank", "fill-disk"} and has_gone_on):
        return _went_on_at_once(evidence, entry, attempt)
    return _started_again(evidence, entry, attempt)


def _why_not_tried(evidence: Evidence, name: DisturbanceName) -> str:
    if name in {"fill-disk", "damage"} and not _saved_ever(evidence):
        return "the job had saved no checkpoint by then"
    newest = evidence.attempts[max(evidence.attempts)]
    if newest.verdict is not None and newest.verdict.state == "done":
        return (
            "the job ended before its turn; give the job more work, or the drill less time (--for)"
        )
    if newest.verdict is not None and newest.verdict.state == "failed":
        return f"the run had failed before: {newest.verdict.message}"
    return "no time was left; give the drill more time (--for)"


def _went_on_at_once(evidence: Evidence, entry: JournalEntry, attempt: Attempt) -> Finding:
    """Judge a disturbance that did not end the ranks."""
    noticed_s = _trouble_s(evidence, entry)
    advice = None
    if entry.name == "stop-rank" and isinstance(evidence.job, OwnCodeJob):
        advice = (
            "if a rank stops for good, hpcdist says so after launch.hang_notice_s, but the "
            "others wait until the time limit: launch.hang_timeout_s ends such a run, and is off "
            "by default for your own code (--set launch.hang_timeout_s=600)"
        )
    if entry.name == "fill-disk":
        advice = "the job continued, but saved nothing while the disk was full"
    if entry.name == "slow-rank" and noticed_s is None and entry.step is not None:
        advice = (
            "no message named the slow rank: its steps have no phases that show who waits for "
            "whom; record.start(model=model) or record.mark adds them"
        )
    return Finding(
        name=_name(entry),
        noticed_s=noticed_s,
        went_on="did not stop",
        loss=_compare(evidence, attempt, entry.step or 0),
        lost="nothing",
        lost_steps=0,
        advice=advice,
    )


def _started_again(evidence: Evidence, entry: JournalEntry, attempt: Attempt) -> Finding:
    """Judge a disturbance after which the ranks had to be started again."""
    verdict, back = attempt.verdict, _return(evidence, entry)
    advice = _advice(evidence, entry, attempt, back)
    is_comparable = back.how == "step"
    return Finding(
        name=_name(entry),
        noticed_s=_noticed_s(evidence, entry, verdict),
        verdict=None if verdict is None else verdict.kind,
        is_verdict_right=_is_right(entry, verdict),
        went_on=f"step {back.step}" if back.how == "step" else _WHERE[back.how],
        loss=_compare(evidence, back.attempt, back.step or 0) if is_comparable else "-",
        lost=back.lost,
        lost_steps=back.lost_steps,
        lost_s=back.lost_s,
        is_work_lost=advice.is_work_lost,
        advice=advice.text,
    )


_WHERE = {
    "file": "its checkpoint",
    "start": "the start",
    "failed": "failed again",
    "unknown": "not known",
}


def _name(entry: JournalEntry) -> DisturbanceName:
    assert entry.name is not None
    return entry.name


_IS_RIGHT: Mapping[DisturbanceName, Callable[[JournalEntry, Verdict], bool]] = {
    "kill-rank": lambda entry, v: v.signal == "SIGKILL" and v.rank == entry.rank,
    "damage": lambda entry, v: v.signal == "SIGKILL" and v.rank == entry.rank,
    "stop-rank": lambda entry, v: v.kind == "hang" and v.rank == entry.rank,
    "fill-disk": lambda _, v: v.kind in {"exception", "exit"} and v.state == "failed",
    "warning": lambda _, v: v.state == "preempted",
    "kill-agent": lambda entry, v: v.kind == "agent_lost" and v.node in {entry.node, None},
}
"""Tests of the verdict on an attempt against what was done to it."""


def _is_right(entry: JournalEntry, verdict: Verdict | None) -> bool | None:
    # Ranks that do not stop on the warning are ended by hand: the real limit is not waited for.
    if verdict is None or (entry.name == "warning" and not entry.is_heeded):
        return None
    return _IS_RIGHT[_name(entry)](entry, verdict)


def _noticed_s(evidence: Evidence, entry: JournalEntry, verdict: Verdict | None) -> float | None:
    """Return how long it took until something told: the verdict, or what watches runs."""
    ended_s = None if verdict is None or verdict.state == "lost" else verdict.time_s
    if ended_s is None:
        lives = (one.time_s for one in evidence.journal if one.event == "life")
        ended_s = next((time_s for time_s in lives if time_s >= entry.time_s), None)
    told = [_trouble_s(evidence, entry), None if ended_s is None else ended_s - entry.time_s]
    return min((max(0.0, each) for each in told if each is not None), default=None)


def _trouble_s(evidence: Evidence, entry: JournalEntry) -> float | None:
    words = {"slow-rank": "slow", "stop-rank": "stopped"}.get(_name(entry), "?")
    told = [
        time_s - entry.time_s
        for time_s, sentence in evidence.troubles
        if time_s >= entry.time_s and words in sentence and f"rank {entry.rank} " in sentence
    ]
    return min(told, default=None)


def _return(evidence: Evidence, entry: JournalEntry) -> _Return:
    after = evidence.attempts.get(entry.attempt + 1)
    before = evidence.attempts.get(entry.attempt, Attempt(number=entry.attempt))
    last = max(entry.step or 0, before.last_step or 0)
    begun = evidence.undisturbed.first_step or 0
    if after is None:
        return _Return(how="unknown", attempt=Attempt(number=entry.attempt + 1), lost="-")
    step = after.first_step if after.resumed_step is None else after.resumed_step
    if step is not None and (after.resumed_step is not None or step > begun):
        lost = max(0, last - step)
        words = number_of(lost, "step") if lost else "nothing"
        return _Return(how="step", step=step, attempt=after, lost_steps=lost, lost=words)
    if _failed_by_itself(evidence, after):
        said = after.verdict.message if after.verdict else ""
        return _Return(how="failed", attempt=after, said=said, lost="all")
    if (file := _loaded(evidence, entry, after)) is not None:
        lost_s = max(0.0, entry.time_s - file.written_s)
        words = f"{lost_s:.1f} s" if lost_s else "nothing"
        return _Return(how="file", attempt=after, lost_s=lost_s, lost=words)
    if not _has_worked(evidence, entry, after):
        return _Return(how="unknown", attempt=after, lost="-")
    redone = None if evidence.undisturbed.first_step is None else max(0, last - begun)
    words = f"all {number_of(redone, 'step')}" if redone else "all"
    return _Return(how="start", step=after.first_step, attempt=after, lost_steps=redone, lost=words)


def _has_worked(evidence: Evidence, entry: JournalEntry, after: Attempt) -> bool:
    """Return whether an attempt came so far that it would have loaded a checkpoint before."""
    if evidence.undisturbed.first_step is not None:
        return after.first_step is not None
    if not entry.saved and not is_newer(_saved_by_end(evidence, entry), entry.saved):
        return True  # there was nothing to load
    before = _saved_by_end(evidence, entry)
    return any(
        is_newer(one.saved, before) for one in evidence.journal if one.attempt == after.number
    )


def _failed_by_itself(evidence: Evidence, attempt: Attempt) -> bool:
    disturbed = {one.attempt for one in evidence.journal if one.event == "disturb"}
    failed = attempt.verdict is not None and attempt.verdict.state == "failed"
    return failed and attempt.number not in disturbed


def _loaded(evidence: Evidence, entry: JournalEntry, after: Attempt) -> SavedFile | None:
    """Return the newest checkpoint of before that an attempt read."""
    saved = _saved_by_end(evidence, entry)
    later = [one for one in evidence.journal if one.time_s > entry.time_s and one.saved]
    seen = later[-1].saved if later else {}
    for path, file in reversed(saved.items()):
        is_opened = any(one == path or one.startswith(f"{path}/") for one in after.opened)
        # What is not opened by Python's open is known by the file system alone.
        now = seen.get(path)
        is_same = now is not None and now.written_s == file.written_s
        is_read = now is not None and is_same and now.read_s > max(entry.time_s, file.written_s)
        if is_opened or is_read:
            return file
    return None


def _saved_by_end(evidence: Evidence, entry: JournalEntry) -> dict[str, SavedFile]:
    """Return the checkpoints there were when the attempt had ended."""
    lives = [one for one in evidence.journal if one.event == "life"]
    end = next((one for one in lives if one.attempt == entry.attempt), None)
    return entry.saved if end is None else end.saved


def _saved_ever(evidence: Evidence) -> bool:
    return any(entry.saved for entry in evidence.journal)


# Losses.


def _compare(evidence: Evidence, attempt: Attempt, after_step: int) -> str:
    """Return how far the losses of an attempt are from those of the undisturbed run."""
    expected = evidence.undisturbed.losses
    both = [step for step in attempt.losses if step in expected and step > after_step]
    control = _control(evidence)
    if not both or control is None:
        return "-"
    if control > _VARIES:
        return "varies"
    worst = max(_difference(attempt.losses[step], expected[step]) for step in both)
    return "same" if worst <= max(_SAME, 10 * control) else f"{worst:.2g} off"


def _varies(evidence: Evidence) -> bool:
    control = _control(evidence)
    return control is not None and control > _VARIES


def _control(evidence: Evidence) -> float | None:
    """Return how far two runs are apart before any disturbance; None where that is not known."""
    first, expected = evidence.attempts.get(0), evidence.undisturbed.losses
    steps = [one.step for one in evidence.journal if one.event == "disturb"]
    until = steps[0] if steps else None
    both = [
        step
        for step in (first.losses if first else {})
        if step in expected and (until is None or step <= until)
    ]
    if first is None or not both:
        return None
    return max(_difference(first.losses[step], expected[step]) for step in both)


def _difference(value: float, expected: float) -> float:
    return abs(value - expected) / max(abs(expected), _LEAST_LOSS)


# What to do.


class _Advice(NamedTuple):
    """Advice for the user, and whether the job would have lost work."""

    text: str | None = None
    is_work_lost: bool = False


def _advice(evidence: Evidence, entry: JournalEntry, attempt: Attempt, back: _Return) -> _Advice:
    if back.how == "unknown":
        return _Advice(f"the drill ended before the job continued: {_TOO_SHORT}")
    if entry.name == "warning":
        return _advice_on_warning(evidence, entry, attempt, back)
    if back.how in {"step", "file"}:
        return _Advice()
    if back.how == "failed":
        return _advice_on_failure(evidence, entry, back.said)
    return _advice_on_start(evidence, entry)


def _advice_on_start(evidence: Evidence, entry: JournalEntry) -> _Advice:
    """Return what to say of a job that began again."""
    if entry.saved:
        return _Advice(
            "it saves checkpoints, but started from the beginning: you would lose "
            f"{_up_to(evidence)} ({_HOW_TO_LOAD})",
            is_work_lost=True,
        )
    if _saved_ever(evidence) or evidence.may_save:
        return _Advice(
            f"it had saved no checkpoint by then, and started from the beginning: {_TOO_SHORT}"
        )
    return _Advice(f"no checkpoint is saved: you would lose {_up_to(evidence)}", is_work_lost=True)


_TOO_SHORT = "give the drill more time (--for), or have the job save more often"
_HOW_TO_LOAD = "load the newest one at the start: HPCDIST_RUN_DIR is the same in every attempt"
_HOW_TO_STOP = "call record.should_stop() after each step, or handle SIGUSR2, and exit with code 75"


def _advice_on_failure(evidence: Evidence, entry: JournalEntry, said: str) -> _Advice:
    by = {
        "damage": "after half of the newest checkpoint was cut off, ",
        "fill-disk": "after the disk was full while it saved, ",
    }.get(_name(entry))
    if by is None:
        return _Advice(f"started again, it failed: {said}", is_work_lost=True)
    failed = f"{by}it failed each time it was started: {said}"
    if len(entry.saved) > 1:
        text = f"{failed}; let it fall back to the previous checkpoint, which is whole"
        return _Advice(text)
    if entry.name == "damage" and _replaces(evidence):
        return _Advice(
            f"{failed}; a crash cannot do that to a job that replaces its checkpoint in one step, "
            "as this one does, but a bad disk can: keep the last two"
        )
    return _Advice(
        f"{failed}; its one checkpoint is gone, with {_up_to(evidence)}: write to another name "
        "and os.replace() it, and keep the last two",
        is_work_lost=True,
    )


def _replaces(evidence: Evidence) -> bool:
    """Return whether a checkpoint that is saved under the same name is another file each time."""
    written: dict[str, dict[float, int]] = {}
    for entry in evidence.journal:
        for path, file in entry.saved.items():
            written.setdefault(path, {})[file.written_s] = file.identity
            if path == entry.damaged:  # from here on it is as the drill left it
                return len(written[path]) > 1 and len({*written[path].values()}) > 1
    return False


def _advice_on_warning(
    evidence: Evidence, entry: JournalEntry, attempt: Attempt, back: _Return
) -> _Advice:
    verdict, is_back = attempt.verdict, back.how in {"step", "file"}
    has_stopped = verdict is not None and verdict.state == "preempted" and verdict.exit_code == 75
    # Ranks that do not listen may well save, as they do every so often.
    has_saved = entry.is_heeded and is_newer(_saved_by_end(evidence, entry), entry.saved)
    if back.how == "failed" and (has_stopped or has_saved):
        return _Advice(f"started again, it failed: {back.said}", is_work_lost=True)
    if not has_stopped:
        return _advice_on_deaf(evidence, entry, has_saved=has_saved)
    if is_back and (has_saved or not back.lost_steps):
        return _Advice()
    if has_saved:
        return _Advice(
            "it saves on the warning, but started from the beginning: you would lose "
            f"{_up_to(evidence)} ({_HOW_TO_LOAD})",
            is_work_lost=True,
        )
    lost = "the work since the last checkpoint" if is_back else _up_to(evidence)
    return _Advice(
        f"it stops on the warning without saving a checkpoint: you would lose {lost}",
        is_work_lost=not is_back,
    )


def _advice_on_deaf(evidence: Evidence, entry: JournalEntry, *, has_saved: bool) -> _Advice:
    """Return what to say of a job that does not stop on the warning."""
    if has_saved:
        return _Advice(
            "it does not stop on the warning, so that its time limit ends it as failed, and it is "
            f"not started again: {_HOW_TO_STOP}"
        )
    if evidence.may_stop and not entry.is_heeded:
        return _Advice(
            "the program seems to handle the warning, but had not begun to listen for it: give "
            "the drill more time (--for)"
        )
    lost = "the work since the last one" if entry.saved else _up_to(evidence)
    return _Advice(
        f"no checkpoint is saved on the warning: you would lose {lost}, and the job is not started "
        f"again ({_HOW_TO_STOP})",
        is_work_lost=True,
    )


def _up_to(evidence: Evidence) -> str:
    """Return how much of the real job may be gone."""
    limit_min = evidence.job.resources.time_limit_min
    if limit_min is None:
        return "all work until then"
    hours = limit_min / 60
    return f"up to {hours:g} h" if hours >= 1 else f"up to {limit_min:g} min"
