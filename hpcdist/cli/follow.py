"""Following what was submitted to its end; Ctrl-C, SIGTERM and SIGHUP meanwhile."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import EXIT_INTERRUPTED
from hpcdist.cli.printing import note, print_json, say
from hpcdist.cli.runs import states_in_words
from hpcdist.machine.process import handling
from hpcdist.runs.run import Run, name_to_type

if TYPE_CHECKING:
    from hpcdist.runs.verdict import Verdict
    from hpcdist.submission.plan import PlannedSubmission

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HURRY_S = 0.5
"""Time after which another Ctrl-C is meant as one: some programs pass on what their terminal sends
to this one, too."""


class Interrupted(KeyboardInterrupt):
    """The user, or the system, asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = signal.Signals(number)


class Interrupts:
    """Raises Interrupted for the first signal. Those that come while it is answered change nothing,
    but for another Ctrl-C: `is_urgent`.

    Once a run is under way signals are only noted, and `check` raises where it is safe: in the
    midst of drawing on the terminal it would leave the run behind.
    """

    def __init__(self) -> None:
        self.is_urgent = False
        self._is_deferred = False
        self._came: int | None = None
        self._came_s = 0.0

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals in this block; after one that came, the command is left in peace."""

        def take(number: int, _frame: FrameType | None) -> None:
            if self._came is not None:
                is_late = time.monotonic() > self._came_s + _HURRY_S
                self.is_urgent |= number == signal.SIGINT and is_late
                return
            self._came, self._came_s = number, time.monotonic()
            if not self._is_deferred:
                raise Interrupted(number)

        with handling(_SIGNALS, take) as before:
            try:
                yield
            finally:
                if self._came is not None:
                    before.update(dict.fromkeys(before, signal.SIG_IGN))

    def defer(self) -> None:
        """From here on only note a signal: what begins must not stop half way."""
        self._is_deferred = True

    def check(self) -> None:
        if self._came is not None:
            raise Interrupted(self._came)

    def end(self, runs: Sequence[Run], number: signal.Signals) -> None:
        """End runs that must not outlive the command, which this signal has ended."""
        from hpcdist.cluster.schedulers import LOCAL
        from hpcdist.monitor.follow import end_sentence
        from hpcdist.schedulers import load_scheduler

        say("the ranks have some time to save (launch.grace_s); Ctrl-C ends them at once")
        scheduler = load_scheduler(runs[0].read_scheduler() or LOCAL)
        scheduler.cancel(runs, number=number, is_urgent=lambda: self.is_urgent)
        for run in runs:
            verdict = run.read_verdict()
            if verdict is not None and verdict.state == "cancelled":
                say(end_sentence(run, verdict))


def follow_run(
    run: Run,
    interrupts: Interrupts,
    *,
    as_json: bool,
    owned: bool,
    first_attempt: int = 0,
    check: Callable[[], None] | None = None,
) -> int:
    """Follow a run to its end and return its exit code; an `owned` run must not outlive this.
    What attempts before `first_attempt` printed is not shown. `check` takes the place of that of
    the interrupts."""
    from hpcdist.monitor.follow import end_sentence, follow
    from hpcdist.monitor.logs import Screen

    verdict: Verdict | None = None
    code = EXIT_INTERRUPTED
    with closing(Screen(log=sys.stderr if as_json else sys.stdout)) as screen:
        screen.say(f"run {run.id} in {run.path}")
        try:
            check = check or interrupts.check
            verdict = follow(run, screen, check=check, first_attempt=first_attempt)
        except Interrupted as interrupted:
            screen.close()
            if owned:
                interrupts.end([run], interrupted.signal)
                verdict = run.read_verdict()
            else:
                say(f"run {run.id} continues; end it with: hpcdist cancel {name_to_type(run.path)}")
        except BaseException:  # such as a closed pipe: the run has lost its reader
            if owned:
                interrupts.end([run], signal.SIGTERM)
            raise
        else:
            screen.say(end_sentence(run, verdict))
            code = verdict.exit_code_of_run
            if verdict.state == "done" and not as_json:
                name_summary(run.path)
    if as_json:
        print_json(describe_end(run, code))
    return code


def describe_end(run: Run, exit_code: int | None = None) -> dict[str, Any]:
    """Return what --json prints of a run: as it ended, or as it is now."""
    from hpcdist.monitor.states import run_states

    return {
        "run": run.id,
        "path": run.path,
        "scheduler": run.read_scheduler(),
        "job_id": run.read_job_id(),
        "state": run_states([run])[run.id],
        "exit_code": exit_code,
        "verdict": run.read_verdict(),
    }


def wait_for_sweep(runs: Sequence[Run], path: Path, interrupts: Interrupts) -> int:
    """Wait for all runs of a sweep that a scheduler has; return the exit code."""
    from hpcdist.monitor.follow import end_sentence
    from hpcdist.monitor.states import EndWatch, exit_code_of_all

    watch, said = EndWatch(runs), ""

    def check() -> None:
        nonlocal said
        interrupts.check()
        states = states_in_words(each.state for each in watch.conditions.values())
        if states != said:
            said = states
            say(f"sweep {path.name}: {states}")

    try:
        verdicts = watch.wait(check)
    except Interrupted:
        say(f"sweep {path.name} continues; end it with: hpcdist cancel {name_to_type(path)}")
        return EXIT_INTERRUPTED
    for run in runs:
        if verdicts[run.id].state != "done":
            say(end_sentence(run, verdicts[run.id]))
    return exit_code_of_all(verdicts.values())


def run_points(sweep: PlannedSubmission, interrupts: Interrupts, *, as_json: bool) -> int:
    """Run the points of a sweep that are for this machine, each as `submit --local` shows it, and
    return the exit code."""
    from hpcdist.monitor.follow import end_sentence, follow
    from hpcdist.monitor.logs import Screen
    from hpcdist.monitor.states import exit_code_of_all
    from hpcdist.submission.submit import start_points

    points, name = sweep.points, sweep.id
    verdicts: list[Verdict | None] = []
    for index, run in start_points(sweep):
        label = points[index].label
        if not isinstance(run, Run):
            say(f"the run for {label} could not be started: {run.message}")
            verdicts.append(None)
            continue
        say(f"run {run.id} ({index + 1} of {len(points)}): {label}")
        try:
            with closing(Screen(log=sys.stderr if as_json else sys.stdout)) as screen:
                verdict = follow(run, screen, check=interrupts.check)
        except BaseException as error:
            interrupts.end([run], getattr(error, "signal", signal.SIGTERM))
            if not isinstance(error, Interrupted):
                raise
            say(f"sweep {name} interrupted; its runs here are cancelled or were not started")
            return EXIT_INTERRUPTED
        say(end_sentence(run, verdict))
        verdicts.append(verdict)
    if not verdicts:
        return EXIT_INTERRUPTED
    states = [verdict.state if verdict else "not started" for verdict in verdicts]
    say(f"sweep {name}: {states_in_words(states)}")
    return exit_code_of_all(verdicts)


def name_summary(path: Path) -> None:
    """Name the command that shows the figures of this run or sweep, the last one."""
    name = name_to_type(path)
    say(f"  hpcdist summary {'last' if name == path.name else name}")


def print_summary(runs: Sequence[Run], folder: Path, *, as_json: bool) -> None:
    from hpcdist.summary.writing import write_summary

    text = write_summary(runs, folder)
    print(text, end="", file=sys.stderr if as_json else sys.stdout)
    note(f"the summary is in {folder / 'summary.txt'}")
