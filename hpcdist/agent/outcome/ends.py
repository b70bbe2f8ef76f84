"""The end of one rank, from what its process left: exit status, report, progress, log."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from msgspec.structs import replace

from hpcdist.agent.messages import Exited
from hpcdist.base import files
from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.base.terminal_lines import last_lines
from hpcdist.job.spec import JobSpec, OwnCodeJob
from hpcdist.rank.board import RankProgress
from hpcdist.rank.context import RankOrder
from hpcdist.rank.exit import LATE, full_disk, places_of_writing
from hpcdist.runs.events import End, EventWriter, read_events
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import NO_REPORT, ErrorReport, RankEnd
from hpcdist.workloads.rank_process import (
    MOST_MESSAGE_LETTERS,
    MOST_TRACEBACK_LETTERS,
    clean,
    secrets_of,
)

_CRASH_MARK = "Fatal Python error:"
_LAST_LINES = 60
"""NCCL's watchdog tells its reason twice before it aborts, each time with the frames of C++."""
_CRASH_LINES = 500
"""With what faulthandler writes of all threads."""


def rank_end(
    run: Run,
    job: JobSpec,
    order: RankOrder,
    progress: RankProgress,
    exited: Exited,
    *,
    clock_offset_s: float = 0.0,
    stopped_s: float | None = None,
    out_of_memory: str | None = None,
    unwritten: ErrorReport | None = None,
) -> RankEnd:
    """Return how a rank ended that the forkserver has reaped.

    `clock_offset_s` takes this host's clock to node 0's; `stopped_s` is when the ranks were asked
    to end; `out_of_memory` is the sentence of whoever killed it for its memory; `unwritten` the
    report that it could not write.
    """
    code, killed_by, teardown = None, None, None
    if not os.WIFSIGNALED(exited.status):
        code = os.WEXITSTATUS(exited.status)
    else:
        number = os.WTERMSIG(exited.status)
        names = {int(each): each.name for each in signal.Signals}
        killed_by = names.get(number, f"signal {number}")  # a real-time signal has no name
        if progress.leaves:
            # Its workload was over: the exit code that it was leaving with counts, not the signal.
            teardown = "SIGKILL" if number == LATE else killed_by
            code, killed_by, out_of_memory = progress.leaves - 1, None, None
    report, is_well = None, code == 0 and progress.finished
    if code is not None and not is_well:  # else an exception was not what ended the rank
        path = run.error_file(order.rank, order.attempt)
        report = unwritten or _read_report(path, ended_s=exited.time_s)
    left_early = code == 0 and not is_well and report is None
    end_s = exited.time_s if report is None else report.time_s
    report = report or _report_by_agent(run, order, code, killed_by, out_of_memory)
    hide_secrets = secrets_of(job).again if report.text or report.traceback else str
    return replace(
        basic_end(order, progress, time_s=end_s + clock_offset_s),
        exit_code=code,
        signal=killed_by,
        report=replace(
            report,
            text=hide_secrets(report.text),
            traceback=report.traceback and hide_secrets(report.traceback),
        ),
        finished=progress.finished or (left_early and isinstance(job, OwnCodeJob)),
        left_early=left_early,
        teardown=teardown,
        outlasted=exited.outlasted,
        elastic=progress.elastic,
        # A rank that asks at step boundaries whether to stop ends with 75, whatever its libraries
        # make of SIGTERM.
        handles_sigterm=progress.handles_sigterm
        and progress.boundary == 0
        and isinstance(job, OwnCodeJob),
        stopped=stopped_s is not None and end_s >= stopped_s,
    )


def _report_by_agent(
    run: Run, order: RankOrder, code: int | None, killed_by: str | None, out_of_memory: str | None
) -> ErrorReport:
    """Return a report on a rank that left none, by its log and by disks that are full;
    `out_of_memory` is the sentence of whoever killed it for its memory."""
    log = run.log_file(order.rank, order.attempt)
    text, trace, lack = out_of_memory or "", None, None
    if killed_by not in {None, "SIGKILL", "SIGTERM"}:  # these come from outside
        said, mark, crash = "\n".join(last_lines(log, _CRASH_LINES)).rpartition(_CRASH_MARK)
        trace = mark + crash if mark else None
        if killed_by == "SIGABRT" and not text:
            text = "\n".join((said if mark else crash).strip().splitlines()[-_LAST_LINES:])
    is_orderly = code in {EXIT_STOPPED, 0}
    if code is not None or killed_by == "SIGBUS":
        # What a rank recorded that ended well may be cut.
        lack = full_disk(None, [run.path] if is_orderly else places_of_writing(run.path))
    if code is not None and not is_orderly and not text and lack is None:
        lines = "\n".join(last_lines(log, _LAST_LINES)).strip().splitlines()
        text = f"the log ends with {lines[-1].strip(' =')!r}" if lines else ""  # argparse says why
    is_killed = out_of_memory is not None
    return replace(NO_REPORT, text=text, traceback=trace, lack=lack, out_of_memory=is_killed)


def basic_end(order: RankOrder, progress: RankProgress, *, time_s: float) -> RankEnd:
    """Return what the end of a rank has in common with one that lives: place and step."""
    return RankEnd(
        rank=order.rank,
        local_rank=order.local_rank,
        node=order.node_rank,
        host=order.host,
        time_s=time_s,
        step=progress.step,
    )


def close_event_file(
    run: Run, order: RankOrder, end: RankEnd, *, max_rss_bytes: int | None
) -> None:
    """Add the last event for a rank that could not write it itself."""
    path = run.event_file(order.rank, order.attempt)
    with contextlib.suppress(OSError):
        events = read_events(path)
        if events and events[-1]["event"] == "end":
            return
    status = "done" if end.exit_code == 0 and end.finished else "failed"
    if end.signal is not None or end.exit_code == EXIT_STOPPED:
        status = "stopped" if end.signal is None else "killed"
    writer = EventWriter(path)
    with path.open("ab") as file:
        file.write(b"\n")  # the rank may have been killed within a line
    writer.write(
        End(
            status=status,
            exit_code=end.exit_code,
            signal=end.signal,
            step=end.step,
            max_rss_bytes=max_rss_bytes,
            by="agent",
        )
    )
    writer.close()


def _read_report(path: Path, *, ended_s: float) -> ErrorReport | None:
    """Return what a rank left about the exception that ended it at `ended_s`; or a program with
    torchelastic's `@record`, which notes whole seconds, too coarse for an order among ranks."""
    if (report := files.read_as(path, ErrorReport)) is not None:
        return report
    match files.read_json(path):
        case {"message": {"message": str(message), **more}}:
            name, _, text = message.partition(": ")
            info = more.get("extraInfo")
            stack = info.get("py_callstack") if isinstance(info, dict) else None
            return ErrorReport(
                exception=name,
                text=clean(text, MOST_MESSAGE_LETTERS),
                traceback=clean(str(stack or ""), MOST_TRACEBACK_LETTERS),
                time_s=ended_s,
            )
    return None
