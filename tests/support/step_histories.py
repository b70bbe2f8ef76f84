"""Step by step, what the ranks of a run did, and that as a run directory.

A history is the truth: every single step with its phases, on one true clock. `write` has the real
recorder make the event files from it, with each host's clock as wrong as the history says, and
without the lines that the history says were lost.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from hpcdist.rank.recorder import StepRecorder
from hpcdist.runs.events import EventWriter
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Beginning

PHASES = (
    "checkpoint",
    "data_wait",
    "host_to_device",
    "forward_backward",
    "exposed_communication",
    "optimizer",
)
LONGEST_SKEW_S = 300.0
_FIRST_DAY_S = 1.7e9
"""Unix time at the true time 0."""
_STEPS = 10
"""Of a window, where they are even."""


@dataclass(frozen=True, kw_only=True)
class Step:
    phases_s: dict[str, float]
    unnamed_s: float
    """In no phase."""
    samples: int
    loss: float

    @property
    def time_s(self) -> float:
        return sum(self.phases_s.values()) + self.unnamed_s


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    after_steps: int
    """Of this attempt."""
    loss: float
    accuracy: float
    pause_s: float


@dataclass(frozen=True, kw_only=True)
class Save:
    """A checkpoint between two steps, not within one."""

    after_steps: int
    """Of this attempt."""
    pause_s: float


@dataclass(frozen=True, kw_only=True)
class RankHistory:
    rank: int
    node: int
    begins_s: float
    """True time of the first step."""
    clock_ahead_s: float
    """What its host's clock shows more than the true time."""
    steps: list[Step]
    windows: list[int]
    """How many steps each window has."""
    window_s: float = math.inf
    """After which the recorder closes a window by itself."""
    lost: frozenset[int] = frozenset()
    """Windows, by index, that are not in the file."""
    evaluations: list[Evaluation] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    tears_last_window: bool = False
    """The file ends within the line of the last window: the node died."""
    hangs_s: float = 0.0
    """After its last step, until it ends."""
    is_killed: bool = False
    """And then leaves its last window unwritten, which is among the lost ones."""
    max_rss_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    number: int
    life: int
    first_step: int
    """Finished steps in the checkpoint that it begins with."""
    begins_s: float
    """True time at which its ranks are started."""
    clock_ahead_s: float
    """Of the first node."""
    ranks: list[RankHistory]
    lines_of_others: bool = False
    """Among the events are some of a newer version, of unknown kinds, and lines that are none."""


