"""`hpcdist summary`: runs side by side, or against a baseline."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, RunNotFoundError, UserError
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import host_option, json_option, run_arguments, runs_option
from hpcdist.cli.printing import note, paged, print_json

if TYPE_CHECKING:
    from hpcdist.job.goal import Goal
    from hpcdist.summary import Summary
    from hpcdist.summary.read.search import Found
    from hpcdist.summary.values import RunSummary

_NAMES = {
    "csv": "the CSV",
    "csv-benchmarks": "the CSV of benchmarks",
    "markdown": "the Markdown",
    "html": "the page",
}


def _share(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """`5%`, or `5`, as 0.05."""
    if value is None:
        return None
    try:
        share = float(value.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise click.BadParameter(f"{value!r} is not a percentage from 0 to 100, such as 5%")
    return share


def _goal(_context: click.Context, _option: click.Parameter, value: str | None) -> Goal | None:
    """`loss=0.5`, `accuracy=97%`."""
    if value is None:
        return None
    from hpcdist.job.goal import parse_goal

    try:
        return parse_goal(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from None


def _accuracy(_context: click.Context, _option: click.Parameter, value: str | None) -> Goal | None:
    """`0.97`, `97%` or `97`."""
    if value is None:
        return None
    from hpcdist.job.goal import parse_goal

    try:
        return parse_goal(f"accuracy={value}")
    except ValueError:
        raise click.BadParameter(f"{value!r} is not an accuracy, such as 0.97 or 97%") from None


def _explain(context: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001
    if value and not context.resilient_parsing:
        from hpcdist.summary.report.text import make_console, say
        from hpcdist.summary.report.words import explain

        say(make_console(), explain())
        context.exit()


def _only_goal(goal: Goal | None, target_accuracy: Goal | None) -> Goal | None:
    if goal is not None and target_accuracy is not None:
        raise click.UsageError("--goal and --target-accuracy contradict each other")
    return goal or target_accuracy


@click.command(cls=HostCommand)
@run_arguments
@host_option
@runs_option
@json_option
@click.option("--details", is_flag=True, help="Print every table, as --markdown and --html do.")
@click.option(
    "--csv",
    "csv_file",
    metavar="FILE",
    help="Write one line per run to this CSV file; - means stdout.",
)
@click.option(
    "--csv-benchmarks",
    "benchmarks_file",
    metavar="FILE",
    help="Write one line per size, batch size or way of loading that benchmarks measured.",
)
@click.option(
    "--markdown",
    "markdown_file",
    metavar="FILE",
    help="Write the tables as Markdown; - means stdout.",
)
@click.option("--html", "html_file", metavar="FILE", help="Write one HTML page, to send to others.")
@click.option(
    "--plot", "plot_folder", metavar="DIR", help="Draw pictures into this folder, as PNG and SVG."
)
@click.option(
    "--target-accuracy",
    metavar="SHARE",
    callback=_accuracy,
    help="Show when each run reached this test accuracy. [default: what all runs of a job reach]",
)
@click.option(
    "--goal",
    metavar="KEY=VALUE",
    callback=_goal,
    help="Show the time and samples to loss=0.5 or accuracy=97% (test data), or train_loss=0.5.",
)
@click.option(
    "--explain",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_explain,
    help="Explain the words of the summary, and exit.",
)
@click.option(
    "--with-disturbed",
    is_flag=True,
    help="Also compare runs during which something else used their CPUs.",
)
@click.option("--no-cache", is_flag=True, help="Read all events again instead of kept figures.")
@click.option(
    "--against",
    metavar="BASELINE",
    help="Only compare the runs with this run, sweep, folder, or saved --json.",
)
@click.option(
    "--threshold",
    metavar="PERCENT",
    callback=_share,
    help="Slow-down that --against allows. [default: 5%]",
)
@paged
def summary(
    *,
    run_names: tuple[str, ...],
    runs: Path,
    as_json: bool,
    details: bool,
    csv_file: str | None,
    benchmarks_file: str | None,
    markdown_file: str | None,
    html_file: str | None,
    plot_folder: str | None,
    target_accuracy: Goal | None,
    goal: Goal | None,
    with_disturbed: bool,
    no_cache: bool,
    against: str | None,
    threshold: float | None,
) -> int | None:
    """Compare runs: throughput, speed-up, efficiency, and where the time went.

    Without RUN, all runs are read, including those in subfolders; RUN may also be a folder with
    runs. Runs of one job that differ only in nodes and GPUs are compared; the table says why
    others are not. The variants of a comparison are compared with the first one, and a picture is
    written into its folder.

    Figures of runs that have ended are kept beside them (figures.msgpack) until their
    files change.

    With --against, the exit code is 1 if a figure is slower by more than the threshold and this is
    not chance, or if the runs for it failed.
    """
    from hpcdist.summary.read.search import search_named

    files = {
        "csv": csv_file,
        "csv-benchmarks": benchmarks_file,
        "markdown": markdown_file,
        "html": html_file,
    }
    if against is not None:
        goals = {"target-accuracy": target_accuracy, "goal": goal}
        others: dict[str, object] = {**files, "plot": plot_folder, **goals}
        if given := [f"--{name}" for name, value in others.items() if value is not None]:
            raise click.UsageError(
                f"{given[0]} and --against contradict each other: --against has no other "
                "form than --json"
            )
        allowed = 0.05 if threshold is None else threshold
        return _compare(
            run_names,
            runs,
            against=against,
            threshold=allowed,
            with_disturbed=with_disturbed,
            as_json=as_json,
            uses_kept=not no_cache,
        )
    if threshold is not None:
        raise click.UsageError("--threshold needs --against")
    goal = _only_goal(goal, target_accuracy)
    form_on_stdout = _form_on_stdout(files, as_json=as_json)
    found = search_named(runs, run_names)
    result = _summarize(
        found,
        uses_kept=not no_cache,
        goal=goal,
        compares_disturbed=with_disturbed,
        asks_accounting=True,
    )
    texts = _write(result, files, plot_folder)
    if form_on_stdout is not None:
        note(*result.skipped)
        sys.stdout.write(texts[form_on_stdout]())
        return None
    from hpcdist.summary import print_summary

    print_summary(result, details=details)
    _write_comparisons(result, found)
    return None


def _write_comparisons(result: Summary, found: Found) -> None:
    from hpcdist.summary.writing import write_comparisons

    folder = found.runs[0].path.parent if found.runs else Path()
    try:
        for path in write_comparisons(result, folder) if result.comparisons else ():
            note(f"the picture is in {path}")
    except OSError as error:
        note(f"the picture cannot be written: {error.strerror}")


def _form_on_stdout(files: Mapping[str, str | None], *, as_json: bool) -> str | None:
    """Return what stands on stdout instead of the tables: json, a form of file, or None."""
    forms = [form for form, file in files.items() if file == "-"]
    forms += ["json"] if as_json else []
    if len(forms) > 1:
        options = " and ".join("--json" if form == "json" else f"--{form} -" for form in forms)
        raise click.UsageError(
            f"{options} contradict each other: only one of them can be on stdout"
        )
    return forms[0] if forms else None


def _write(
    result: Summary, files: Mapping[str, str | None], plot_folder: str | None
) -> dict[str, Callable[[], str]]:
    """Write what has a file; return what makes each form."""
    from hpcdist.summary.writing import write_output

    texts = _texts(result, _draw(result, files["html"], plot_folder))
    for form, file in files.items():
        if file is not None and file != "-":
            write_output(Path(file), texts[form](), what=_NAMES[form])
            if form == "html":
                note(f"the page is in {Path(file).absolute()}")
    return texts


def _draw(result: Summary, html_file: str | None, plot_folder: str | None) -> str | None:
    """Draw the pictures that the page, the folder or both are to have; return the page."""
    if html_file is None and plot_folder is None:
        return None
    from hpcdist.summary.report.page import to_html
    from hpcdist.summary.report.report import make_report
    from hpcdist.summary.writing import draw_pictures

    report = make_report(result)
    folder = None if plot_folder is None else Path(plot_folder)
    drawn = draw_pictures(report.sections, folder)
    if folder is not None:
        number = sum(map(len, drawn.values()))
        if number:
            note(f"{number} pictures, each as PNG and SVG, are in {folder}")
        else:
            note(f"there is nothing to draw yet, so {folder} has no pictures")
    return None if html_file is None else to_html(report, drawn)


def _summarize(
    found: Found,
    *,
    uses_kept: bool,
    goal: Goal | None = None,
    compares_disturbed: bool = False,
    asks_accounting: bool = False,
) -> Summary:
    from hpcdist.monitor.states import run_accounting, run_states
    from hpcdist.summary import summarize

    return summarize(
        [*found.runs, *found.foreign],
        functools.partial(run_states, warn=note),
        accounting=functools.partial(run_accounting, warn=note) if asks_accounting else None,
        uses_kept=uses_kept,
        num_workers=None,
        goal=goal,
        compares_disturbed=compares_disturbed,
    )


def _texts(result: Summary, page: str | None) -> dict[str, Callable[[], str]]:
    """Return what makes each form of the summary; the page is there already, if it is wanted."""
    from hpcdist.base import files
    from hpcdist.summary import to_json
    from hpcdist.summary.report import csv, report, text

    return {
        "json": lambda: files.to_json(to_json(result)),
        "csv": lambda: csv.to_csv(result),
        "csv-benchmarks": lambda: csv.to_benchmarks_csv(result),
        "markdown": lambda: text.to_markdown(report.make_report(result)),
        "html": lambda: page or "",
    }


def _compare(
    names: Sequence[str],
    runs: Path,
    *,
    against: str,
    threshold: float,
    with_disturbed: bool,
    as_json: bool,
    uses_kept: bool,
) -> int:
    """Print how runs compare with a baseline; return the exit code.

    Without names, runs of the baseline are not compared with themselves.
    """
    from hpcdist.summary.compare import against as comparing
    from hpcdist.summary.read.search import search_named

    def summaries(some: Sequence[str]) -> list[RunSummary]:
        result = _summarize(search_named(runs, some), uses_kept=uses_kept)
        note(*result.skipped)
        return result.runs

    if Path(against).is_file():  # runs are folders
        baseline = comparing.read_saved(Path(against))
    else:
        try:
            baseline = summaries([against])
        except RunNotFoundError as error:
            message = f"there is no baseline {against}: {error.message}"
            hint = f"{error.hint}; {comparing.BASELINE_HINT}"
            raise UserError(message, hint=hint) from None
    ids = {run.run for run in baseline}
    now = [run for run in summaries(names) if names or run.run not in ids]
    comparison = comparing.compare_with(
        baseline, now, threshold=threshold, compares_disturbed=with_disturbed
    )
    comparing.check_comparison(comparison, baseline, now, name=against)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(comparison))
    else:
        from hpcdist.summary.report.changes import print_changes
        from hpcdist.summary.report.text import make_console

        print_changes(make_console(), comparison)
    return EXIT_FAILED if comparison.regression else EXIT_DONE
