"""`hpcdist summary`: runs side by side, or against a baseline."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base import files
from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, RunNotFoundError, UserError
from hpcdist.base.text import number_of
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import about_runs, run_arguments
from hpcdist.cli.printing import note, print_json

if TYPE_CHECKING:
    from hpcdist.job.goal import Goal
    from hpcdist.summary import Summary
    from hpcdist.summary.values import RunSummary

_NAMES = {"csv": "the CSV", "markdown": "the Markdown", "html": "the page"}
_THRESHOLD = 0.05
"""Slow-down that --against allows."""
_PICTURES = (".png", ".svg", ".pdf", ".jpg")


def _goal(_context: click.Context, _option: click.Parameter, text: str | None) -> Goal | None:
    """Return `loss=0.5`, or `accuracy=97%`, as a goal."""
    from hpcdist.job.goal import parse_goal

    try:
        return None if text is None else parse_goal(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}") from None


@click.command(cls=HostCommand)
@run_arguments
@about_runs
@click.option("--csv", metavar="FILE", help="Write one line per run to this CSV file; - is stdout.")
@click.option("--markdown", metavar="FILE", help="Write the tables as Markdown; - is stdout.")
@click.option("--html", metavar="FILE", help="Write one HTML page, to send to others.")
@click.option("--plot", metavar="DIR", help="Draw pictures into this folder, as PNG.")
@click.option(
    "--goal",
    metavar="KEY=VALUE",
    callback=_goal,
    help="Show the time and samples to loss=0.5 or accuracy=97% (test data), or train_loss=0.5.",
)
@click.option(
    "--against",
    metavar="BASELINE",
    help="Only compare the runs with this run, sweep, folder, or saved --json.",
)
def summary(
    *,
    run_names: tuple[str, ...],
    runs: Path,
    as_json: bool,
    plot: str | None,
    goal: Goal | None,
    against: str | None,
    **files_by_form: Any,
) -> int:
    """Compare runs: throughput, speed-up, efficiency, and where the time went.

    Without RUN, all runs are read; RUN may also be a folder with runs. Runs of one job that differ
    only in nodes and GPUs are compared; the table says why others are not. The variants of a
    comparison are compared with the first one.

    Figures of runs that have ended are kept beside them (figures.msgpack) until their
    files change.

    With --against, the exit code is 1 if a figure is slower by more than 5 % and this is not
    chance, or if the runs for it failed.
    """
    from hpcdist.monitor.states import run_accounting, run_states
    from hpcdist.summary import print_summary, summarize
    from hpcdist.summary.read.collect import search_named

    def read(names: tuple[str, ...], *, asks_accounting: bool = False) -> Summary:
        return summarize(
            search_named(runs, names),
            functools.partial(run_states, warn=note),
            accounting=functools.partial(run_accounting, warn=note) if asks_accounting else None,
            uses_kept=True,
            goal=goal,
        )

    if plot is not None and Path(plot).suffix in _PICTURES and not Path(plot).is_dir():
        raise click.UsageError(f"--plot {plot} names a picture: name a folder for them all")
    wanted = {form: file for form in _NAMES if (file := files_by_form[form]) is not None}
    if against is not None:
        if wanted or plot or goal:
            raise click.UsageError("--against has no goal, and no other form than --json")
        return _compare(run_names, read, against=against, as_json=as_json)
    on_stdout = [f"--{form} -" for form, file in wanted.items() if file == "-"]
    on_stdout += ["--json"] if as_json else []
    if len(on_stdout) > 1:
        raise click.UsageError(
            f"{' and '.join(on_stdout)} contradict each other: only one of them can be on stdout"
        )
    result = read(run_names, asks_accounting=True)
    wanted |= {"json": "-"} if as_json else {}
    if wanted or plot is not None:
        _write(result, wanted, plot)
    if not on_stdout:
        print_summary(result)
    return EXIT_DONE


def _write(result: Summary, wanted: Mapping[str, str], plot: str | None) -> None:
    """Write each form of the summary into its file, and the pictures into their folder."""
    from hpcdist.summary import to_json
    from hpcdist.summary.report import page, report, text
    from hpcdist.summary.writing import draw_pictures, write_output

    make_report = functools.cache(lambda: report.make_report(result))
    if plot is not None:
        number = len(draw_pictures(make_report().sections, Path(plot)))
        nothing = f"there is nothing to draw yet, so {plot} has no pictures"
        note(f"{number_of(number, 'picture')}, as PNG: {plot}" if number else nothing)
    texts = {
        "json": lambda: files.to_json(to_json(result)),
        "csv": lambda: text.to_csv(result),
        "markdown": lambda: text.to_markdown(make_report()),
        "html": lambda: page.to_html(make_report()),
    }
    for form, file in wanted.items():
        if file == "-":
            note(*result.skipped)
            sys.stdout.write(texts[form]())
            continue
        write_output(Path(file), texts[form](), what=_NAMES[form])
        if form == "html":
            note(f"the page is in {Path(file).absolute()}")


def _compare(
    names: tuple[str, ...],
    read: Callable[[tuple[str, ...]], Summary],
    *,
    against: str,
    as_json: bool,
) -> int:
    """Print how runs compare with a baseline; return the exit code.

    Without names, runs of the baseline are not compared with themselves.
    """
    from hpcdist.summary.compare import against as comparing

    def summaries(some: tuple[str, ...]) -> list[RunSummary]:
        result = read(some)
        note(*result.skipped)
        return result.runs

    if Path(against).is_file():  # runs are folders
        baseline = comparing.read_saved(Path(against))
    else:
        try:
            baseline = summaries((against,))
        except RunNotFoundError as error:
            message = f"there is no baseline {against}: {error.message}"
            hint = f"{error.hint}; {comparing.BASELINE_HINT}"
            raise UserError(message, hint=hint) from None
    ids = {run.run for run in baseline}
    now = [run for run in summaries(names) if names or run.run not in ids]
    comparison = comparing.compare_with(baseline, now, threshold=_THRESHOLD)
    comparing.check_comparison(comparison, baseline, now, name=against)
    if as_json:
        print_json(comparison)
    else:
        from hpcdist.summary.report.changes import print_changes
        from hpcdist.summary.report.text import make_console

        print_changes(make_console(), comparison)
    return EXIT_FAILED if comparison.regression else EXIT_DONE
