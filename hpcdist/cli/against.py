"""`hpcdist summary --against`: runs against a baseline, for people and for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, RunNotFoundError
from hpcdist.cli.printing import note, print_json

if TYPE_CHECKING:
    from hpcdist.summary.compare.against import Comparison
    from hpcdist.summary.read.cache import SummaryCache
    from hpcdist.summary.values import RunSummary


def compare(
    names: Sequence[str],
    runs: Path,
    *,
    against: str,
    threshold: float,
    as_json: bool,
    cache: SummaryCache | None,
) -> int:
    """Print how runs compare with a baseline; returns the exit code.

    Without names, runs of the baseline are not compared with themselves.
    """
    from hpcdist.summary.compare.against import check_comparable, compare_with, nothing_in_common

    baseline = _baseline(runs, against, cache)
    own = {run.run for run in baseline}
    found = _summaries(runs, names, cache)
    if not names:
        found = [run for run in found if run.run not in own]
    check_comparable(baseline, found, name=against)
    comparison = compare_with(baseline, found, threshold=threshold)
    if not comparison.changes:
        raise nothing_in_common(baseline, found, name=against)
    _print(comparison, as_json=as_json)
    return EXIT_FAILED if comparison.regression else EXIT_DONE


def _print(comparison: Comparison, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        print_json(msgspec.to_builtins(comparison))
        return
    from hpcdist.summary.report.changes import print_changes
    from hpcdist.summary.report.text import make_console

    print_changes(make_console(), comparison)


def _baseline(runs: Path, name: str, cache: SummaryCache | None) -> list[RunSummary]:
    from hpcdist.summary.compare.against import is_saved, no_baseline, read_saved

    if is_saved(name):
        return read_saved(Path(name))
    try:
        return _summaries(runs, [name], cache)
    except RunNotFoundError as error:
        raise no_baseline(name, error) from None


def _summaries(runs: Path, names: Sequence[str], cache: SummaryCache | None) -> list[RunSummary]:
    from hpcdist.monitor.states import run_states
    from hpcdist.summary import summarize
    from hpcdist.summary.read.search import search_named

    found, foreign = search_named(runs, names)
    result = summarize(
        [*found, *foreign], run_states(found, warn=note), cache=cache, num_workers=None, warn=note
    )
    for text in result.skipped:
        note(text)
    return result.runs
