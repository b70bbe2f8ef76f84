"""`hpcdist summary`: runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from hpcdist.cli.options import json_option, named_runs, run_arguments, runs_option
from hpcdist.cli.printing import note, print_json


@click.command
@run_arguments
@runs_option
@json_option
def summary(*, run_names: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """Compare runs: throughput, speed-up, efficiency, and where the time went.

    Without RUN, all runs. Runs of one job that differ only in nodes and GPUs are compared with
    each other; the table says why others are not.
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
    else:
        print_summary(result)
