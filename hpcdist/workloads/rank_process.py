"""A rank's process, from the fork to its exit: what the forkserver's child does.

The child begins as a copy of the forkserver. `become_rank` gives it what a fresh process would have
(signal handlers, output, environment, random state). `run_workload` runs the workload, and reports
how it ended. `leave` (rank/exit.py) ends the process.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import hashlib
import io
import os
import resource
import signal
import sys
import time
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from hpcdist import workloads
from hpcdist.base import files
from hpcdist.base.errors import EXIT_STOPPED, HpcdistError
from hpcdist.base.secrets import Stars
from hpcdist.job.spec import JobSpec, OwnCodeJob, job_to_dict
from hpcdist.machine.memory import KernelKills, kernel_kills
from hpcdist.machine.process import RANK_VARIABLE, WARNING_SIGNALS, die_with_parent
from hpcdist.rank import own_loop
from hpcdist.rank.board import ProgressSlot
from hpcdist.rank.context import RankContext, RankOrder, set_current
from hpcdist.rank.exit import full_disk, leave, places_of_writing
from hpcdist.rank.libraries import find_mlflow_run, renew_import_state
from hpcdist.rank.pipe import Unwritten
from hpcdist.runs.events import End, EventWriter, Start
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import ErrorReport

STACKS_SIGNAL = signal.SIGQUIT
"""Makes a rank write the stacks of its threads; the convention of Java's virtual machines."""

_LOST_WORKER = "DataLoader worker (pid"
_FRAMES_OF_WORKLOAD = 10
"""Between `become_rank` and a script, and those of C, which some versions of Python count."""
MOST_MESSAGE_LETTERS = 10_000
MOST_TRACEBACK_LETTERS = 100_000
_TOLD_LETTERS = 5000
_MOST_CODE_BYTES = 16e6


def become_rank(
    order: RankOrder, slot: ProgressSlot, parent_pid: int, job: JobSpec, *, stacks: int
) -> NoReturn:
    """Turn the calling process, just forked, into the rank; `stacks` takes those of its threads."""
    modules = dict(sys.modules)
    pid = os.getpid()
    die_with_parent(parent_pid)
    os.setsid()  # the terminal's Ctrl-C goes to the command, which ends the ranks in order
    _reset_signals(job)
    run = Run(Path(order.run_path))
    redirect_output(run.log_file(order.rank, order.attempt))
    error_file = run.error_file(order.rank, order.attempt)
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(error_file)
    os.environ[RANK_VARIABLE] = str(pid)
    os.environ.update(order.environment, HPCDIST_RUN_DIR=order.run_path)
    for name in [name for name in os.environ if name.startswith("SUBMITIT_")]:
        del os.environ[name]  # the agent is submitit's task, and no rank is
    if order.cpus:
        os.sched_setaffinity(0, order.cpus)
    _limit_threads()
    renew_import_state()
    faulthandler.enable(file=2)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True, chain=False)
    slot.pipe.begin(stacks)
    # The program may call itself as deeply as one that Python starts: our frames do not count.
    num_frames = sum(1 for _ in traceback.walk_stack(None))
    sys.setrecursionlimit(sys.getrecursionlimit() + num_frames + _FRAMES_OF_WORKLOAD)
    events = EventWriter(run.event_file(order.rank, order.attempt))
    context = RankContext(**order.place_fields(), run=run, job=job, events=events, progress=slot)

    def be_no_rank() -> None:  # what the rank's code forks records nothing in its name
        set_current(None)
        own_loop.forget()
        context.events.close()

    os.register_at_fork(after_in_child=be_no_rank)
    if order.rank == 0 and order.attempt > 0 and isinstance(job, OwnCodeJob):
        os.environ.update(find_mlflow_run(run.id, os.environ))
    code = run_workload(context, error_file)
    leave(code, slot, pid, kept=modules)


def _limit_threads() -> None:
    """Have torch use as many threads as OMP_NUM_THREADS says, where it was imported before that was
    set, as in the allocation of a dev run."""
    torch, wanted = sys.modules.get("torch"), os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and wanted.isdecimal() and torch.get_num_threads() != int(wanted):
        torch.set_num_threads(int(wanted))


