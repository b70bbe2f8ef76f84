"""The end of a rank's process: what must not end it, and how it ends itself.

Some sites send the warning before the time limit, or before a preemption, to every process of a
job. The agent is among them, and it alone decides what follows: a rank that can stop at a step
boundary, and the workers that feed it, must live until then.

A rank ends as the interpreter ends, but for what was there before the fork.

Python's own end would also take apart every module that the forkserver imported, and the C
library's `exit` every static object of torch: 0.4 s of CPU time and 170 MB of copied pages for each
rank, to free what the kernel frees anyway. So a rank does itself what the interpreter does for a
program: it joins threads, runs exit handlers, destroys the program's modules and with them its
objects, closes files that are still open, and writes all buffers. Process groups are left alone:
their destructors wait for ranks that may be gone.

Whatever of this hangs is ended by the forkserver, which is told beforehand how long it may take.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import re
import signal
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Mapping
from typing import NoReturn

from hpcdist.base.errors import EXIT_STOPPED

WARNING_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
"""Signals that schedulers send before they end a job; LSF begins with SIGINT."""

RANK_VARIABLE = "HPCDIST_RANK_PID"
"""Tells the children of a rank, whatever they execute, that they belong to one."""

TEARDOWN_LIMIT_S = 30.0
"""Limit for destroying a program's objects, once its threads and exit handlers are done."""
STOPPED_LIMIT_S = 60.0
"""Limit for the whole end of a rank that stops: the scheduler ends the job soon after."""
FAILED_LIMIT_S = 5.0
"""Limit for the whole end of a rank that failed: its threads may wait for ranks that wait for
it."""
_CLOSING_LIMIT_S = 2.0
"""Limit for closing the files of a failed rank whose threads have used up its time."""
_EXIT_UNFLUSHED = 120
"""Python's own exit code where stdout or stderr cannot be flushed."""

_STANDARD_STREAMS = (0, 1, 2)


def shield_worker(_worker: int = 0) -> None:
    """Ignore a scheduler's signals in a DataLoader worker, as its `worker_init_fn`; where the
    script was not started by hpcdist, nothing changes.

    torch gives its workers a handler by which anybody's SIGTERM but the rank's ends them, and their
    rank with them. The rank's own SIGTERM does not end them either: `leave` kills them.
    """
    if RANK_VARIABLE in os.environ:
        for signum in WARNING_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)


def leave(
    code: int,
    *,
    kept: Mapping[str, types.ModuleType],
    tell: Callable[[float], None],
) -> NoReturn:
    """End this process with `code`, as the interpreter would end it.

    `kept` are the modules of the time before the fork, by name. `tell` is given the seconds after
    which the end may be taken for hung; what comes before it is called may take as long as it
    likes.
    """
    if code == EXIT_STOPPED:
        tell(STOPPED_LIMIT_S)
    elif code:
        tell(FAILED_LIMIT_S + _CLOSING_LIMIT_S)
        # Where the rest hangs, end without it, but with what the program has written.
        deadline = threading.Timer(FAILED_LIMIT_S, _close_and_exit, [code])
        deadline.daemon = True
        with contextlib.suppress(RuntimeError):  # no memory for a thread: then without
            deadline.start()
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        # After pools have ended their own children; multiprocessing would send the daemonic ones
        # that are left SIGTERM, and wait for them.
        util.Finalize(None, _kill_workers, exitpriority=0)
    try:
        threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - waits for the threads
        atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing's forks would need it too
    except BaseException:  # noqa: BLE001 - the interpreter prints these and goes on
        traceback.print_exc()
    if not code:
        tell(TEARDOWN_LIMIT_S)
    if not _flush_streams():
        code = _EXIT_UNFLUSHED
    # Held until they are closed in order: the collector may close an inner one first, and then
    # what a destructor writes into the outer one is lost.
    _held = _files()
    try:
        _destroy_program(kept)
    finally:
        _close_and_exit(code)


def _kill_workers() -> None:
    import multiprocessing

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would take it for a failure
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


def _destroy_program(kept: Mapping[str, types.ModuleType]) -> None:
    """Destroy the program's modules and objects in the order of the interpreter (finalize_modules
    in CPython's pylifecycle.c): what nobody refers to first, then module by module."""
    threading.excepthook = lambda _: None  # daemon threads lose their globals under their feet
    for name in ("last_type", "last_value", "last_traceback", "last_exc", "ps1", "ps2"):
        with contextlib.suppress(AttributeError):
            delattr(sys, name)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    modules = _forget_modules(kept)
    gc.collect()
    for module in modules:
        if (alive := module()) is not None:
            # As the interpreter does: private names first.
            names = [name for name in alive.__dict__ if name != "__builtins__"]
            for name in sorted(names, key=lambda name: not re.match("_(?!_)", name)):
                alive.__dict__[name] = None
    gc.collect()


def _forget_modules(kept: Mapping[str, types.ModuleType]) -> list[weakref.ref[types.ModuleType]]:
    """Take the program's modules out of sys.modules; returns those to clear if they live on.

    Python's own modules stay whole: files that are closed later may need them.
    """
    forgotten = []
    for name, module in list(sys.modules.items()):
        if kept.get(name) is module or name.partition(".")[0] in sys.stdlib_module_names:
            continue
        sys.modules[name] = None  # type: ignore[assignment] # a destructor can import nothing
        if isinstance(module, types.ModuleType):
            forgotten.append(weakref.ref(module))
    return forgotten


def _close_and_exit(code: int) -> NoReturn:
    """Exit with the files closed that something still refers to (a library's registry, a thread's
    frame), and with the buffers of C libraries written, which `os._exit` leaves."""
    try:
        for file in sorted(_files(), key=_depth):
            with contextlib.suppress(Exception):
                descriptor = None
                with contextlib.suppress(OSError, ValueError):  # it is closed, or in memory
                    descriptor = file.fileno()
                if descriptor in _STANDARD_STREAMS:
                    file.flush()
                else:
                    file.close()
    finally:
        with contextlib.suppress(Exception):
            ctypes.CDLL(None).fflush(None)
        os._exit(code)


def _files() -> list[io.IOBase]:
    return [value for value in gc.get_objects() if issubclass(type(value), io.IOBase)]


def _depth(file: io.IOBase) -> int:
    """Return the place of a file among those to close: outer ones write into inner ones."""
    kind = type(file)
    if issubclass(kind, io.TextIOBase):
        return 0
    if issubclass(kind, io.BufferedWriter | io.BufferedRandom | io.BufferedRWPair):
        return 2
    return 3 if issubclass(kind, io.RawIOBase) else 1  # 1: gzip.GzipFile and its like


def _flush_streams() -> bool:
    """Flush what the program has put in the place of stdout and stderr; False where that fails."""
    is_well = True
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception as error:  # noqa: BLE001 - it may be an object of the program's own
            is_well = False
            if name == "stdout":
                words = "".join(traceback.format_exception_only(error))
                print(f"Exception ignored in: {stream!r}\n{words}", end="", file=sys.stderr)
    return is_well
