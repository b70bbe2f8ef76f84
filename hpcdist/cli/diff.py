"""`hpcdist diff`: the first step at which two runs part, and in what the runs differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, UserError
from hpcdist.base.text import number_of, one_line
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import about_runs
from hpcdist.cli.printing import note, print_columns, print_json, print_wrapped
from hpcdist.runs.run import find_run

if TYPE_CHECKING:
    from hpcdist.summary.compare.divergence import RunDiff

_WIDTH = 20
"""Characters of a value in the table."""


@click.command(name="diff", cls=HostCommand)
@click.argument("first", metavar="RUN_A")
@click.argument("second", metavar="RUN_B")
@about_runs
def diff(*, first: str, second: str, runs: Path, as_json: bool) -> int:
    """Name the first step at which two runs part, and the settings, versions, code and devices in
    which they differ.

    The lowest ranks are compared by the digests that record.digest=K has them record, else by their
    losses. Exit code: 0 where the runs do not part, 1 where they do.
    """
    from hpcdist.monitor.states import bring_home
    from hpcdist.summary.compare.divergence import diff_runs

    pair = [find_run(runs, name) for name in (first, second)]
    if pair[0].path == pair[1].path:
        raise UserError(
            f"{first} and {second} are the same run, {pair[0].id}",
            hint="name two runs: hpcdist runs lists them",
        )
    for run in pair:
        bring_home(run, warn=note)
    result = diff_runs(pair)
    if as_json:
        print_json(result)
    else:
        print_wrapped(_conclusion(result))
        rows = [
            (*(_shown(value)[:_WIDTH] for value in values), what)
            for what, values in result.differences.items()
        ]
        if rows:
            print_columns(("RUN_A", "RUN_B", "WHAT"), rows)
    return EXIT_DONE if result.step is None else EXIT_FAILED


def _conclusion(result: RunDiff) -> str:
    """Say whether the runs part, and where."""
    a, b = map(one_line, result.runs)
    compared = f"{number_of(result.num_compared, 'step')} compared"
    also = "" if result.differences else "; nothing that they recorded of themselves differs"
    if result.step is None:
        return f"{a} and {b} do not part ({compared}){also}."
    before = "at no earlier step" if result.equal_at is None else f"at step {result.equal_at}"
    values = ", ".join(
        f"the {name} ({_shown(mine)} and {_shown(theirs)})"
        for name, (mine, theirs) in result.values.items()
    )
    return (
        f"{a} and {b} part at step {result.step}, in {values}, and were equal {before} "
        f"({compared}){also}."
    )


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.10g}" if isinstance(value, float) else one_line(str(value))
