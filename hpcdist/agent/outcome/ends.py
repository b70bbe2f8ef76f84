"""The end of one rank, from what its process left: status, report, progress, log."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.agent.node import RankOrder
from hpcdist.agent.outcome.disk import full_disk_in_log, places_of_writing, why_bus_error
from hpcdist.agent.outcome.failure import is_out_of_memory
from hpcdist.agent.outcome.shortage import parse_shortage
from hpcdist.agent.rank_process import (
    MOST_MESSAGE_LETTERS,
    MOST_TRACEBACK_LETTERS,
    clean,
    secrets_of,
)
from hpcdist.base import files
from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.base.terminal_lines import end_of_log
from hpcdist.job.spec import JobSpec, OwnCodeJob, TrainingJob
from hpcdist.rank.board import RankProgress
from hpcdist.runs.events import EventWriter, read_events
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import ErrorReport, RankEnd

_CRASH_MARK = "Fatal Python error:"
_LAST_LINES = 60
"""NCCL's watchdog tells its reason twice before it aborts, each time with the frames of C++."""
_CRASH_LINES = 500
"""With what faulthandler writes of all threads."""
_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM"})
"""A rank that ends by these says nothing about it."""


class _Frames(msgspec.Struct, frozen=True, kw_only=True):
    py_callstack: str | None = None


