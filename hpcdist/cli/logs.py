"""`hpcdist logs`: what the ranks of a run printed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from hpcdist.base.errors import UserError
from hpcdist.base.text import listed
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import about_runs, ranks_option, run_argument
from hpcdist.cli.printing import note, print_json
from hpcdist.runs.run import Run, find_run

_MOST_RANKS = 100
"""Ranks whose logs are printed unasked."""


@click.command(cls=HostCommand)
@run_argument
@ranks_option
@click.option("--follow", "-f", is_flag=True, help="Keep printing until the run has ended.")
@about_runs
def logs(
    *, run_name: str, ranks: list[int] | None, follow: bool, runs: Path, as_json: bool
) -> None:
    """Print what the ranks of a run printed, each line with its rank if there are several.

    For a run on more than 100 ranks, only the logs of rank 0 and of the rank that failed first are
    printed. --json prints the names of the files, which have every byte.

    Lines are printed as a terminal would finally show them, with their colours. Other controls of
    a terminal, such as those of its title or the clipboard, are left out.

    \b
    hpcdist logs last --rank 0
    hpcdist logs last --follow
    """
    from hpcdist.monitor.logs import Screen, whole_log
    from hpcdist.monitor.states import bring_home

    if follow and as_json:
        raise click.UsageError("--follow and --json contradict each other")
    run = find_run(runs, run_name)
    if not follow:
        bring_home(run, warn=note)
    everything = range(run.spec.outline.num_ranks)
    shown = ranks or (everything if as_json else _shown_ranks(run, everything))
    if follow:
        from hpcdist.monitor.follow import end_sentence
        from hpcdist.monitor.follow import follow as follow_run

        with closing(Screen(prefixed=len(shown) > 1)) as screen:
            verdict = follow_run(run, screen, shown)
            screen.say(end_sentence(run, verdict))
        return
    found = run.log_files()
    files = [one for one in found if one[0] in shown or shown is everything]
    if as_json:
        fields = ("rank", "attempt", "path")
        print_json([dict(zip(fields, one, strict=True)) for one in files])
    elif not files and found and ranks is not None:
        raise UserError(
            f"run {run.id} has no log of {listed(ranks, 'rank')}",
            hint=f"its ranks are {found[0][0]} to {found[-1][0]}",
        )
    elif not files:
        note(f"the ranks of run {run.id} have not printed anything")
        note(*(f"the job's own log is {path}" for path in run.job_logs()))
    else:
        with closing(Screen(prefixed=len({number for number, *_ in files}) > 1)) as screen:
            for number, _, path in files:
                screen.lines((number, line) for line in whole_log(path))


def _shown_ranks(run: Run, everything: range) -> Sequence[int]:
    """Return the ranks whose logs are printed unasked. Of thousands, that mostly say the same,
    nobody wants each, and nobody to wait until as many files are opened."""
    if len(everything) <= _MOST_RANKS:
        return everything
    verdict = run.read_verdict()
    failed = verdict.first.rank if verdict is not None and verdict.first is not None else 0
    of_failed = f", and of rank {failed}, which failed first" if failed else ""
    last = everything[-1]
    note(f"of ranks 0 to {last:,}, this is the log of rank 0{of_failed}; --rank 0-{last}: of all")
    return sorted({0, failed})