@dataclass(frozen=True, kw_only=True)
class History:
    nodes: int
    ranks_per_node: int
    steps_per_epoch: int
    attempts: list[Attempt]

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a history is to be like; all else is drawn."""

    nodes: int = 1
    ranks_per_node: int = 1
    stretches: Sequence[tuple[int, int]] = ((0, 120),)
    """First and last step of each attempt; one that died before its first step has both equal."""
    lives: Sequence[int] = ()
    speed: float = 1.0
    straggler: int | None = None
    uneven_samples: bool = False
    uneven_windows: bool = False
    no_samples: bool = False
    """Some steps have none, such as those of an empty rest of a data set."""
    single_window: bool = False
    window_s: float = math.inf
    """Windows are those that the recorder makes by itself."""
    slow_windows: int = 0
    """The first windows of each rank, beyond which all are alike."""
    num_lost: int = 0
    """Windows in the middle that every other rank loses."""
    missing_rank: int | None = None
    early_rank: int | None = None
    """Takes ten steps fewer than the others."""
    evaluates: bool = False
    saves: Literal["never", "in steps", "between steps"] = "never"
    """Checkpoints every 30 steps, by rank 0; all others wait."""
    slow_node: int | None = None
    torn_rank: int | None = None
    skew: bool = False
    jumping_clocks: bool = False
    hangs: Literal["never", "until an error", "until a kill"] = "never"
    """All attempts but the last end so."""
    lines_of_others: bool = False
    in_step: bool = True
    """The ranks wait for each other in every step."""
    phases: bool = True


def make_history(shape: Shape, *, seed: int) -> History:
    """A history of this shape; equal ones for equal seeds."""
    draw = random.Random(seed)
    skews = [_skew(draw, is_wrong=shape.skew) for _ in range(shape.nodes)]
    now_s = 0.0
    attempts = []
    for number in range(len(shape.stretches)):
        attempts.append(_attempt(shape, draw, number=number, begins_s=now_s, skews=skews))
        ends_s = [end_s(rank) + rank.hangs_s for rank in attempts[-1].ranks]
        now_s = max([now_s, *ends_s]) + draw.uniform(5, 60)
        if shape.jumping_clocks:
            skews = [_skew(draw, is_wrong=True) for _ in range(shape.nodes)]
    return History(
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        steps_per_epoch=25,
        attempts=attempts,
    )


def end_s(rank: RankHistory) -> float:
    """True time at which a rank had done its last step and the pauses between."""
    pauses_s = sum(pause.pause_s for pause in (*rank.evaluations, *rank.saves))
    return rank.begins_s + sum(step.time_s for step in rank.steps) + pauses_s


def _skew(draw: random.Random, *, is_wrong: bool) -> float:
    return draw.uniform(-LONGEST_SKEW_S, LONGEST_SKEW_S) if is_wrong else 0.0


def _attempt(
    shape: Shape,
    draw: random.Random,
    *,
    number: int,
    begins_s: float,
    skews: Sequence[float],
) -> Attempt:
    first, last = shape.stretches[number]
    table = _steps(shape, draw, last - first)
    saves = _save(shape, draw, table)
    stepping_s = begins_s + draw.uniform(1, 20)
    hangs = shape.hangs != "never" and number < len(shape.stretches) - 1
    hangs_s = draw.uniform(100, 600) if hangs else 0.0
    is_killed = hangs and shape.hangs == "until a kill"
    ranks = []
    for rank, steps in enumerate(table):
        if rank == shape.missing_rank:
            continue
        done = steps[:-10] if rank == shape.early_rank else steps
        evaluations = _evaluations(shape, draw, len(done))
        windows = _windows(shape, draw, done, evaluations)
        lost = _lost(shape, draw, rank, len(windows))
        ranks.append(
            RankHistory(
                rank=rank,
                node=rank // shape.ranks_per_node,
                begins_s=stepping_s + draw.uniform(0, 0.5),
                clock_ahead_s=skews[rank // shape.ranks_per_node],
                steps=done,
                windows=windows,
                window_s=shape.window_s,
                lost=lost | {len(windows) - 1} if is_killed else lost,
                evaluations=evaluations,
                saves=[] if rank else saves,
                tears_last_window=rank == shape.torn_rank,
                hangs_s=hangs_s,
                is_killed=is_killed,
                max_rss_bytes=draw.randrange(10**8, 10**9),
            )
        )
    return Attempt(
        number=number,
        life=shape.lives[number] if shape.lives else 0,
        first_step=first,
        begins_s=begins_s,
        clock_ahead_s=skews[0],
        ranks=ranks,
        lines_of_others=shape.lines_of_others,
    )


def _steps(shape: Shape, draw: random.Random, count: int) -> list[list[Step]]:
    """The steps of every rank; ranks in step wait for the one that computes longest."""
    world_size = shape.nodes * shape.ranks_per_node
    ranks: list[list[Step]] = [[] for _ in range(world_size)]
    for index in range(count):
        scale = _scale(shape, draw, index) / shape.speed
        own = [
            {
                "data_wait": scale * draw.uniform(0.001, 0.004),
                "host_to_device": scale * draw.uniform(0.0005, 0.001),
                "forward_backward": scale * draw.uniform(0.02, 0.03),
                "optimizer": scale * draw.uniform(0.001, 0.002),
            }
            for _ in range(world_size)
        ]
        if shape.straggler is not None:
            own[shape.straggler]["forward_backward"] *= 2
        for rank in range(world_size):
            if rank // shape.ranks_per_node == shape.slow_node:
                own[rank]["forward_backward"] *= 1.5
        longest_s = max(sum(phases.values()) for phases in own)
        network_s = scale * draw.uniform(0.001, 0.003)
        for rank, phases in enumerate(own):
            wait_s = longest_s - sum(phases.values()) if shape.in_step else 0.0
            exposed_s = wait_s + network_s
            ranks[rank].append(
                _step(shape, draw, phases, rank=rank, index=index, exposed_s=exposed_s)
            )
    return ranks


def _save(shape: Shape, draw: random.Random, table: list[list[Step]]) -> list[Save]:
    """Have rank 0 save and the others wait for it, in the step after; returns what it saves between
    steps."""
    pauses = []
    for place in range(30, len(table[0]), 30) if shape.saves != "never" else ():
        save_s = draw.uniform(0.1, 0.3)
        for rank, steps in enumerate(table):
            phase = "exposed_communication" if rank else "checkpoint"
            if rank or shape.saves == "in steps":
                step = steps[place]
                longer = {phase: step.phases_s.get(phase, 0.0) + save_s}
                steps[place] = replace(step, phases_s=step.phases_s | longer)
        pauses.append(Save(after_steps=place, pause_s=save_s))
    return pauses if shape.saves == "between steps" else []


def _scale(shape: Shape, draw: random.Random, index: int) -> float:
    """Slow windows become faster one by one; the first one after them is an average one."""
    if not shape.slow_windows:
        return 1.0
    windows_after = index // _STEPS - shape.slow_windows
    if windows_after < 0:
        return 2.0 - 2 * windows_after
    return (1.3 if windows_after % 2 else 1.0) if windows_after else 1.15


def _step(
    shape: Shape,
    draw: random.Random,
    phases: dict[str, float],
    *,
    rank: int,
    index: int,
    exposed_s: float,
) -> Step:
    samples = draw.randrange(1, 64) if shape.uneven_samples else 32
    unnamed_s = draw.uniform(0.0005, 0.001) / shape.speed
    if not shape.phases:
        unnamed_s += sum(phases.values()) + exposed_s
        phases = {}
    elif shape.nodes * shape.ranks_per_node > 1:
        phases = phases | {"exposed_communication": exposed_s}
    return Step(
        phases_s={phase: phases[phase] for phase in PHASES if phase in phases},
        unnamed_s=unnamed_s,
        samples=0 if shape.no_samples and index % 3 == rank % 3 else samples,
        loss=1 / (1 + index) + rank,
    )


def _windows(
    shape: Shape, draw: random.Random, steps: Sequence[Step], evaluations: Sequence[Evaluation]
) -> list[int]:
    num_steps = len(steps)
    if shape.single_window:
        return [num_steps] if num_steps else []
    if shape.window_s < math.inf:
        return _windows_of_recorder(steps, evaluations, shape.window_s)
    lengths = []
    while num_steps:
        length = draw.randrange(4, 17) if shape.uneven_windows else _STEPS
        lengths.append(min(length, num_steps))
        num_steps -= lengths[-1]
    return lengths


def _windows_of_recorder(
    steps: Sequence[Step], evaluations: Sequence[Evaluation], window_s: float
) -> list[int]:
    """Each ends with the step by which it is as long as docs/events.md says."""
    pauses_s = {evaluation.after_steps: evaluation.pause_s for evaluation in evaluations}
    lengths = [0]
    begins_s = now_s = 0.0
    least_s = window_s
    for number, step in enumerate(steps, 1):
        now_s += step.time_s
        lengths[-1] += 1
        if now_s - begins_s >= least_s:
            lengths.append(0)
            begins_s, least_s = now_s, max(window_s, 0.01 * now_s)
        now_s += pauses_s.get(number, 0.0)
        if not lengths[-1]:
            begins_s = now_s
    return lengths if lengths[-1] else lengths[:-1]


def _lost(shape: Shape, draw: random.Random, rank: int, count: int) -> frozenset[int]:
    if rank % 2 == 0 or count < 4:
        return frozenset()
    return frozenset(draw.sample(range(1, count - 1), min(shape.num_lost, count - 2)))


def _evaluations(shape: Shape, draw: random.Random, num_steps: int) -> list[Evaluation]:
    """In the middle of a window, after the first, and at the end."""
    if not shape.evaluates or num_steps <= 2 * _STEPS:
        return []
    places = sorted({draw.randrange(2 * _STEPS, num_steps), num_steps})
    return [
        Evaluation(
            after_steps=place,
            loss=draw.random(),
            accuracy=draw.random(),
            pause_s=draw.uniform(0.1, 30),
        )
        for place in places
    ]


# Run directories.


def write(history: History, run: Run) -> None:
    """Have the recorder write the events of every rank into a run directory that is there."""
    for attempt in history.attempts:
        folder = run.attempts_folder / f"{attempt.number:05d}"
        folder.mkdir(exist_ok=True)
        begin_s = _FIRST_DAY_S + attempt.begins_s + attempt.clock_ahead_s
        run.write_beginning(attempt.number, Beginning(life=attempt.life, time_s=begin_s))
        for rank in attempt.ranks:
            _write_rank(history, attempt, rank, run)


class _Writer(EventWriter):
    """Writes with a clock of its own, and leaves out what was lost."""

    def __init__(self, path, clock: Callable[[], float], lost: frozenset[int]) -> None:
        super().__init__(path)
        self._clock = clock
        self._lost = lost
        self._windows = itertools.count()

    def write(self, event) -> None:
        fields = event if isinstance(event, dict) else msgspec.to_builtins(event)
        if fields["event"] == "steps" and next(self._windows) in self._lost:
            return
        super().write({**fields, "time_s": self._clock()})


class _Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def pass_time(self, time_s: float) -> None:
        self.now_s += time_s


def _write_rank(history: History, attempt: Attempt, rank: RankHistory, run: Run) -> None:
    true = _Clock(rank.begins_s)
    path = run.event_file(rank.rank, attempt.number)
    events = _Writer(path, lambda: _FIRST_DAY_S + true.now_s + rank.clock_ahead_s, rank.lost)
    _write_beginning(history, attempt, rank, events)
    if attempt.lines_of_others:
        _write_lines_of_others(path)
    _record(history, attempt, rank, events, true)
    if rank.is_killed or not rank.steps:
        true.pass_time(rank.hangs_s)
    if rank.tears_last_window:
        os.truncate(path, path.stat().st_size - 20)
    else:
        events.write(
            {
                "event": "end",
                "status": "done",
                "step": attempt.first_step + len(rank.steps) if rank.steps else 0,
                "max_rss_bytes": rank.max_rss_bytes,
            }
        )
    events.close()


def _write_beginning(
    history: History, attempt: Attempt, rank: RankHistory, events: EventWriter
) -> None:
    events.write(
        {
            "event": "start",
            **({"colour": "blue"} if attempt.lines_of_others else {}),
            "rank": rank.rank,
            "node": rank.node,
            "host": f"host{rank.node}",
            "world_size": history.world_size,
            "local_world_size": history.ranks_per_node,
            "num_nodes": history.nodes,
            "device": "cuda:0",
            "backend": "nccl",
        }
    )
    if attempt.first_step:
        epoch = attempt.first_step // history.steps_per_epoch
        events.write({"event": "resume", "step": attempt.first_step, "epoch": epoch})


def _write_lines_of_others(path) -> None:
    """Two of these four lines are no events, and one has fields of the wrong type."""
    with path.open("ab") as file:
        file.write(b'{"event":"weather","sky":"blue"}\n\xff\x00\n{"event":"st\n')
        file.write(b'{"event":"steps","step":"three","time_s":1}\n')


def _record(
    history: History, attempt: Attempt, rank: RankHistory, events: EventWriter, true: _Clock
) -> None:
    recorder = StepRecorder(
        events, window_s=rank.window_s, clock=lambda: true.now_s, first_step=attempt.first_step
    )
    lengths = rank.windows if math.isinf(rank.window_s) else [len(rank.steps)]
    ends = set(itertools.accumulate(lengths))
    evaluations = {evaluation.after_steps: evaluation for evaluation in rank.evaluations}
    saves = {save.after_steps: save for save in rank.saves}
    for number, step in enumerate(rank.steps, 1):
        recorder.epoch = recorder.step_count // history.steps_per_epoch
        for phase in PHASES:
            if phase in step.phases_s:
                true.pass_time(step.phases_s[phase])
                recorder.mark(phase)
        if "checkpoint" in step.phases_s:
            events.write({"event": "checkpoint", "save_time_s": step.phases_s["checkpoint"]})
        true.pass_time(step.unnamed_s)
        recorder.step(samples=step.samples, loss=step.loss)
        if number == len(rank.steps) and not rank.is_killed:
            true.pass_time(rank.hangs_s)
        if number in ends:
            recorder.finish()
        if recorder.step_count % history.steps_per_epoch == 0 and not _is_torn(rank, number):
            finished = recorder.step_count // history.steps_per_epoch
            events.write({"event": "epoch", "epoch": finished, "step": recorder.step_count})
        if number in evaluations and not _is_torn(rank, number):
            _evaluate(evaluations[number], recorder, events, true)
        if number in saves:
            true.pass_time(saves[number].pause_s)
            events.write({"event": "checkpoint", "save_time_s": saves[number].pause_s})
            recorder.begin()


def _is_torn(rank: RankHistory, number: int) -> bool:
    """Nothing comes after the line in which a file ends."""
    return rank.tears_last_window and number == len(rank.steps)


def _evaluate(
    evaluation: Evaluation, recorder: StepRecorder, events: EventWriter, true: _Clock
) -> None:
    true.pass_time(evaluation.pause_s)
    events.write(
        {
            "event": "evaluate",
            "step": recorder.step_count,
            "loss": evaluation.loss,
            "accuracy": evaluation.accuracy,
        }
    )
    recorder.begin()
