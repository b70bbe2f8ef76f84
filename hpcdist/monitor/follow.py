"""Following a run in the foreground: its ranks' output, live progress, and its end.

Up to 8 ranks' logs are shown, each line with its rank. Of larger runs, where hundreds of ranks say
the same, rank 0 is shown, and the last lines of the rank that failed first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from hpcdist.agent.outcome.failure import is_own_error
from hpcdist.base.terminal_lines import last_lines
from hpcdist.base.text import number_of
from hpcdist.monitor.ends import EndWatch, wait_until_gone
from hpcdist.monitor.nodes import Beginning
from hpcdist.monitor.progress import LiveProgress, Progress, at_rest
from hpcdist.monitor.screen import Screen
from hpcdist.monitor.states import continuation
from hpcdist.monitor.tail import LogTail
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, RunSpec
from hpcdist.runs.verdict import Verdict

POLL_S = 0.1  # quick enough to read along; the ranks need the processors more

_LOOK_FOR_HANG_S = 5.0
_ALL_RANKS_UP_TO = 8
_TAIL_LINES = 20
_MOST_AGENTS = 8
_CRASHED_THREAD = "Current thread "
_CRASH_LINES = 10
_ENDED = {"preempted": "ended early"}


def follow(
    run: Run,
    screen: Screen,
    *,
    check: Callable[[], None] = lambda: None,
    shown: Mapping[str, int] | None = None,
    tell: Callable[[Mapping[str, int]], None] | None = None,
) -> Verdict:
    """Show what the run's ranks print until it has ended; the verdict is not shown.

    `check` is called between looks, and may raise to end the following. `shown` has, by the names
    of logs, how many lines of each were shown before, and `tell` takes it as it grows.
    """
    end = EndWatch([run])
    world_size = run.read_outline().resources.num_ranks
    ranks = range(world_size if world_size <= _ALL_RANKS_UP_TO else 1)
    logs = LogTail(run, ranks, shown=shown)
    progress = LiveProgress(run) if screen.is_live else None
    beginning = Beginning(run)
    most_restarts = run.read_outline().launch.max_restarts
    num_ended = 0

    def show_restarts() -> None:
        nonlocal num_ended
        while (ended := run.read_attempt_verdict(num_ended)) is not None:
            num_ended += 1
            screen.say(again_sentence(ended, most_restarts=most_restarts))

    hangs = _HangSeen(run)

    def pace() -> Progress | None:
        now = progress.read() if progress is not None else None
        waits = now is not None and end.conditions[run.id].state == "pending"
        return at_rest(now) if now is not None and waits else now

    def show() -> None:
        check()
        before = logs.num_given
        beginning.show(screen, end.conditions[run.id])
        show_new(logs, screen)
        show_restarts()
        hangs.show(screen)
        if progress is not None:
            screen.draw(logs.open_lines() if screen.has_log else [], pace())
        if tell is not None and (screen.has_log or logs.num_given > before):
            tell(logs.given)

    if tell is not None:
        tell(logs.given)
    verdict = end.wait(check=show, interval_s=POLL_S)[run.id]
    wait_until_gone(run)
    screen.close()  # what was drawn as unfinished becomes a part of the log
    beginning.show(screen, end.conditions[run.id])
    screen.lines(logs.lines(finish=True))
    show_restarts()
    _show_unseen(run, verdict, ranks, screen)
    return verdict


class _HangSeen:
    """Says once that a run seems to hang, and once that it works again."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._look_at_s = 0.0
        self._is_told = False

    def show(self, screen: Screen) -> None:
        if time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + _LOOK_FOR_HANG_S
        hang = None
        with suppress(OSError):  # the next look may tell
            hang = self._run.read_hang(self._run.newest_attempt())
        if (hang is not None) != self._is_told:
            self._is_told = hang is not None
            screen.say(hang.message if hang else "a rank works again: the run does not hang")


def show_new(logs: LogTail, screen: Screen) -> None:
    """Show what the ranks have printed since the last call; lines that are not finished only where
    they cannot be drawn, and only now and then."""
    screen.lines(logs.lines())
    if not screen.has_log:
        screen.lines(logs.overdue_lines())