def run_workload(context: RankContext, error_file: Path) -> int:
    """Run the workload between its first and its last event; return the exit code. An exception's
    report is written into `error_file`, or told to the agent.

    A process that the workload forks may return from here, too: its exit code is all that counts.
    """
    pid, job, progress = os.getpid(), context.job, context.progress
    place = context.place_fields()
    digest = None if context.rank else _digest_of_code(job)
    context.events.write(Start(pid=pid, node=place.pop("node_rank"), code=digest, **place))
    code, report = 0, None
    progress.alive()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        progress.values.ignores_sigterm = True
    set_current(context)
    kills, places = kernel_kills(), places_of_writing(context.run.path)
    try:
        try:
            set_main()  # the rank's own __main__: the agent's is another program
            workloads.load_workload(job).run(context)
        finally:
            # torch's handler raises for each worker of a DataLoader that dies: the second one's
            # death must not interrupt the report on the first, nor a pending one this change.
            while signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
                with contextlib.suppress(RuntimeError):
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except SystemExit as leaving:
        _ignore_sigterm()
        code, report = _on_exit(leaving, places)
    except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt of a rank is an end like any
        _ignore_sigterm()
        if isinstance(error, MemoryError):
            traceback.clear_frames(error.__traceback__)  # there must be room for the report
        report = _describe(error, places, kills)
        code = _show(error, is_of_user=isinstance(job, OwnCodeJob))
    is_rank = os.getpid() == pid
    if is_rank and callable(signal.getsignal(signal.SIGTERM)):
        progress.values.handles_sigterm = True
    if report is not None and is_rank:
        _leave_report(report, context, error_file)
    torch: Any = sys.modules.get("torch")
    has_cuda = torch and torch.cuda.is_initialized()
    context.events.write(
        End(
            status={0: "done", EXIT_STOPPED: "stopped"}.get(code, "failed"),
            exit_code=code,
            step=progress.last_step,
            max_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            max_cuda_bytes=int(torch.cuda.max_memory_allocated()) if has_cuda else None,
            by="rank",
        )
    )
    if code == 0 and is_rank:
        progress.finish()
    context.events.close()
    return code


def set_main(**names: Any) -> types.ModuleType:
    """Give this process a new module `__main__` with these names.

    Without any it is like that of an interactive python: processes that are spawned have no main
    program to import. multiprocessing, if it has been imported, knows the module as it would know
    the main program that it was imported by.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, **names)
    # What a spawned process sends back is of classes of `__mp_main__`.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined] # where main was started
    return main


def _digest_of_code(job: JobSpec) -> str | None:
    """Return a digest of the user's files that are run, which may be edited while the job waits:
    the script and what it imports of its own; None where there are none."""
    with contextlib.suppress(Exception):  # what is wrong with them, the program itself will say
        paths = workloads.load_workload(job).own_files()
        texts = [files.read_bytes(path, most_bytes=_MOST_CODE_BYTES) for path in paths]
        digests = b"".join(hashlib.blake2b(text).digest() for text in texts)
        return hashlib.blake2b(digests, digest_size=8).hexdigest() if digests else None
    return None


def _leave_report(report: ErrorReport, context: RankContext, error_file: Path) -> None:
    hide = secrets_of(context.job).again  # programs put their arguments into their messages
    report = msgspec.structs.replace(
        report,
        exception=report.exception and report.exception[:MOST_MESSAGE_LETTERS],
        text=hide(clean(report.text, MOST_MESSAGE_LETTERS)),
        traceback=report.traceback and hide(clean(report.traceback, MOST_TRACEBACK_LETTERS)),
    )
    try:
        files.write_json(error_file, msgspec.to_builtins(report))
    except OSError as failure:
        told = msgspec.structs.replace(
            report,
            text=clean(report.text, _TOLD_LETTERS),
            traceback=report.traceback and clean(report.traceback, _TOLD_LETTERS),
            lack=report.lack or full_disk(failure, []),
        )
        context.progress.pipe.say(Unwritten(report=told))
        files.print_line(f"hpcdist: {error_file}: {failure.strerror}", sys.stderr)


def _ignore_sigterm() -> None:
    """Protect a rank that ends by itself from the SIGTERM that all get once one has failed."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif callable(signal.getsignal(signal.SIGTERM)):  # it may come from the scheduler and from us
        signal.signal(signal.SIGTERM, lambda *_: None)


def _on_exit(leaving: SystemExit, places: Sequence[Path] = ()) -> tuple[int, ErrorReport | None]:
    """Return the exit code that Python gives for this SystemExit, and a report on its text, which
    goes to stderr, too; the agent reports on a code alone."""
    if leaving.code is None or isinstance(leaving.code, int):
        return (leaving.code or 0) & 0xFF, None
    files.print_line(leaving.code, sys.stderr)
    lack, now_s = full_disk(leaving, places), time.time()
    text = str(leaving.code)
    return 1, ErrorReport(exception=None, text=text, traceback=None, time_s=now_s, lack=lack)


