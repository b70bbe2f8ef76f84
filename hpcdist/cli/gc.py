"""`hpcdist gc`: free the disk space of runs that ended."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, RunNotFoundError
from hpcdist.base.progress import track
from hpcdist.base.text import show_bytes
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import about_runs, named_runs, run_arguments
from hpcdist.cli.printing import note, print_columns, print_json, say
from hpcdist.runs.run import all_runs

if TYPE_CHECKING:
    from hpcdist.monitor.garbage import Candidate

_DAY_S = 86400.0
_REMOVABLE = "- (would be removed)"


@click.command(cls=HostCommand)
@run_arguments
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Only runs that ended so many days ago. [default: 30; 0 for runs that are named]",
)
@click.option("--yes", is_flag=True, help="Remove without asking.")
@about_runs
def gc(
    *,
    run_names: tuple[str, ...],
    older_than: float | None,
    yes: bool,
    runs: Path,
    as_json: bool,
) -> int:
    """Remove checkpoints and copies of code of runs that ended long ago.

    The command first shows what it would remove, and what it keeps and why. It removes it when you
    confirm, or with --yes. Runs that have not ended are never touched, nor files that jobs wrote
    into a copy of the code. Logs, events and verdicts stay. The last checkpoint of a run is the
    model it trained.

    \b
    hpcdist gc                          what ended 30 days ago or before
    hpcdist gc --older-than 7
    hpcdist gc ddp-20261121-092337-tfva --yes
    """
    from hpcdist.monitor.garbage import find_garbage, remove
    from hpcdist.monitor.states import run_states

    default_days = 0.0 if run_names else 30.0
    everything = all_runs(runs)
    candidates = find_garbage(
        runs,
        everything,
        run_states(everything, warn=note),
        older_than_s=(default_days if older_than is None else older_than) * _DAY_S,
        named=_named(runs, run_names) if run_names else None,
    )
    free = [candidate for candidate in candidates if candidate.kept_because is None]
    is_removed = bool(free) and yes
    if not as_json:
        _show(candidates, free)
        if free and not yes and sys.stdin.isatty():
            is_removed = click.confirm("Remove it?", err=True)
        elif free and not yes:
            note("nothing was removed: add --yes to remove it")
    problems: dict[Path, str] = {}
    for each in track(free if is_removed else [], "removing"):
        if (problem := remove(each)) is not None:
            problems[each.tree.path] = problem
            note(f"{each.tree.path} was kept: {problem}")
    freed = sum(each.tree.num_bytes for each in free if each.tree.path not in problems)
    if as_json:
        reasons = {each.tree.path: each.kept_because for each in candidates} | problems
        items = []
        for each in candidates:
            why = reasons[each.tree.path]
            told = {"what": each.what, "name": each.name, "path": each.tree.path}
            told |= {"bytes": each.tree.num_bytes, "removed": is_removed and why is None}
            items.append(told | {"kept_because": why})
        print_json({"removed": is_removed, "bytes_free_to_remove": freed, "items": items})
    elif is_removed:
        say(f"freed {show_bytes(freed)}")
    return EXIT_FAILED if problems else EXIT_DONE


def _named(runs: Path, names: Sequence[str]) -> frozenset[Path]:
    """Return the run directories of these names; only those among the runs can be judged."""
    paths = [run.path for run in named_runs(runs, names)]
    if others := [path for path in paths if path.parent.resolve() != runs.resolve()]:
        raise RunNotFoundError(
            f"{others[0]} is not among the runs in {runs}",
            hint=f"name their folder: --runs {others[0].parent}",
        )
    return frozenset(runs / path.name for path in paths)


def _show(candidates: Sequence[Candidate], free: Sequence[Candidate]) -> None:
    if not candidates:
        note("there is nothing to remove: no checkpoints and no copies of code")
        return
    rows = [
        (each.what, show_bytes(each.tree.num_bytes), each.name, each.kept_because or _REMOVABLE)
        for each in candidates
    ]
    print_columns(("WHAT", "SIZE", "OF", "KEPT BECAUSE"), rows, right=slice(1, 2))
    total = show_bytes(sum(candidate.tree.num_bytes for candidate in free))
    print(f"{len(free):,} of {len(candidates):,} can be removed, which frees {total}")
