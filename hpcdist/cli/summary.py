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


@click.command
@run_arguments
@runs_option
@json_option
@click.option("--no-cache", is_flag=True, help="Read all runs again, also those that are known.")
def summary(*, run_names: tuple[str, ...], runs: Path, as_json: bool, no_cache: bool) -> None:
    """Compare runs: throughput, speed-up, efficiency, and where the time went.

    Without RUN, all runs, also those in folders below; a RUN may be a folder with runs, too. Runs
    of one job that differ only in nodes and GPUs are compared with each other; the table says why
    others are not. The variants of a comparison are compared with its first one, with a picture
    in its folder.

    Figures of runs that have ended are kept in ~/.cache/hpcdist (or XDG_CACHE_HOME) until their
    files change.
    """
    from hpcdist.states import run_accounting, run_states
    from hpcdist.summary import print_summary, summarize, to_json
    from hpcdist.summary.search import search_named

    found, foreign = search_named(runs, run_names)
    result = summarize(
        [*found, *foreign],
        run_states(found, warn=note),
        accounting=run_accounting(found, warn=note),
        cache=None if no_cache else _cache(),
        num_workers=None,
        warn=note,
    )
    if as_json:
        for text in result.skipped:
            note(text)
        print_json(to_json(result))
        return
    print_summary(result)
    if result.comparisons:
        _write_comparisons(result, found[0].path.parent)


def _cache() -> SummaryCache | None:
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
