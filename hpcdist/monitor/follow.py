"""Following a run in the foreground: its ranks' output, live progress, and its end.

Up to 8 ranks' logs are shown, each line with its rank. Of larger runs, where hundreds of ranks say
the same, rank 0 is shown, and the last lines of the rank that failed first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from hpcdist.base.errors import HpcdistError
from hpcdist.base.terminal_lines import last_lines
from hpcdist.base.text import number_of
from hpcdist.monitor.ends import EndWatch, wait_until_gone
from hpcdist.monitor.logs import LogTail
from hpcdist.monitor.nodes import NodeSeen, master_sentence, node_lines, read_node, waiting_sentence
from hpcdist.monitor.progress import RunningRun
from hpcdist.monitor.screen import Screen
from hpcdist.monitor.states import continuation, setup_problem
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, RunSpec
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers import runs_here
from hpcdist.schedulers.base import Condition

_POLL_S = 0.1  # quick enough to read along; the ranks need the processors more
_POLL_OF_MANY_S = 5.0
"""Between two looks at the logs of many ranks, each of which is opened."""
_MANY_RANKS = 100
_LOOK_FOR_HANG_S = 5.0
_ALL_RANKS_UP_TO = 8
_TAIL_LINES = 20
_MOST_AGENTS = 8
_CRASHED_THREAD = "Current thread "
_CRASH_LINES = 10
_ENDED = {"preempted": "ended early"}
_OWN_ERRORS = f"{HpcdistError.__module__}."
"""Errors whose words say enough without a traceback."""


def follow(
    run: Run,
    screen: Screen,
    ranks: Collection[int] | None = None,
    *,
    check: Callable[[], None] = lambda: None,
    first_attempt: int = 0,
) -> Verdict:
    """Show what these ranks print, or those that are shown unasked, until the run has ended; the
    verdict is not shown.

    `check` is called between looks, and may raise to end the following. What attempts before
    `first_attempt` printed is not shown.
    """
    num_ranks = run.read_outline().num_ranks
    if ranks is None:
        ranks = range(num_ranks if num_ranks <= _ALL_RANKS_UP_TO else 1)
    end, news = EndWatch([run]), News(run)
    logs = LogTail(run, ranks, first_attempt=first_attempt)
    running = RunningRun(run, most_ranks=1) if screen.draws_progress else None

    def show() -> None:
        check()
        condition = end.conditions[run.id]
        for sentence in news.new(condition):
            screen.say(sentence)
        screen.lines(logs.lines())
        if screen.has_log:
            open_lines = logs.open_lines()
        else:  # a bar is a line now and then where it cannot be drawn
            open_lines = []
            screen.lines(logs.overdue_lines())
        seen = running.look(condition) if running is not None else None
        screen.draw(open_lines, seen.progress if seen else None)

    interval_s = _POLL_S if len(ranks) <= _MANY_RANKS else _POLL_OF_MANY_S
    verdict = end.wait(check=show, interval_s=interval_s)[run.id]
    wait_until_gone(run)
    screen.close()  # what was drawn as unfinished becomes a part of the log
    for sentence in news.new(end.conditions[run.id]):
        screen.say(sentence)
    screen.lines(logs.lines(finish=True))
    _show_unseen(run, verdict, ranks, screen)
    return verdict


class News:
    """Sentences on a run as it goes on: of each life why it waits and where it is, how its attempts
    ended, and that it seems to hang."""

    def __init__(self, run: Run) -> None:
        self._run = run
        outline = run.read_outline()
        self._num_nodes = outline.resources.nodes or 1
        self._most_restarts = outline.launch.max_restarts
        self._is_here = runs_here(run.read_scheduler())  # its nodes are this machine
        self._attempt, self._life, self._num_ended = -1, 0, 0
        self._reached: dict[Path, NodeSeen] = {}
        """The nodes of this life that have reached node 0."""
        self._has_begun = False
        self._last_reason: str | None = None
        self._look_for_hang_s = 0.0
        self._is_hanging = False

    def new(self, condition: Condition) -> Iterator[str]:
        """Give what has become known since the last call, a sentence each."""
        if not self._is_here:
            yield from self._of_place(condition)
        while (ended := self._run.read_attempt_verdict(self._num_ended)) is not None:
            self._num_ended += 1
            yield again_sentence(ended, most_restarts=self._most_restarts)
        if time.monotonic() >= self._look_for_hang_s:
            self._look_for_hang_s = time.monotonic() + _LOOK_FOR_HANG_S
            with suppress(OSError):  # the next look may tell
                hang = self._run.read_hang(self._run.newest_attempt())
                if (hang is not None) != self._is_hanging:
                    self._is_hanging = hang is not None
                    yield hang.message if hang else "a rank works again: the run does not hang"

    def _of_place(self, condition: Condition) -> Iterator[str]:
        """Give each reason to wait once, and once in each life the nodes."""
        attempt = self._run.newest_attempt()
        if attempt != self._attempt and (begun := self._run.read_beginning(attempt)) is not None:
            self._attempt = attempt
            if begun.life != self._life:
                self._life, self._has_begun, self._reached = begun.life, False, {}
        if not self._has_begun and self._have_all_reached():
            self._has_begun, self._last_reason = True, None
            nodes = sorted(self._reached.values(), key=lambda seen: seen.node)
            listed = "; ".join(node_lines(nodes, num_nodes=len(nodes)))
            yield f"started on {listed}; MASTER_ADDR {master_sentence(nodes)}"
            if problem := setup_problem(self._run):
                yield f"a line of the profile's setup failed: {problem}"
        elif (waiting := waiting_sentence(condition)) not in {None, self._last_reason}:
            self._last_reason = waiting
            yield f"pending: {waiting}"

    def _have_all_reached(self) -> bool:
        """Read what agents have written that were not there yet, up to the first that still is not:
        a thousand files are not read at each look."""
        paths = self._run.agent_files()
        if len(paths) < self._num_nodes:
            return False
        for path in paths:
            if path not in self._reached:
                seen = read_node(path)
                if seen is None or seen.master_addr is None:
                    return False
                self._reached[path] = seen
        return True


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


def _show_lost_agents(run: Run, screen: Screen) -> None:
    """Show the last words of the agents, of many those of the first nodes, and of the job around
    them: no rank could say why it ended."""
    logs = [path for _, _, path in run.agent_logs()]
    for path in [*logs[:_MOST_AGENTS], *run.job_logs()]:
        _show_tail(run, path, screen)
    if len(logs) > _MOST_AGENTS:
        screen.say(f"the logs of all {len(logs):,} agents are in {run.logs_folder}")


def _show_unseen(run: Run, verdict: Verdict, ranks: Collection[int], screen: Screen) -> None:
    """Show what explains the end and has not been on the screen yet, or has scrolled off it."""
    if verdict.kind == "agent_lost":
        _show_lost_agents(run, screen)
    elif verdict.first is not None:
        rank, report = verdict.first.rank, verdict.first.report
        log = run.named_file(verdict.log) or run.log_file(rank)
        is_own = (report.exception or "").startswith(_OWN_ERRORS)
        if rank not in ranks:
            _show_tail(run, log, screen)
        elif report.traceback and verdict.victims and not is_own:
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
