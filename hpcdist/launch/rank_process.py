"""A rank's process, from the fork to its exit: what the forkserver's child does.

The child begins as a copy of the forkserver. It gives itself what a fresh process would have
(signal handlers, output, environment, random state), runs the workload, and says how it ended.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from hpcdist import files, rank, workloads
from hpcdist.events import SCHEMA_VERSION, EventWriter
from hpcdist.launch.node import RankOrder
from hpcdist.launch.process import die_with_parent
from hpcdist.progress import ProgressSlot
from hpcdist.rank import RankContext
from hpcdist.run import Run
from hpcdist.spec import JobSpec

STACKS_SIGNAL = signal.SIGQUIT
"""Makes a rank write the stacks of its threads; the convention of Java's virtual machines."""

_EXIT_EXCEPTION = 1


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank leaves about the exception that ends it.

    `message` has the form that torchelastic gives the file TORCHELASTIC_ERROR_FILE, so that tools
    that read one read the other.
    """

    exception: str
    """Type, with its module where it is not a builtin."""
    text: str
    """The exception's message."""
    traceback: str
    time_s: float
    message: dict[str, Any] = {}


def become_rank(order: RankOrder, slot: ProgressSlot, parent_pid: int, job: JobSpec) -> NoReturn:
    """Turn the calling process, just forked, into the rank; never returns."""
    die_with_parent(parent_pid)
    os.setsid()  # the terminal's Ctrl-C goes to the command, which ends the ranks in order
    _reset_signals()
    run = Run(Path(order.run_path))
    _redirect_output(run.log_file(order.rank, order.attempt))
    error_file = run.error_file(order.rank, order.attempt)
    os.environ.update(order.environment, TORCHELASTIC_ERROR_FILE=str(error_file))
    if order.cpus:
        os.sched_setaffinity(0, order.cpus)
    _renew_random_state()
    _watch_for_stacks(run.stacks_file(order.rank, order.attempt))
    events = EventWriter(run.event_file(order.rank, order.attempt))
    _leave(run_workload(make_context(order, run, job, events, slot), error_file))


def make_context(
    order: RankOrder, run: Run, job: JobSpec, events: EventWriter, slot: ProgressSlot
) -> RankContext:
    """What the workload is told."""
    return RankContext(
        run=run,
        job=job,
        rank=order.rank,
        local_rank=order.local_rank,
        world_size=order.world_size,
        local_world_size=order.local_world_size,
        node_rank=order.node_rank,
        num_nodes=order.num_nodes,
        host=order.host,
        device=order.device,
        backend=order.backend,
        attempt=order.attempt,
        restart_count=order.restart_count,
        cpus=tuple(order.cpus),
        num_threads=order.num_threads,
        events=events,
        progress=slot,
    )


def run_workload(context: RankContext, error_file: Path) -> int:
    """Run the workload between its first and its last event; returns the exit code."""
    _write_start(context)
    slot = context.progress
    if slot is not None:
        slot.start()
    rank.set_current(context)
    try:
        workloads.run(context)
    except SystemExit as leaving:
        code = exit_code(leaving)
        _write_end(context, code)
    except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt of a rank is an end like any
        _report(error, error_file)
        code = _EXIT_EXCEPTION
        _write_end(context, code, error)
    else:
        code = 0
        _write_end(context, code)
    if slot is not None and code == 0:
        slot.finish()
    context.events.close()
    return code


def exit_code(leaving: SystemExit) -> int:
    """The exit code that Python gives a process for this SystemExit; its text goes to stderr."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr, flush=True)
    return 1


def exception_name(error: BaseException) -> str:
    """Type of an exception, with its module where it is not a builtin or the script's own."""
    kind = type(error)
    if kind.__module__ in {"builtins", "__main__"}:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _write_start(context: RankContext) -> None:
    context.events.write(
        "start",
        schema=SCHEMA_VERSION,
        rank=context.rank,
        local_rank=context.local_rank,
        node=context.node_rank,
        world_size=context.world_size,
        local_world_size=context.local_world_size,
        num_nodes=context.num_nodes,
        attempt=context.attempt,
        restart_count=context.restart_count,
        host=context.host,
        pid=os.getpid(),
        device=context.device,
        backend=context.backend,
        num_threads=context.num_threads,
        cpus=context.cpus,
    )


def _write_end(context: RankContext, code: int, error: BaseException | None = None) -> None:
    context.events.write(
        "end",
        status="done" if code == 0 else "failed",
        exit_code=code,
        signal=None,
        exception=exception_name(error) if error else None,
        message=str(error) if error else None,
        max_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        max_cuda_bytes=_max_cuda_bytes(),
        by="rank",
    )


def _max_cuda_bytes() -> int | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated())


def _report(error: BaseException, error_file: Path) -> None:
    now_s = time.time()
    lines = traceback.format_exception(type(error), error, _own_frames(error.__traceback__))
    text = "".join(lines)
    print(text, file=sys.stderr, flush=True)
    name = exception_name(error)
    report = ErrorReport(
        exception=name,
        text=str(error),
        traceback=text,
        time_s=now_s,
        message={
            "message": f"{name}: {error}",
            "extraInfo": {"py_callstack": text, "timestamp": str(int(now_s))},
        },
    )
    try:
        files.write_json(error_file, msgspec.to_builtins(report))
    except OSError as failure:
        print(f"hpcdist: {error_file}: {failure.strerror}", file=sys.stderr)


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without hpcdist's frames at its top: the user's begin where theirs end."""
    launcher = (str(Path(__file__)), str(Path(workloads.__file__).parent))
    while trace is not None and trace.tb_next is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(launcher):
            break
        trace = trace.tb_next
    return trace


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        if signum in {signal.SIGKILL, signal.SIGSTOP}:
            continue
        if signal.getsignal(signum) not in {signal.SIG_DFL, None}:
            signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python sets it at its start
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _redirect_output(log_file: Path) -> None:
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, files.PRIVATE_FILE)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(nothing)
    # A line reaches the log as it is printed: whoever follows the run, or looks after a SIGKILL,
    # sees it.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _line_writer(1)
    sys.stderr = _line_writer(2)


def _line_writer(descriptor: int) -> Any:
    return open(
        descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def _renew_random_state() -> None:
    """A fresh process has its own; Python's `random` renews itself after a fork, numpy does not."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _watch_for_stacks(stacks_file: Path) -> None:
    faulthandler.enable(file=2)
    stacks = os.open(stacks_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, files.PRIVATE_FILE)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True, chain=False)


def _leave(code: int) -> NoReturn:
    """Do what the interpreter does at its end, but for destroying objects, and exit.

    Destructors of process groups and CUDA contexts are what hangs and crashes at the end of
    training; the kernel frees all of it.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - waits for the threads
        atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing's forks would need it too
    except BaseException:  # noqa: BLE001 - the interpreter prints these and goes on
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
