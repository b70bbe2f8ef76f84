"""`hpcdist logs`: what the ranks of a run printed."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import click

from hpcdist.base import served
from hpcdist.base.errors import UserError
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import host_option, run_argument, runs_option, shown_option
from hpcdist.cli.printing import note
from hpcdist.runs.run import Run, find_run


@click.command(cls=HostCommand)
@run_argument
@click.option("--rank", metavar="R", type=click.IntRange(min=0), help="Only this rank.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@click.option("--raw", is_flag=True, help="Print every byte as it was printed, one rank by one.")
@shown_option
@host_option
@runs_option
def logs(
    *,
    run_name: str,
    rank: int | None,
    follow: bool,
    raw: bool,
    shown: dict[str, int],
    runs: Path,
) -> None:
    """Print what the ranks of a run printed, each line with its rank if there are several.

    Lines are as a terminal would show them in the end, with their colours. What else acts on a
    terminal, such as its title or the clipboard, is left out; --raw gives all.

    \b
    hpcdist logs last --rank 0
    hpcdist logs last --follow
    """
    from hpcdist.monitor.screen import Screen
    from hpcdist.monitor.states import bring_home
    from hpcdist.monitor.tail import whole_bytes, whole_log

    if follow and raw:
        raise click.UsageError("--follow and --raw contradict each other")
    run = find_run(runs, run_name)
    if follow:
        _follow(run, rank, shown)
        return
    bring_home(run, warn=note)
    files = [(number, path) for number, _, path in run.log_files() if rank in {None, number}]
    if not files:
        ranks = sorted({number for number, _, _ in run.log_files()})
        if rank is not None and ranks:
            raise UserError(
                f"run {run.id} has no log of rank {rank}",
                hint=f"its ranks are {ranks[0]} to {ranks[-1]}",
            )
        note(f"the ranks of run {run.id} have not printed anything")
        note(*(f"the job's own log is {path}" for path in run.job_logs()))
        return
    if raw:
        for _, path in files:
            for chunk in whole_bytes(path):
                sys.stdout.buffer.write(chunk)
        return
    with closing(Screen(prefixed=len({number for number, _ in files}) > 1)) as screen:
        for number, path in files:
            screen.lines((number, line) for line in whole_log(path))


def _follow(run: Run, rank: int | None, shown: dict[str, int]) -> None:
    from hpcdist.monitor.ends import EndWatch
    from hpcdist.monitor.follow import POLL_S, end_sentence, show_lost_agents, show_new
    from hpcdist.monitor.nodes import Beginning
    from hpcdist.monitor.screen import Screen
    from hpcdist.monitor.tail import LogTail

    end = EndWatch([run])
    tail = LogTail(run, lambda number: rank in {None, number}, shown=shown)
    beginning = Beginning(run)
    with closing(Screen(prefixed=rank is None, with_progress=False)) as screen:

        def show() -> None:
            before = tail.num_given
            beginning.show(screen, end.conditions[run.id])
            show_new(tail, screen)
            if screen.has_log:
                screen.draw(tail.open_lines())
            if screen.has_log or tail.num_given > before:
                served.tell({"shown": tail.given})  # a laptop goes on from here

        verdict = end.wait(check=show, interval_s=POLL_S)[run.id]
        screen.close()
        screen.lines(tail.lines(finish=True))
        if verdict.kind == "agent_lost":
            show_lost_agents(run, screen)
        screen.say(end_sentence(run, verdict))
