"""Following a run in the foreground: its ranks' output, live progress, and its end.

Up to 8 ranks' logs are shown, each line with its rank. Of larger runs, where hundreds of ranks say
the same, rank 0 is shown, and the last lines of the rank that failed first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from hpcdist.base.terminal_lines import last_lines
from hpcdist.monitor.logs import LogTail, Screen
from hpcdist.monitor.progress import RunningRun, describe_nodes, waiting_sentence
from hpcdist.monitor.states import EndWatch, continuation, setup_problem, wait_until_gone
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers import runs_here
from hpcdist.schedulers.base import Condition

_POLL_OF_MANY_S = 5.0
"""Between two looks at the logs of more ranks than 100, each of which is opened; else it is short
enough to read along."""
_LOOK_FOR_HANG_S = 5.0
_ALL_RANKS_UP_TO = 8
_TAIL_LINES = 20
_MOST_LOGS = 8


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
    if ranks is None:
        num_ranks = run.spec.outline.num_ranks
        ranks = range(num_ranks if num_ranks <= _ALL_RANKS_UP_TO else 1)
    end, news = EndWatch([run]), News(run)
    logs = LogTail(run, ranks, first_attempt=first_attempt)
    running = RunningRun(run)

    def show() -> None:
        check()
        condition = end.conditions[run.id]
        for sentence in news.new(condition):
            screen.say(sentence)
        screen.lines(logs.lines())
        open_lines = logs.open_lines() if screen.has_log else []
        screen.draw(open_lines, running.look(condition) if screen.is_live else None)

    verdict = end.wait(show, interval_s=0.1 if len(ranks) <= 100 else _POLL_OF_MANY_S)[run.id]
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
        self._most_restarts = run.spec.outline.launch.max_restarts
        self._is_here = runs_here(run.read_scheduler())  # its nodes are this machine
        self._attempt, self._life, self._life_said, self._num_ended = -1, -1, -1, 0
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
        """Give each reason to wait once, and once in each life the nodes, when all have joined."""
        attempt = self._run.newest_attempt()
        if attempt != self._attempt and (begun := self._run.read_beginning(attempt)) is not None:
            self._attempt, self._life = attempt, begun.life
        if self._life != self._life_said:
            nodes, reached = describe_nodes(self._run)
            if reached is not None:
                self._life_said, self._last_reason = self._life, None
                yield f"started on {'; '.join(nodes)}; MASTER_ADDR {reached}"
                if problem := setup_problem(self._run):
                    yield f"a line of the profile's setup failed: {problem}"
        elif (waiting := waiting_sentence(condition)) not in {None, self._last_reason}:
            self._last_reason = waiting
            yield f"pending: {waiting}"


def end_sentence(run: Run, verdict: Verdict) -> str:
    """Say in one sentence how a run ended."""
    if verdict.state != "done":
        command = continuation(run, verdict)
        more = f"; continue with: {command}" if command else ""
        return f"run {run.id} {verdict.sentence}{more}"
    said = f"run {run.id}: done"
    with suppress(OSError):  # by one clock, that of the files: a node's may differ from this host's
        files_s = [path.stat().st_mtime for path in (run.spec_file, run.verdict_file)]
        said += f" in {files_s[1] - files_s[0]:.1f} s"
    return f"{said}; {verdict.remark}" if verdict.remark else said


def _is_in_place(verdict: Verdict) -> bool:
    """Return whether the ranks were started again after a failure, within the life of a job."""
    return verdict.state == "failed" and verdict.blames_ranks


def last_ended(run: Run) -> Verdict | None:
    """Return the verdict on the newest attempt, where another is to follow; or, while that goes on,
    on the one after which its life went on with fewer nodes."""
    newest = run.newest_attempt()
    for attempt in reversed(run.attempts()):
        verdict = run.read_attempt_verdict(attempt)
        if verdict is not None and (attempt == newest or verdict.num_nodes_left):
            return verdict
        if verdict is not None and not _is_in_place(verdict):
            break
    return None


def again_sentence(verdict: Verdict, *, most_restarts: int) -> str:
    """Say how an attempt ended after which there is another, or is to be."""
    said = verdict.sentence.replace("preempted: ", "ended early: ", 1)
    why = f"attempt {verdict.attempt} {' '.join(said.split())}"
    if verdict.num_nodes_left:
        return why  # which says with how many
    if verdict.resumed:
        return f"{why}; hpcdist resume has started it again"
    if _is_in_place(verdict):
        number = verdict.restarts + 1  # more than it may have, where nodes were lost before
        of = f" ({number} of {most_restarts})" if number <= most_restarts else ""
        return f"{why}; starting again{of}"
    return f"{why}; starting again when the scheduler restarts the job"


def _show_unseen(run: Run, verdict: Verdict, ranks: Collection[int], screen: Screen) -> None:
    """Show what explains the end and has not been on the screen yet, or has scrolled off it."""
    if verdict.kind == "agent_lost":
        # No rank could say why it ended: the agents' last words, and those of the job around them.
        for logs in ([path for _, _, path in run.agent_logs()], run.job_logs()):
            for path in logs[:_MOST_LOGS]:
                _show_tail(run, path, screen)
            if len(logs) > _MOST_LOGS:
                screen.say(f"all {len(logs):,} logs are in {logs[0].parent}")
    elif verdict.first is not None:
        rank = verdict.first.rank
        log = run.log_file(rank, verdict.attempt)
        if rank not in ranks or verdict.victims:
            _show_tail(run, log, screen, f"rank {rank} failed first; ")
        screen.say(f"log of rank {rank}: {log}")


def _show_tail(run: Run, path: Path, screen: Screen, what: str = "") -> None:
    if lines := last_lines(path, _TAIL_LINES):
        screen.say(f"{what}the last lines of {path.relative_to(run.path)}:")
    for line in lines:
        screen.say(f"  {line}")
