"""Cost of recording: a training with it on against off, and the recorder's own calls alone.

The calls alone are the exact figure: what a step of the loop calls, with all windows that fill up
written to a file. A whole training hides in its noise what is well below 1 %.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ranks import warm_up
from sidebyside import Measure, compare, option_parser, print_machine
from trainings import by_hpcdist

from hpcdist.events import EventWriter
from hpcdist.progress import ProgressBoard
from hpcdist.recording import StepRecorder

_STEP_TIMES_S = (0.001, 0.003, 0.03, 0.3)
_SECONDS = 60.0  # of the recorder's clock: so many windows are in each figure
_READINGS_PER_STEP = 6


def time_calls(step_time_s: float, *, enabled: bool) -> float:
    """Seconds per step that the loop spends in the recorder, in a training with such steps.

    The recorder's clock does not wait for real steps: it goes on by a part of a step each time that
    it is read.
    """
    clock: Callable[[], float] = itertools.count(0.0, step_time_s / _READINGS_PER_STEP).__next__
    num_steps = max(1000, int(_SECONDS / step_time_s))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        events = EventWriter(Path(name) / "rank-00000.jsonl")
        recorder = StepRecorder(events, ProgressBoard(1).slot(0), enabled=enabled, clock=clock)
        begin_s = time.perf_counter()
        for _ in range(num_steps):
            recorder.mark("data_wait")
            split_s = clock()
            recorder.mark_split("forward_backward", "exposed_communication", split_s)
            recorder.mark("optimizer")
            recorder.step(samples=64, loss=0.1)
        recorder.flush()
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


def main() -> None:
    parser = option_parser(__doc__, pairs=3)
    parser.add_argument("--epochs", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--calls-only", action="store_true", help="without whole trainings")
    options = parser.parse_args()
    print_machine()
    print_calls(options.pairs)
    if options.calls_only:
        return
    warm_up()
    compare(
        f"ddp, 1 rank with 1 thread, {options.epochs} epochs",
        [Measure(name="throughput", unit="samples/s", at_least=0.99)],
        {
            f"recording {state}": partial(
                by_hpcdist,
                1,
                options.epochs,
                threads=1,
                settings=[f"record.enabled={value}"],
            )
            for state, value in (("on", "true"), ("off", "false"))
        },
        pairs=options.pairs,
    )


if __name__ == "__main__":
    main()
