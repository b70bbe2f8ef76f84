"""`hpcdist profile`: what takes the time in a living run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED
from hpcdist.base.text import (
    column_decimals,
    format_number,
    format_percent,
    format_time,
    listed,
    number_of,
    one_line,
)
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import host_option, json_option, parse_ranks, run_argument, runs_option
from hpcdist.cli.printing import Waiting, note, print_columns, print_json, print_wrapped
from hpcdist.machine.command import announce_waits
from hpcdist.runs.run import Run, find_run

if TYPE_CHECKING:
    from hpcdist.monitor.profiles import ProfilesView, ProfileView

_RANKS_UNASKED = 8
_EXTRA_S = 60.0
"""For a trace to be written, and for py-spy."""
_NAME_WIDTH = 46
_SHOWN_FILES = 8
_READERS = {
    ".json.gz": "ui.perfetto.dev",
    ".speedscope.json": "speedscope.app",
    ".svg": "a browser",
}
"""What opens a file, by the end of its name."""


@click.command(cls=HostCommand)
@run_argument
@click.option(
    "--steps", type=click.IntRange(1, 1000), default=5, show_default=True, help="Steps to profile."
)
@click.option(
    "--ranks",
    metavar="R[,R...]",
    callback=parse_ranks,
    help=f"Only these, such as 0,3 or 0-7. [default: all, of more than {_RANKS_UNASKED} the first]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(2, 600),
    default=10.0,
    show_default=True,
    help="How long py-spy samples a script that reports no steps.",
)
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(1, 3000),
    default=120.0,
    show_default=True,
    help="How long to wait for the steps.",
)
@click.option("--top", type=click.IntRange(1, 50), default=15, show_default=True, help="Rows.")
@host_option
@runs_option
@json_option
def profile(
    *,
    run_name: str,
    steps: int,
    ranks: list[int] | None,
    seconds: float,
    wait_s: float,
    top: int,
    runs: Path,
    as_json: bool,
) -> int:
    """Show what takes the time in the next steps of a living run, and write traces of them.

    Trainers, and scripts that call record.step, are profiled by torch's profiler between two of
    their steps; the run goes on with the same numbers, those steps take a little longer. Scripts
    that report no steps are sampled by py-spy, which must be installed in the job's environment.

    \b
    CALLS, MS  of one step, mean of the ranks; without what the operation calls
    %          of the time of a step: threads and streams together may exceed 100
    """
    from hpcdist.agent.requests import WantProfile
    from hpcdist.monitor.profiles import view_profiles
    from hpcdist.monitor.requests import ask

    announce_waits(note)
    run = find_run(runs, run_name)
    ranks = ranks if ranks is not None else _first_ranks(run)
    request = WantProfile(
        limit_s=max(wait_s, seconds) + _EXTRA_S,
        ranks=ranks,
        steps=steps,
        wait_s=wait_s,
        sample_s=seconds,
    )
    with Waiting(f"{number_of(steps, 'step')} of the ranks") as waiting:
        answer = ask(run, request, on_wait=waiting.show)
    view = view_profiles(answer)
    if as_json:
        import msgspec

        print_json({"run": run.id, "path": str(run.path), **msgspec.to_builtins(view)})
    else:
        _print(run, view, top)
    note(*(f"rank {rank}: {why}" for rank, why in view.errors.items()))
    note(*(f"node {node}: {why}" for node, why in view.troubles.items()))
    is_whole = not view.troubles and not view.errors and (view.steps or view.samples)
    return EXIT_DONE if is_whole else EXIT_FAILED


def _first_ranks(run: Run) -> list[int] | None:
    num_ranks = run.read_outline().resources.num_ranks
    if num_ranks <= _RANKS_UNASKED:
        return None
    note(
        f"only the first {_RANKS_UNASKED} of {num_ranks} ranks are profiled; choose others with "
        "--ranks"
    )
    return list(range(_RANKS_UNASKED))


def _print(run: Run, view: ProfilesView, top: int) -> None:
    if (of_steps := view.steps) is not None:
        whose = listed(of_steps.ranks)
        time_text = format_time(of_steps.step_time_s or 0.0)
        steps = number_of(of_steps.steps, "step")
        print_wrapped(f"{run.id}: {steps} of {whose}, {time_text} each under the profiler")
        print()
        _print_operations(of_steps, top)
        if of_steps.whole_s and of_steps.overlapped_s is not None:
            hidden = format_percent(of_steps.overlapped_s / of_steps.whole_s)
            exposed = format_time(of_steps.whole_s - of_steps.overlapped_s)
            print()
            print_wrapped(
                f"communication took {format_time(of_steps.whole_s)} of a step: computing hid "
                f"{hidden} % of it, and the ranks waited {exposed}"
            )
    if (of_samples := view.samples) is not None:
        whose = listed(of_samples.ranks)
        print_wrapped(f"{run.id}: the main thread of {whose}, sampled for {of_samples.wall_s:g} s")
        print()
        _print_functions(of_samples, top)
    _print_files(run, view.files)


def _print_operations(view: ProfileView, top: int) -> None:
    shown = view.operations[:top]
    decimals = column_decimals([one.self_s * 1e3 for one in shown])
    rows = [
        [
            _cut(one.name),
            format_number(one.calls, 1),
            format_number(one.self_s * 1e3, decimals),
            format_percent(one.share),
        ]
        for one in shown
    ]
    print_columns(["OPERATION", "CALLS", "MS", "%"], rows, right=slice(1, None))


def _print_functions(view: ProfileView, top: int) -> None:
    rows = [
        [_cut(one.name), format_number(one.calls, 0), format_percent(one.share)]
        for one in view.operations[:top]
    ]
    print_columns(["FUNCTION", "SAMPLES", "%"], rows, right=slice(1, None))


def _cut(name: str) -> str:
    """Return a name that leaves room for its figures: kernels' have hundreds of letters."""
    text = one_line(name)
    return text if len(text) <= _NAME_WIDTH else f"{text[: _NAME_WIDTH - 3]}..."


def _print_files(run: Run, names: Sequence[str]) -> None:
    for ending, reader in _READERS.items():
        theirs = [name for name in names if name.endswith(ending)]
        if not theirs:
            continue
        print()
        print(f"{number_of(len(theirs), 'file')} for {reader}:")
        for name in theirs[:_SHOWN_FILES]:
            print(f"  {one_line(shlex.quote(str(run.path / name)))}")
        if len(theirs) > _SHOWN_FILES:
            print(f"  ... and {len(theirs) - _SHOWN_FILES} more")
