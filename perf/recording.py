"""Cost of recording: a training's steps with it on against off, and the recorder's own calls alone.

The calls alone are the exact figure: what a step of the loop calls, with all windows that fill up
written to a file. The trainings, ddp with one rank and one thread, take turns within one process,
since the noise between two processes is larger than what is looked for.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sidebyside import Figures, Measure, compare, option_parser, print_machine

from hpcdist.job.load import load_job
from hpcdist.job.spec import TrainJob
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.context import RankContext
from hpcdist.rank.recorder import Peers, StepRecorder
from hpcdist.runs.events import EventWriter, read_events
from hpcdist.runs.run import Run

_STEP_TIMES_S = (0.001, 0.003, 0.03, 0.3)
_SECONDS = 60.0  # of the recorder's clock: so many windows are in each figure
_READINGS_PER_STEP = 6
_MOST_REPEATS = 3

_SETTINGS = (
    "train.num_threads=1",
    "train.evaluate_every_epochs=0",
    "checkpoint.every_epochs=0",
)


def time_calls(step_time_s: float, *, enabled: bool) -> float:
    """Seconds per step that the loop spends in the recorder, in a training with such steps.

    The recorder's clock does not wait for real steps: it goes on by a part of a step each time that
    it is read.
    """
    clock: Callable[[], float] = itertools.count(0.0, step_time_s / _READINGS_PER_STEP).__next__
    num_steps = max(1000, int(_SECONDS / step_time_s))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        events = EventWriter(Path(name) / "rank-00000.jsonl")
        recorder = StepRecorder(
            events, ProgressBoard(1).slot(0), enabled=enabled, clock=clock, peers=Peers(events)
        )
        begin_s = time.perf_counter()
        for _ in range(num_steps):
            recorder.mark("data_wait")
            recorder.note_last_gradient()
            recorder.mark_backward()
            recorder.mark("optimizer")
            recorder.step(samples=64, loss=0.1)
        recorder.finish()
        time_s = time.perf_counter() - begin_s
        events.close()
    return time_s / num_steps


def print_calls(repeats: int) -> None:
    """The recorder's calls alone, for several step times."""
    print(
        "\nthe recorder's calls alone, per step (least of several; windows and their file included)"
    )
    for step_time_s in _STEP_TIMES_S:
        on_s, off_s = (
            min(time_calls(step_time_s, enabled=enabled) for _ in range(repeats))
            for enabled in (True, False)
        )
        share = on_s / step_time_s
        print(
            f"  steps of {step_time_s * 1e3:>5.0f} ms: {on_s * 1e6:6.1f} µs with recording, "
            f"{off_s * 1e6:4.1f} µs without; {share:8.3%} of a step   "
            f"target < 1 %, met: {'yes' if share < 0.01 else 'NO'}"
        )


def train_here(epochs: int, *, enabled: bool) -> Figures:
    """Train in this process; the least step time over the epochs, which is the least disturbed."""
    from hpcdist.training.loop import Trainer

    overrides = [f"train.epochs={epochs}", f"record.enabled={enabled}".lower(), *_SETTINGS]
    job = load_job("ddp", overrides=overrides).job
    assert isinstance(job, TrainJob)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        context = only_rank(job, Path(name))
        trainer = Trainer(context, job)
        trainer.train()
        context.events.close()
        assert context.events.path is not None
        events = read_events(context.events.path)
    times_s = [event["epoch_time_s"] for event in events if event["event"] == "epoch"]
    return {"step time": min(times_s) / trainer.plan.num_steps() * 1e6}


def only_rank(job: TrainJob, folder: Path) -> RankContext:
    """Return the context of a training's one rank, which records into a folder."""
    return RankContext(
        run=Run(folder),
        job=job,
        rank=0,
        local_rank=0,
        world_size=1,
        local_world_size=1,
        node_rank=0,
        num_nodes=1,
        host="",
        device="cpu",
        backend="gloo",
        attempt=0,
        restart_count=0,
        cpus=(),
        num_cpus=1,
        num_threads=1,
        events=EventWriter(folder / "rank-00000.jsonl"),
        progress=ProgressBoard(1).slot(0),
        say=lambda _line: None,
    )


def compare_trainings(epochs: int, pairs: int) -> None:
    """Trainings with recording and without, in turns, in a group of one rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sides = {"on": partial(train_here, epochs, enabled=True)}
    sides["off"] = partial(train_here, epochs, enabled=False)
    compare(
        f"ddp, 1 rank with 1 thread, {epochs} epochs, recording on and off",
        [Measure(name="step time", unit="µs", at_most=1.01)],
        sides,
        pairs=pairs,
        warms_up=True,
    )
    dist.destroy_process_group()


def main() -> None:
    parser = option_parser(__doc__, pairs=15)
    parser.add_argument("--epochs", type=int, default=10, help="default: %(default)s")
    options = parser.parse_args()
    print_machine()
    print_calls(min(_MOST_REPEATS, options.pairs))
    compare_trainings(options.epochs, options.pairs)


if __name__ == "__main__":
    main()
