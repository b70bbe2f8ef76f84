"""What recording costs, and whether the summary's step time is right.

The cost: the time that each step of a training's loop spends in the recorder, which writes its
windows to a file. The recorder's clock does not wait for real steps: it goes on by a part of a step
each time that it is read. The step time: the same steps of a script that calls `record.step` are
timed by the summary and by a clock of the script, so that no noise is between them.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sidebyside import HPCDIST, Figures, Measure, compare, parse_options, run_command

from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.recorder import Peers, StepRecorder
from hpcdist.runs.events import EventWriter

_READINGS_PER_STEP = 6
_SCRIPT = """
import json, pathlib, sys, time
import torch
from hpcdist import record
model, inputs, times_s = torch.nn.Linear(256, 256), torch.rand(64, 256), []
record.start()
before_s = time.perf_counter()
for _ in range(int(sys.argv[1])):
    model(inputs).sum().backward()
    record.step(samples=64)
    now_s = time.perf_counter()
    times_s.append(now_s - before_s)
    before_s = now_s
pathlib.Path(sys.argv[2]).write_text(json.dumps(times_s))
"""


def time_calls(step_time_s: float, length_s: float) -> Figures:
    """Time the recorder's calls in `length_s` of its clock."""
    clock: Callable[[], float] = itertools.count(0.0, step_time_s / _READINGS_PER_STEP).__next__
    num_steps = max(1000, int(length_s / step_time_s))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        events = EventWriter(Path(name) / "rank-00000.jsonl")
        recorder = StepRecorder(events, ProgressBoard(1).slot(0), clock=clock, peers=Peers(events))
        begin_s = time.perf_counter()
        for _ in range(num_steps):
            recorder.mark("data_wait")
            recorder.note_last_gradient()
            recorder.mark_backward()
            recorder.mark("optimizer")
            recorder.step(samples=64, loss=0.1)
        recorder.finish()
        time_s = (time.perf_counter() - begin_s) / num_steps
        events.close()
    return {"recorder": time_s * 1e6, "share": time_s / step_time_s}


def time_both(steps: int) -> Figures:
    """Run the script once; how far the summary is from the script's clock."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder, times = Path(name), Path(name) / "times.json"
        (folder / "script.py").write_text(_SCRIPT)
        options = ["--local", "--set", "launch.device=cpu", "--", str(steps), str(times)]
        run_command([HPCDIST, "submit", "script.py", *options], folder)
        (run,) = json.loads(run_command([HPCDIST, "summary", "--json"], folder))
        counted_s = json.loads(times.read_text())[run["warm_up_steps"] :]
    clock_s, summary_s = sum(counted_s) / len(counted_s), run["step_time_s"]["mean"]
    return {"step time": summary_s * 1e6, "distance": abs(summary_s / clock_s - 1)}


def main() -> None:
    options = parse_options(__doc__, pairs=5, seconds=60.0, steps=4000)
    share = Measure(name="share", unit="of the step", at_most=0.01)
    measures = [Measure(name="recorder", unit="µs"), share]
    for step_time_s in (0.001, 0.003, 0.03, 0.3):
        sides = {"hpcdist": partial(time_calls, step_time_s, options.seconds)}
        title = f"recording steps of {step_time_s * 1e3:g} ms"
        compare(title, measures, sides, pairs=options.pairs)
    distance = Measure(name="distance", unit="of the step", at_most=0.02)
    measures = [Measure(name="step time", unit="µs"), distance]
    sides = {"hpcdist": partial(time_both, options.steps)}
    compare(f"summary and clock, {options.steps:,} steps", measures, sides, pairs=options.pairs)


if __name__ == "__main__":
    main()
