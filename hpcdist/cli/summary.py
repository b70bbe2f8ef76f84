"""`hpcdist summary`: runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.cli.options import json_option, run_arguments, runs_option
from hpcdist.cli.printing import note

if TYPE_CHECKING:
    from hpcdist.summary import Summary
    from hpcdist.summary.read.cache import SummaryCache

_NAMES = {
    "csv": "the CSV",
    "csv-benchmarks": "the CSV of benchmarks",
    "markdown": "the Markdown",
    "html": "the page",
}


_DEFAULT_THRESHOLD = 0.05


def _share(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """`5%`, or `5`, as 0.05."""
    if value is None:
        return None
    try:
        share = float(value.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise click.BadParameter(f"{value!r} is no percentage from 0 to 100, such as 5%")
    return share


def _accuracy(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """`0.97`, `97%` or `97` as 0.97."""
    if value is None:
        return None
    text = value.strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    share = number / 100 if text.endswith("%") or number > 1 else number
    if not 0 < share <= 1:
        raise click.BadParameter(f"{value!r} is no accuracy, such as 0.97 or 97%")
    return share


@click.command
@run_arguments
@runs_option
@json_option
@click.option("--details", is_flag=True, help="Print every table, as --markdown and --html do.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write one line per run; - is stdout.")
@click.option(
    "--csv-benchmarks",
    "benchmarks_file",
    metavar="FILE",
    help="Write one line per size, batch size or way of loading that a benchmark measured.",
)
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the tables; - is stdout.")
@click.option("--html", "html_file", metavar="FILE", help="Write one page, to send to others.")
@click.option("--plot", "plot_folder", metavar="DIR", help="Draw pictures there, as PNG and SVG.")
@click.option(
    "--target-accuracy",
    metavar="SHARE",
    callback=_accuracy,
    help="Tell when each run came to this test accuracy. [default: what all runs of a job reach]",
)
@click.option("--tensorboard", "event_folder", metavar="DIR", help="Write TensorBoard's files.")
@click.option("--mlflow", "mlflow_uri", metavar="URI", help="Import the runs into MLflow.")
@click.option("--no-cache", is_flag=True, help="Read all runs again, also those that are known.")
@click.option(
    "--against",
    metavar="BASELINE",
    help="Only say how the runs compare with this run, sweep, folder, or saved --json.",
)
@click.option(
    "--threshold",
    metavar="PERCENT",
    callback=_share,
    help="Loss that --against lets pass. [default: 5%]",
)
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
    target_accuracy: float | None,
    event_folder: str | None,
    mlflow_uri: str | None,
    no_cache: bool,
    against: str | None,
    threshold: float | None,
) -> int | None:
    """Compare runs: throughput, speed-up, efficiency, and where the time went.

    Without RUN, all runs, also those in folders below; a RUN may be a folder with runs, too. Runs
    of one job that differ only in nodes and GPUs are compared with each other; the table says why
    others are not. The variants of a comparison are compared with its first one, with a picture
    in its folder.

    Figures of runs that have ended are kept in ~/.cache/hpcdist (or XDG_CACHE_HOME) until their
    files change.

    With --against it exits with 1 where something is slower by more than the threshold, and that is
    not chance; or where its runs failed.
    """
    files = {
        "csv": csv_file,
        "csv-benchmarks": benchmarks_file,
        "markdown": markdown_file,
        "html": html_file,
    }
    if against is not None:
        from hpcdist.cli.against import compare

        others = {"plot": plot_folder, "tensorboard": event_folder, "mlflow": mlflow_uri}
        _refuse_with_against(files | others, target_accuracy)
        return compare(
            run_names,
            runs,
            against=against,
            threshold=_DEFAULT_THRESHOLD if threshold is None else threshold,
            as_json=as_json,
            cache=None if no_cache else summary_cache(),
        )
    if threshold is not None:
        raise click.UsageError("--threshold goes with --against")
    tracking = {"tensorboard": event_folder, "mlflow": mlflow_uri}
    _need_packages(tracking)
    from hpcdist.monitor.states import run_accounting, run_states
    from hpcdist.summary import print_summary, summarize
    from hpcdist.summary.read.search import search_named

    on_stdout = _on_stdout(files, as_json=as_json)
    found, foreign = search_named(runs, run_names)
    result = summarize(
        [*found, *foreign],
        run_states(found, warn=note),
        accounting=run_accounting(found, warn=note),
        cache=None if no_cache else summary_cache(),
        num_workers=None,
        warn=note,
        target_accuracy=target_accuracy,
    )
    _write_files(result, {form: file for form, file in files.items() if file not in {None, "-"}})
    if plot_folder is not None:
        _write_pictures(result, Path(plot_folder))
    _track(result, event_folder=event_folder, mlflow_uri=mlflow_uri)
    if on_stdout is not None:
        for text in result.skipped:
            note(text)
        sys.stdout.write(_text(result, on_stdout))
        return None
    print_summary(result, details=details, times_accuracy=target_accuracy is not None)
    if result.comparisons:
        _write_comparisons(result, found[0].path.parent)
    return None


def _refuse_with_against(options: Mapping[str, str | None], target_accuracy: float | None) -> None:
    given = [f"--{name}" for name, value in options.items() if value is not None]
    given += ["--target-accuracy"] if target_accuracy is not None else []
    if given:
        raise click.UsageError(
            f"{given[0]} and --against contradict each other: a comparison has only --json"
        )


def _on_stdout(files: Mapping[str, str | None], *, as_json: bool) -> str | None:
    """What stands on stdout in the place of the tables: json, a form of file, or None."""
    asked = [form for form, file in files.items() if file == "-"]
    asked += ["json"] if as_json else []
    if len(asked) > 1:
        options = " and ".join("--json" if form == "json" else f"--{form} -" for form in asked)
        raise click.UsageError(f"{options} contradict each other: each would be all of stdout")
    return asked[0] if asked else None


def _text(result: Summary, form: str) -> str:
    from hpcdist.base import files
    from hpcdist.summary import to_json

    if form == "json":
        return files.to_json(to_json(result))
    if form == "csv":
        from hpcdist.summary.report.csv import to_csv

        return to_csv(result)
    if form == "csv-benchmarks":
        from hpcdist.summary.report.benchmarks_csv import to_benchmarks_csv

        return to_benchmarks_csv(result)
    from hpcdist.summary.report.report import make_report

    if form == "markdown":
        from hpcdist.summary.report.markdown import to_markdown

        return to_markdown(make_report(result))
    from hpcdist.summary.report.page import to_html

    return to_html(make_report(result))


def _write_files(result: Summary, files: Mapping[str, str | None]) -> None:
    from hpcdist.summary.writing import write_output

    for form, file in files.items():
        assert file is not None
        write_output(Path(file), _text(result, form), what=_NAMES[form])


def _write_pictures(result: Summary, folder: Path) -> None:
    from hpcdist.summary.writing import write_pictures

    written = write_pictures(result, folder)
    if written:
        note(f"{len(written) // 2} pictures, each as PNG and SVG, are in {folder}")
    else:
        note(f"there is nothing to draw yet, so {folder} has no pictures")


def _need_packages(options: Mapping[str, str | None]) -> None:
    """Before anything is read: that may take long."""
    from hpcdist.summary.export.series import need_package

    for name, value in options.items():
        if value is not None:
            need_package(name)


def _track(result: Summary, *, event_folder: str | None, mlflow_uri: str | None) -> None:
    if event_folder is not None:
        from hpcdist.base.text import number_of
        from hpcdist.summary.export.tensorboard import write_event_files

        written = write_event_files(result, Path(event_folder))
        of = number_of(len(written), "run")
        note(f"event files of {of} are in {event_folder}, in the place of earlier ones of hpcdist")
    if mlflow_uri is not None:
        from hpcdist.summary.export.mlflow import import_runs

        counts = import_runs(result, mlflow_uri)
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        note(f"runs in MLflow: {told}")


def summary_cache() -> SummaryCache | None:
    """Where figures are kept; None where that is nowhere."""
    from hpcdist.summary.read.cache import SummaryCache, cache_folder

    try:
        return SummaryCache(cache_folder())
    except RuntimeError:  # a user without a home
        return None


def _write_comparisons(result: Summary, runs: Path) -> None:
    from hpcdist.summary.writing import write_comparisons

    try:
        for path in write_comparisons(result, runs):
            note(f"the picture is in {path}")
    except OSError as error:
        note(f"the picture cannot be written: {error.strerror}")
