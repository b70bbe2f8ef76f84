"""Step by step, what the ranks of a run did, and that as a run directory.

A history is the truth: every single step with its phases, on one true clock. `write` has the real
recorder make the event files from it, with each host's clock as wrong as the history says, and
without the lines that the history says were lost.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
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
class Pause:
    """An evaluation, or a checkpoint between two steps."""

    after_step: int
    time_s: float
    loss: float = 0.0
    accuracy: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RankHistory:
    rank: int
    node: int
    begins_s: float
    """True time of the first step."""
    clock_ahead_s: float
    """What its host's clock shows more than the true time."""
    windows: list[dict[int, Step]]
    """The steps of each, by their numbers in the whole training, from 1 on."""
    lost: frozenset[int]
    """Windows, by index, that are not in the file."""
    evaluations: list[Pause]
    saves: list[Pause]
    is_torn: bool
    """The file ends within a line: the node died. What came later is no part of the history."""
    hangs_s: float
    """After its last step, until it ends."""
    is_killed: bool
    """And then leaves its last window unwritten, which is among the lost ones."""
    max_rss_bytes: int
    steps: dict[int, Step] = field(init=False)

    def __post_init__(self) -> None:
        steps = {number: step for window in self.windows for number, step in window.items()}
        object.__setattr__(self, "steps", steps)

    def reached_s(self, last: float = math.inf, *, paused: bool = False) -> float:
        """Return the true time at which it had done this step; `paused`: and the pauses after."""
        pauses = [
            p.time_s for p in (*self.evaluations, *self.saves) if p.after_step < last + paused
        ]
        done = [step.time_s for number, step in self.steps.items() if number <= last]
        return self.begins_s + math.fsum(done) + math.fsum(pauses)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    number: int
    life: int
    first_step: int
    """Finished steps in the checkpoint that it begins with."""
    begins_s: float
    """True time at which its ranks are started."""
    ranks: list[RankHistory]


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
    slow: Sequence[int] = ()
    """Ranks that compute twice as long."""
    uneven_samples: bool = False
    uneven_windows: bool = False
    no_samples: bool = False
    """Some steps have none, such as those of an empty rest of a data set."""
    single_window: bool = False
    slow_windows: int = 0
    """The first windows of each rank, beyond which all are alike."""
    num_lost: int = 0
    """Windows in the middle that every other rank loses."""
    missing_rank: int | None = None
    torn_rank: int | None = None
    """Takes ten steps fewer than the others; its file ends within a line, before an evaluation."""
    evaluates: bool = False
    saves: Literal["never", "in steps", "between steps"] = "never"
    """Checkpoints every 30 steps, by rank 0; all others wait."""
    skew: bool = False
    jumping_clocks: bool = False
    hangs: Literal["never", "until an error", "until a kill"] = "never"
    """All attempts but the last end so."""
    in_step: bool = True
    """The ranks wait for each other in every step."""
    phases: bool = True

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


def make_history(shape: Shape, *, seed: int) -> History:
    """A history of this shape; equal ones for equal seeds."""
    draw = random.Random(seed)
    skews = _skews(shape, draw, are_wrong=shape.skew)
    now_s = 0.0
    attempts = []
    for number in range(len(shape.stretches)):
        attempts.append(_attempt(shape, draw, number=number, begins_s=now_s, skews=skews))
        ends_s = [rank.reached_s() + rank.hangs_s for rank in attempts[-1].ranks]
        now_s = max([now_s, *ends_s]) + draw.uniform(5, 60)
        if shape.jumping_clocks:
            skews = _skews(shape, draw, are_wrong=True)
    return History(
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        steps_per_epoch=25,
        attempts=attempts,
    )


def _skews(shape: Shape, draw: random.Random, *, are_wrong: bool) -> list[float]:
    most_s = LONGEST_SKEW_S * are_wrong
    return [draw.uniform(-most_s, most_s) for _ in range(shape.nodes)]