class _Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An error as torchelastic records it."""

    message: str
    """Type and text of the exception."""
    extra_info: _Frames = _Frames()


class _RecordedError(msgspec.Struct, frozen=True, kw_only=True):
    """The file TORCHELASTIC_ERROR_FILE as torchelastic's `@record` writes it, in a script or in a
    program that the rank has become."""

    message: _Message | str


def rank_end(
    run: Run,
    job: JobSpec,
    order: RankOrder,
    progress: RankProgress,
    *,
    status: int,
    time_s: float,
    clock_offset_s: float = 0.0,
    stopped_s: float | None = None,
    out_of_memory: str | None = None,
    teardown: str | None = None,
    outlasted: bool = False,
    unwritten: ErrorReport | None = None,
) -> RankEnd:
    """Return how a rank ended.

    `status` is waitpid's; `time_s` when it was reaped; `clock_offset_s` takes this host's clock to
    node 0's; `stopped_s` is when the ranks were asked to end; `out_of_memory` is the sentence of
    whoever killed it for its memory; `teardown` the signal that ended it after its workload;
    `outlasted` where it was killed after the grace; `unwritten` the report that it could not write.
    """
    report = unwritten or read_error_report(
        run.error_file(order.rank, order.attempt), ended_s=time_s
    )
    killed = os.WIFSIGNALED(status)
    if killed or (status == 0 and progress.finished):
        report = None  # what it raised was not what ended it
    left_early = status == 0 and not progress.finished and report is None
    end_s = report.time_s if report else time_s
    signal_name = last_words = crash_report = None
    if killed:
        with contextlib.suppress(ValueError):  # a real-time signal has no name
            signal_name = signal.Signals(os.WTERMSIG(status)).name
        signal_name = signal_name or f"signal {os.WTERMSIG(status)}"
        if signal_name not in _FROM_OUTSIDE:
            last_words, crash_report = _from_log(run.log_file(order.rank, order.attempt))
    full_disk = None if report else _full_disk(run, order, status)
    message = report.text if report else out_of_memory
    if message is None and signal_name == "SIGABRT":
        message = last_words
    has_reason = killed or message is not None or full_disk is not None
    if not has_reason and os.WEXITSTATUS(status) not in {0, EXIT_STOPPED}:
        lines = end_of_log(run.log_file(order.rank, order.attempt), _LAST_LINES)
        said = next((line.strip() for line in reversed(lines) if line.strip()), None)
        message = said and f"the log ends with {said.strip(' =')!r}"  # argparse and others say why
    trace = report.traceback if report else crash_report
    shown = secrets_of(job).again if message or trace else str
    end = msgspec.structs.replace(
        living_end(order, progress, time_s=end_s + clock_offset_s),
        exit_code=None if killed else os.WEXITSTATUS(status),
        signal=signal_name,
        exception=report.exception if report else None,
        message=message and shown(message),
        traceback=trace and shown(trace),
        free_bytes=report.free_bytes if report else None,
        full_disk=report.full_disk if report else full_disk,
        lost_worker=report.lost_worker if report else None,
        finished=progress.finished or (left_early and isinstance(job, OwnCodeJob)),
        left_early=left_early,
        teardown=teardown,
        outlasted=outlasted,
        # What asks at its boundaries stops with 75, whatever its libraries make of SIGTERM.
        handles_sigterm=progress.handles_sigterm
        and progress.boundary == 0
        and isinstance(job, OwnCodeJob),
        out_of_memory=out_of_memory is not None or (report is not None and report.out_of_memory),
        stopped=stopped_s is not None and end_s >= stopped_s,
    )
    if isinstance(job, TrainingJob) and is_out_of_memory(end) and end.lost_worker is None:
        return msgspec.structs.replace(end, advice=_advice(run, job, order, end))
    return end


def _advice(run: Run, job: TrainingJob, order: RankOrder, end: RankEnd) -> str | None:
    # Few trainings run out of memory; every agent would import all data sets with it.
    from hpcdist.training.memory import Holding, advise, advise_on_model, expected_holding

    try:
        events = read_events(run.event_file(order.rank, order.attempt)).events
    except OSError:
        return None
    newest = {event["event"]: event for event in events}
    if "memory" in newest:
        fields = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
        holding = Holding(**{field: newest["memory"][field] for field in fields})
    elif "setup" in newest:
        holding = expected_holding(job, newest["setup"]["parameters"], order.world_size)
    elif model := newest.get("model"):
        return advise_on_model(
            job,
            num_parameters=model["parameters"],
            world_size=order.world_size,
            is_built=model["built"],
        )
    else:
        return None
    shortage = parse_shortage(end.message or "")
    used_bytes = shortage.used_bytes if shortage else None
    return advise(job, world_size=order.world_size, holding=holding, used_bytes=used_bytes)


def living_end(order: RankOrder, progress: RankProgress, *, time_s: float) -> RankEnd:
    """Return a rank that has not ended, in the form of one that has."""
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
        events = read_events(path).events
        if events and events[-1]["event"] == "end":
            return
    if end.signal is not None:
        status = "killed"
    elif end.exit_code == EXIT_STOPPED:
        status = "stopped"
    else:
        status = "done" if end.exit_code == 0 and end.finished else "failed"
    writer = EventWriter(path)
    with path.open("rb+") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 1))
        if file.read() not in {b"", b"\n"}:  # the rank was killed within a line
            file.write(b"\n")
    writer.write(
        "end",
        status=status,
        exit_code=end.exit_code,
        signal=end.signal,
        exception=end.exception,
        message=end.message if end.exception else None,
        step=end.step,
        max_rss_bytes=max_rss_bytes,
        max_cuda_bytes=None,
        by="agent",
    )
    writer.close()


def _full_disk(run: Run, order: RankOrder, status: int) -> str | None:
    """Return the disk that had no room for a rank that failed and gave no reason, as by exit(1)."""
    places = places_of_writing(run.path)
    if os.WIFSIGNALED(status):
        return why_bus_error(places) if os.WTERMSIG(status) == signal.SIGBUS else None
    if os.WEXITSTATUS(status) in {0, EXIT_STOPPED}:  # what it recorded may be cut all the same
        return full_disk_in_log([], [run.path])
    return full_disk_in_log(
        end_of_log(run.log_file(order.rank, order.attempt), _LAST_LINES), places
    )


def _from_log(path: Path) -> tuple[str | None, str | None]:
    """Return the last lines of a killed rank's log, and what faulthandler wrote there at a
    crash."""
    text = "\n".join(end_of_log(path, _CRASH_LINES))
    said, mark, trace = text.rpartition(_CRASH_MARK)
    lines = (said if mark else text).strip().splitlines()
    return "\n".join(lines[-_LAST_LINES:]) or None, mark + trace if mark else None


def read_error_report(path: Path, *, ended_s: float) -> ErrorReport | None:
    """Return what a rank, or `@record` in it, left about the exception that ended it at `ended_s`.

    `@record` notes whole seconds: too coarse for an order among ranks, and the program may have
    gone on for some time.
    """
    value: Any = files.read_json(path)
    with contextlib.suppress(msgspec.ValidationError):
        return files.convert(value, ErrorReport)
    try:
        said = files.convert(value, _RecordedError).message
    except msgspec.ValidationError:
        return None
    name = stack = None
    text = said if isinstance(said, str) else said.message
    if isinstance(said, _Message):
        stack = said.extra_info.py_callstack
        kind, _, words = text.partition(":")
        if kind.isidentifier():  # `ValueError: text`; the traceback has the type with its module
            types = re.findall(rf"^((?:\w+\.)*{kind})(?::|$)", stack or "", re.MULTILINE)
            name = types[-1].removeprefix("__main__.") if types else kind
            text = words.strip()
    return ErrorReport(
        exception=name,
        text=clean(text, MOST_MESSAGE_LETTERS),
        traceback=stack and clean(stack, MOST_TRACEBACK_LETTERS),
        time_s=ended_s,
    )