def _describe(error: BaseException, places: Sequence[Path], before: KernelKills) -> ErrorReport:
    """Return the report on an exception; its type is named with its module where it is neither a
    builtin nor the script's own. torch says of a DataLoader's worker only that it was killed."""
    kind, now_s = type(error), time.time()
    is_known = kind.__module__ in {"builtins", "__main__"}
    try:
        text = str(error)
        if isinstance(error, HpcdistError) and error.hint:
            text = f"{error.message}; {error.hint}"
    except Exception:  # noqa: BLE001 - __str__ is the user's code
        text = "(its message cannot be shown)"
    stack = "".join(traceback.format_exception(kind, error, _own_frames(error.__traceback__)))
    killer = before.tell_more(kernel_kills()) if _LOST_WORKER in stack else None
    worker = f"its DataLoader worker was killed by {killer}" if killer else None
    return ErrorReport(
        exception=kind.__qualname__ if is_known else f"{kind.__module__}.{kind.__qualname__}",
        text=text,
        traceback=stack,
        time_s=now_s,
        lack=worker or full_disk(error, places),
        out_of_memory=worker is not None,
    )


def secrets_of(job: JobSpec) -> Stars:
    """Return what stars out the secrets among a job's arguments and in the environment."""
    stars = Stars()
    stars.value(job_to_dict(job))
    stars.value(dict(os.environ))
    return stars


def clean(text: str, most_letters: int) -> str:
    """Return a text as valid UTF-8, as names of files may not be; a long one without its middle."""
    if len(text) > most_letters:
        half = most_letters // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} letters left out ...]\n{text[-half:]}"
    # Bytes of file names that are not UTF-8 are escaped.
    return text.encode(errors="backslashreplace").decode()


def _show(error: BaseException, *, is_of_user: bool) -> int:
    """Print an exception into the log, and return the exit code.

    The script's sys.excepthook prints the traceback. Errors that hpcdist's own workloads raise for
    the user are printed without one.
    """
    if isinstance(error, HpcdistError) and not is_of_user:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        files.print_line(f"error: {error.message}{hint}", sys.stderr)
        return 1
    trace = _own_frames(error.__traceback__)
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except SystemExit as leaving:  # a hook that ends the program says with which code
        return _on_exit(leaving)[0]
    except Exception:  # noqa: BLE001 - the hook is the user's code
        files.print_line(traceback.format_exc(), sys.stderr)
    return 1


def _own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without the frames of this package at its beginning."""
    here = os.path.dirname(__file__)
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename.startswith(here):
        trace = trace.tb_next
    return trace


def _reset_signals(job: JobSpec) -> None:
    """Reset signals to those of a fresh process, but for some that stay ignored, as they are in the
    forkserver.

    Trainers ignore a scheduler's signals: they learn from their agent that they are to stop. The
    user's own code ignores only SIGUSR2, which its agent sends, and which would end a script that
    does not handle it.
    """
    deaf_to = {signal.SIGUSR2} if isinstance(job, OwnCodeJob) else set(WARNING_SIGNALS)
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - deaf_to:
        if signal.getsignal(signum) not in {signal.SIG_DFL, None}:
            signal.signal(signum, signal.SIG_DFL)
    if signal.SIGINT not in deaf_to:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python sets them at its start
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def redirect_output(log_file: Path) -> None:
    """Have output go to the log as that of `python -u`, which is how torchrun starts its workers:
    what was printed last is there whatever ends the process."""
    log, nothing = files.open_to_append(log_file), os.open(os.devnull, os.O_RDONLY)
    for target, descriptor in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(target, descriptor)
    os.close(log)
    os.close(nothing)
    python: Any = sys  # for whom __stdin__ and its like are final
    stdin: Any = open(0, closefd=False)  # noqa: SIM115
    stdin.buffer.raw.name = "<stdin>"
    python.stdin = python.__stdin__ = stdin
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file: Any = io.FileIO(descriptor, "w", closefd=False)
        file.name = f"<{name}>"
        stream: Any = io.TextIOWrapper(
            file, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True
        )
        stream.mode = "w"
        setattr(python, name, stream)
        setattr(python, f"__{name}__", stream)