def _attempt(
    shape: Shape,
    draw: random.Random,
    *,
    number: int,
    begins_s: float,
    skews: Sequence[float],
) -> Attempt:
    first, last = shape.stretches[number]
    table = [
        dict(enumerate(steps, first + 1))
        for steps in zip(*_steps(shape, draw, last - first), strict=True)
    ] or [{} for _ in range(shape.world_size)]
    saves = _save(shape, draw, table)
    stepping_s = begins_s + draw.uniform(1, 20)
    hangs = shape.hangs != "never" and number < len(shape.stretches) - 1
    hangs_s = draw.uniform(100, 600) if hangs else 0.0
    is_killed = hangs and shape.hangs == "until a kill"
    ranks = []
    for rank, steps in enumerate(table):
        if rank == shape.missing_rank:
            continue
        is_torn = rank == shape.torn_rank
        done = dict(itertools.islice(steps.items(), len(steps) - 10 * is_torn))
        windows = _windows(shape, draw, done)
        evaluations = _evaluations(draw, list(done)) if shape.evaluates else []
        lost = draw.sample(range(1, len(windows) - 1), shape.num_lost) if rank % 2 else []
        ranks.append(
            RankHistory(
                rank=rank,
                node=rank // shape.ranks_per_node,
                begins_s=stepping_s + draw.uniform(0, 0.5),
                clock_ahead_s=skews[rank // shape.ranks_per_node],
                windows=windows,
                lost=frozenset([*lost, len(windows) - 1] if is_killed else lost),
                evaluations=evaluations[: -1 if is_torn else None],
                saves=[] if rank else saves,
                is_torn=is_torn,
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
        ranks=ranks,
    )


def _steps(shape: Shape, draw: random.Random, count: int) -> list[list[Step]]:
    """Each step of all ranks; ranks in step wait for the one that computes longest."""
    found = []
    for index in range(count):
        scale = _scale(shape, index) / shape.speed
        own = [
            {
                "data_wait": scale * draw.uniform(0.001, 0.004),
                "host_to_device": scale * draw.uniform(0.0005, 0.001),
                "forward_backward": scale * draw.uniform(0.02, 0.03) * (1 + (rank in shape.slow)),
                "optimizer": scale * draw.uniform(0.001, 0.002),
            }
            for rank in range(shape.world_size)
        ]
        longest_s = max(sum(phases.values()) for phases in own)
        network_s = scale * draw.uniform(0.001, 0.003)
        found.append([])
        for rank, phases in enumerate(own):
            unnamed_s = draw.uniform(0.0005, 0.001) / shape.speed
            if shape.world_size > 1:
                wait_s = longest_s - sum(phases.values()) if shape.in_step else 0.0
                phases["exposed_communication"] = wait_s + network_s
            if not shape.phases:
                unnamed_s += sum(phases.values())
            samples = draw.randrange(1, 64) if shape.uneven_samples else 32
            step = Step(
                phases_s=phases if shape.phases else {},
                unnamed_s=unnamed_s,
                samples=0 if shape.no_samples and index % 3 == rank % 3 else samples,
                loss=1 / (1 + index) + rank,
            )
            found[-1].append(step)
    return found


def _scale(shape: Shape, index: int) -> float:
    """Slow windows become faster one by one; the first one after them is an average one."""
    if not shape.slow_windows:
        return 1.0
    windows_after = index // _STEPS - shape.slow_windows
    if windows_after < 0:
        return 2.0 - 2 * windows_after
    return (1.3 if windows_after % 2 else 1.0) if windows_after else 1.15


def _save(shape: Shape, draw: random.Random, table: list[dict[int, Step]]) -> list[Pause]:
    """Have rank 0 save and the others wait for it, in the step after; returns what it saves between
    steps."""
    pauses = []
    for place in list(table[0])[29:-1:30] if shape.saves != "never" else ():
        save_s = draw.uniform(0.1, 0.3)
        for rank, steps in enumerate(table):
            phase = "exposed_communication" if rank else "checkpoint"
            if rank or shape.saves == "in steps":
                step = steps[place + 1]
                longer = {phase: step.phases_s.get(phase, 0.0) + save_s}
                steps[place + 1] = replace(step, phases_s=step.phases_s | longer)
        pauses.append(Pause(after_step=place, time_s=save_s))
    return pauses if shape.saves == "between steps" else []


def _windows(shape: Shape, draw: random.Random, steps: dict[int, Step]) -> list[dict[int, Step]]:
    windows, rest = [], iter(steps.items())
    most = len(steps) if shape.single_window else _STEPS
    while window := dict(
        itertools.islice(rest, draw.randrange(4, 17) if shape.uneven_windows else most)
    ):
        windows.append(window)
    return windows


def _evaluations(draw: random.Random, steps: list[int]) -> list[Pause]:
    """In the middle of a window, after the first, and at the end."""
    places = sorted({draw.choice(steps[2 * _STEPS :]), steps[-1]})
    return [
        Pause(
            after_step=place,
            time_s=draw.uniform(0.1, 30),
            loss=draw.random(),
            accuracy=draw.random(),
        )
        for place in places
    ]


# Run directories.


def write(history: History, run: Run) -> None:
    """Have the recorder write the events of every rank into a run directory that is there."""
    for attempt in history.attempts:
        folder = run.attempts_folder / f"{attempt.number:05d}"
        folder.mkdir(exist_ok=True)
        begin_s = _FIRST_DAY_S + attempt.begins_s + attempt.ranks[0].clock_ahead_s
        run.write_beginning(attempt.number, Beginning(life=attempt.life, time_s=begin_s))
        for rank in attempt.ranks:
            _write_rank(history, attempt, rank, run)


class _Writer(EventWriter):
    """Writes with a rank's own clock, and leaves out what was lost."""

    def __init__(self, path, rank: RankHistory) -> None:
        super().__init__(path)
        self.now_s = rank.begins_s
        """True time."""
        self._rank = rank
        self._windows = itertools.count()

    def write(self, event) -> None:
        fields = event if isinstance(event, dict) else msgspec.to_builtins(event)
        if fields["event"] != "steps" or next(self._windows) not in self._rank.lost:
            time_s = _FIRST_DAY_S + self.now_s + self._rank.clock_ahead_s
            super().write({**fields, "time_s": time_s})


def _write_rank(history: History, attempt: Attempt, rank: RankHistory, run: Run) -> None:
    path = run.event_file(rank.rank, attempt.number)
    events = _Writer(path, rank)
    start = {
        "event": "start",
        "rank": rank.rank,
        "node": rank.node,
        "host": f"host{rank.node}",
        "world_size": history.world_size,
        "local_world_size": history.ranks_per_node,
        "num_nodes": history.nodes,
        "device": "cuda:0",
        "backend": "nccl",
    }
    events.write(start)
    if attempt.first_step:
        epoch = attempt.first_step // history.steps_per_epoch
        events.write({"event": "resume", "step": attempt.first_step, "epoch": epoch})
    _record(history, attempt, rank, events)
    if rank.is_killed or not rank.steps:
        events.now_s += rank.hangs_s
    if not rank.is_torn:
        step, rss = max(rank.steps, default=0), rank.max_rss_bytes
        events.write({"event": "end", "status": "done", "step": step, "max_rss_bytes": rss})
    events.close()
    if rank.is_torn:
        with path.open("ab") as file:
            file.write(b'{"event":"steps","ste')


def _record(history: History, attempt: Attempt, rank: RankHistory, events: _Writer) -> None:
    recorder = StepRecorder(
        events, window_s=math.inf, clock=lambda: events.now_s, first_step=attempt.first_step
    )
    ends = {max(window) for window in rank.windows}
    evaluations = {evaluation.after_step: evaluation for evaluation in rank.evaluations}
    saves = {save.after_step: save for save in rank.saves}
    for number, step in rank.steps.items():
        recorder.epoch = (number - 1) // history.steps_per_epoch
        for phase in PHASES:
            if phase in step.phases_s:
                events.now_s += step.phases_s[phase]
                recorder.mark(phase)
        if "checkpoint" in step.phases_s:
            events.write({"event": "checkpoint", "save_time_s": step.phases_s["checkpoint"]})
        events.now_s += step.unnamed_s
        recorder.step(samples=step.samples, loss=step.loss)
        if number == max(rank.steps) and not rank.is_killed:
            events.now_s += rank.hangs_s
        if number in ends:
            recorder.finish()
        if number % history.steps_per_epoch == 0:
            finished = number // history.steps_per_epoch
            events.write({"event": "epoch", "epoch": finished, "step": number})
        if found := evaluations.get(number):
            events.now_s += found.time_s
            said = {"loss": found.loss, "accuracy": found.accuracy}
            events.write({"event": "evaluate", "step": number, **said})
            recorder.begin()
        if number in saves:
            events.now_s += saves[number].time_s
            events.write({"event": "checkpoint", "save_time_s": saves[number].time_s})
            recorder.begin()
