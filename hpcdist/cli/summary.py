"""`hpcdist summary`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.cli.options import json_option, run_arguments, runs_option
from hpcdist.cli.printing import note, print_json

if TYPE_CHECKING:
    from hpcdist.summary import Summary
    from hpcdist.summary.cache import SummaryCache


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


@click.command
@run_arguments
@runs_option
@json_option
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
    if against is not None:
        from hpcdist.cli.against import compare

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
    from hpcdist.states import run_accounting, run_states
    from hpcdist.summary import print_summary, summarize, to_json
    from hpcdist.summary.search import search_named

    found, foreign = search_named(runs, run_names)
    result = summarize(
        [*found, *foreign],
        run_states(found, warn=note),
        accounting=run_accounting(found, warn=note),
        cache=None if no_cache else summary_cache(),
        num_workers=None,
        warn=note,
    )
    if as_json:
        for text in result.skipped:
            note(text)
        print_json(to_json(result))
        return None
    print_summary(result)
    if result.comparisons:
        _write_comparisons(result, found[0].path.parent)
    return None


def summary_cache() -> SummaryCache | None:
    """Where figures are kept; None where that is nowhere."""
    from hpcdist.summary.cache import SummaryCache, cache_folder

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