def end_sentence(run: Run, verdict: Verdict) -> str:
    """Say in one sentence how a run ended."""
    if verdict.state != "done":
        command = continuation(run, verdict)
        more = f"; continue with: {command}" if command else ""
        return f"run {run.id} {verdict.sentence}{more}"
    spec = run.read_spec() or RunSpec()
    said = f"run {run.id}: done"
    with suppress(OSError):  # by one clock, that of the files: a node's may differ from this host's
        files_s = [path.stat().st_mtime for path in (run.spec_file, run.verdict_file)]
        said += f" in {files_s[1] - files_s[0]:.1f} s"
    remarks = (verdict.remark, _shared_cpus(spec.plan))
    return "; ".join([said, *(remark for remark in remarks if remark)])


def _shared_cpus(plan: LaunchPlan | None) -> str:
    """Say that more ranks than CPUs shared them, where the CPUs were planned, as on this machine:
    such a run is slower than its ranks on CPUs of their own."""
    if plan is None or plan.device != "cpu":
        return ""
    shares = [cpus for node in plan.nodes for cpus in node.rank_cpus or []]
    num_cpus = len({cpu for cpus in shares for cpu in cpus})
    shared = num_cpus and len(shares) > num_cpus
    return f"{len(shares)} ranks shared {number_of(num_cpus, 'CPU')}" if shared else ""


def again_sentence(verdict: Verdict, *, most_restarts: int) -> str:
    """Say how an attempt ended after which there is another, or is to be."""
    why = f"attempt {verdict.attempt} {_ENDED.get(verdict.state, verdict.state)}: "
    why += " ".join(verdict.message.split())
    if verdict.resumed:
        return f"{why}; hpcdist resume has started it again"
    is_left = verdict.kind in {"agent_lost", "launch", "time_limit"}
    if verdict.state == "failed" and not is_left:
        return f"{why}; starting again ({verdict.restarts + 1} of {most_restarts})"
    return f"{why}; starting again when the scheduler restarts the job"


def show_lost_agents(run: Run, screen: Screen) -> None:
    """Show the last words of the agents, of many those of the first nodes, and of the job around
    them: no rank could say why it ended."""
    logs = run.agent_logs()
    for path in [*logs[:_MOST_AGENTS], *run.job_logs()]:
        _show_tail(run, path, screen)
    if len(logs) > _MOST_AGENTS:
        screen.say(f"the logs of all {len(logs):,} agents are in {run.logs_folder}")


def _show_unseen(run: Run, verdict: Verdict, ranks: range, screen: Screen) -> None:
    """Show what explains the end and has not been on the screen yet, or has scrolled off it."""
    if verdict.kind == "agent_lost":
        show_lost_agents(run, screen)
    elif verdict.first is not None:
        rank, report = verdict.first.rank, verdict.first.report
        log = run.named_log(verdict.log) or run.log_file(rank)
        if rank not in ranks:
            _show_tail(run, log, screen)
        elif report.traceback and verdict.victims and not is_own_error(report.exception):
            screen.say(f"rank {rank} failed first:")
            for line in _telling_lines(report.traceback):
                screen.say(f"  {line}")
        screen.say(f"log of rank {rank}: {log}")


def _telling_lines(trace: str) -> list[str]:
    """Return the lines of a traceback that are nearest to the failure; in faulthandler's report on
    a crash these are the first of the thread that crashed."""
    lines = trace.splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith(_CRASHED_THREAD)]
    if not starts:
        return lines[-_TAIL_LINES:]
    begin = starts[-1]
    end = lines.index("", begin) if "" in lines[begin:] else len(lines)
    return [lines[0], *lines[begin : min(end, begin + _CRASH_LINES)]]


def _show_tail(run: Run, path: Path, screen: Screen) -> None:
    lines = last_lines(path, _TAIL_LINES)
    if lines:
        screen.say(f"the last lines of {path.relative_to(run.path)}:")
    for line in lines:
        screen.say(f"  {line}")
