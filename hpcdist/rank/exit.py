"""The end of a rank: as the interpreter ends a program, but libraries are not taken apart; and the
disk that had no room for it, by the few signs that are sure."""

import atexit
import contextlib
import ctypes
import errno
import gc
import os
import signal
import sys
import threading
import weakref
from _io import _IOBase
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from hpcdist.base import files
from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.rank.board import ProgressSlot

LATE = signal.SIGALRM
"""Ends a rank that hangs at its end."""
TEARDOWN_LIMIT_S = 30.0  # for destroying objects, once threads and exit handlers are done
_FAILED_LIMIT_S = 5.0  # for the whole end: threads may wait for ranks that wait for this one
_LIBRARIES = ("/site-packages/", "/dist-packages/", os.path.dirname(os.__file__))
_ROOM_OF_A_LINE = 1 << 16
"""Free bytes of a disk that takes another line of a log for certain."""
_NEEDED_BY_DESTRUCTORS = (type, FunctionType, ModuleType, str, int, float)


def leave(code: int, slot: ProgressSlot, pid: int, *, kept: Mapping[str, ModuleType]) -> NoReturn:
    """End this process, the rank or its program's fork; `kept` are modules from before the fork."""
    is_rank = os.getpid() == pid
    if code:
        limit_s = 2 * TEARDOWN_LIMIT_S if code == EXIT_STOPPED else _FAILED_LIMIT_S
        if is_rank:
            _be_gone_within(limit_s, code, slot)
        _flush(_files())
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        # After pools have ended their own; multiprocessing would wait for shielded workers.
        util.Finalize(
            None,
            lambda: [each.kill() for each in util.process.active_children() if each.daemon],
            exitpriority=0,
        )
    with contextlib.suppress(BaseException):  # after Ctrl-C exit handlers follow all the same
        threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - waits for the threads
    atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing's forks would need it too
    if not code and is_rank:
        _be_gone_within(TEARDOWN_LIMIT_S, code, slot)
    for stream in (getattr(sys, name, None) for name in ("stdout", "stderr")):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception as error:  # noqa: BLE001 - it may be an object of the program's own
            code = 120  # as the interpreter's
            words = f"{type(error).__name__}: {error}"
            print(f"Exception ignored in: {stream!r}\n{words}", file=sys.__stderr__)
    _flush(own := _files())  # a crash from here on loses nothing
    with contextlib.suppress(BaseException):
        _destroy_program(kept)
    _flush(own)
    os._exit(code)


def _be_gone_within(limit_s: float, code: int, slot: ProgressSlot) -> None:
    """Tell that the workload is over, and have the kernel end this process after the limit."""
    slot.values.leaves = code + 1
    signal.signal(LATE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [LATE])
    signal.setitimer(signal.ITIMER_REAL, limit_s)


def _files() -> list[Any]:
    """Return weak references to open files. Unlike C's class, an abstract one runs others' code."""
    return [weakref.ref(each) for each in gc.get_objects() if issubclass(type(each), _IOBase)]


def _flush(weak: list[Any]) -> None:
    for file in weak:
        with contextlib.suppress(Exception):  # it is gone, or closed
            file().flush()
    ctypes.CDLL(None).fflush(None)


def _destroy_program(kept: Mapping[str, ModuleType]) -> None:
    """Destroy the program's own modules; destructors find libraries and process groups whole."""
    threading.excepthook = lambda _: None  # daemon threads may lose what they work with
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    # What was never collected would be destroyed in the order of its making: files before users.
    gc.collect(0)
    own = []
    for name, module in list(sys.modules.items()):
        file = type(module) is ModuleType and module.__dict__.get("__file__")
        if file and kept.get(name) is not module and not any(map(str(file).count, _LIBRARIES)):
            own.append(weakref.ref(module.__dict__.setdefault("__itself__", module)))
            sys.modules[name] = None  # type: ignore[assignment] # not to be imported again
    del module
    gc.collect()
    # Whatever refers to a module's functions (a handler, a thread) must not keep its objects.
    for names in [alive.__dict__ for module in own if (alive := module()) is not None]:
        for name in sorted(names, key=lambda name: not hasattr(type(names[name]), "__del__")):
            if name[:2] != "__" and not issubclass(type(names[name]), _NEEDED_BY_DESTRUCTORS):
                names[name] = None


def places_of_writing(run_folder: Path) -> list[Path]:
    """Return the folders that any rank may write to, whatever its program is."""
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108
    return [run_folder, Path(), temporary, Path("/dev/shm")]  # noqa: S108


def full_disk(error: BaseException | None, places: Sequence[Path]) -> str | None:
    """Return a sentence on the disk that had no room: that of the file which an exception names, or
    the first of these places that is full; None where nothing says so."""
    found = files.find_full(error)
    what = "the disk is full"
    if found is not None and found.errno == errno.EDQUOT:
        what = "your quota is used up"
    if found is not None and isinstance(found.filename, str | bytes):
        return f"{what}: {os.fsdecode(found.filename)}"
    for place in places:
        with contextlib.suppress(OSError):  # the disk is gone
            disk = os.statvfs(place)
            no_bytes = disk.f_blocks and disk.f_bavail * disk.f_frsize < _ROOM_OF_A_LINE
            no_files = disk.f_files and not disk.f_favail
            if (no_bytes or no_files) and os.access(place, os.W_OK):
                return f"{what}: {os.path.realpath(place)}"
    return None if found is None else what
