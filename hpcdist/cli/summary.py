"""`hpcdist summary`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.cli.options import json_option, named_runs, run_arguments, runs_option
from hpcdist.cli.printing import note, print_json

if TYPE_CHECKING:
    from hpcdist.summary import Summary


@click.command
@run_arguments
@runs_option
@json_option
def summary(*, run_names: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """Compare runs: throughput, speed-up, efficiency, and where the time went.

    Without RUN, all runs. Runs of one job that differ only in nodes and GPUs are compared with
    each other; the table says why others are not. The variants of a comparison are compared with
    its first one, with a picture in its folder.
    """
    from hpcdist.states import run_states
    from hpcdist.summary import foreign_entries, print_summary, summarize, to_json

    found = named_runs(runs, run_names)
    foreign = [] if run_names else foreign_entries(runs)
    result = summarize([*found, *foreign], run_states(found, warn=note))
    if as_json:
        for text in result.skipped:
            note(text)
        print_json(to_json(result))
        return
    print_summary(result)
    if result.comparisons:
        _write_comparisons(result, found[0].path.parent)


def _write_comparisons(result: Summary, runs: Path) -> None:
    from hpcdist.summary.writing import write_comparisons

    try:
        for path in write_comparisons(result, runs):
            note(f"the picture is in {path}")
    except OSError as error:
        note(f"the picture cannot be written: {error.strerror}")
