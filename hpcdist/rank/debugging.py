"""A debugger in a living rank: debugpy, which listens where VS Code connects to.

A thread of the rank starts it, and has the interpreter call a function in the main thread as soon
as that runs Python: there the rank waits for the debugger. While it waits, and while one is
connected, the rank says so, since its silence then means nothing.
"""

from __future__ import annotations

import _thread
import ctypes
import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

_LOOPBACK = "127.0.0.1"
_POLL_S = 0.1
_set_trace = sys.settrace
"""As it is before debugpy comes, whose own prints a warning."""


class Debugger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank's word on its debugger."""

    port: int | None = None
    """Of 127.0.0.1 on its node."""
    error: str | None = None
    """Why there is none."""


_listening: Debugger | None = None
_pending: list[Any] = []
"""Functions that the interpreter has still to call."""
_starting = _thread.allocate_lock()
_until_s = 0.0
"""When the rank waits no longer, by the monotonic clock."""


def listen(wait_s: float, note: Callable[[bool], None]) -> Debugger:
    """Start the debugger, and have the rank wait for it so long; `note` is told whether the rank
    waits or is held."""
    global _listening, _until_s  # noqa: PLW0603 - debugpy is one per process
    _until_s = time.monotonic() + wait_s
    note(True)
    with _starting:
        if _listening is None or _listening.port is None:
            _listening = _start()
    if _listening.port is None:
        note(False)
    else:
        _thread.start_new_thread(_watch, (note,))
        _call_in_main_thread(_wait)
    return _listening


def _start() -> Debugger:
    # It prints a warning on modules that no user debugs.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    try:
        return Debugger(port=_debugpy().listen((_LOOPBACK, 0))[1])
    except ImportError:
        return Debugger(
            error="debugpy is not installed for the job's Python: "
            f"{sys.executable} -m pip install 'hpcdist[debugpy]'"
        )
    except Exception as error:  # noqa: BLE001 - its own reasons
        return Debugger(error=f"debugpy cannot listen: {error}")


def _watch(note: Callable[[bool], None]) -> None:
    while _is_held():
        time.sleep(_POLL_S)
    note(False)


def _is_held() -> bool:
    return _is_connected() or time.monotonic() < _until_s


def _is_connected() -> bool:
    return bool(_debugpy().is_client_connected())


def _debugpy() -> Any:
    """It is an optional package."""
    return importlib.import_module("debugpy")


def _call_in_main_thread(function: Callable[[], None]) -> None:
    def call(_: object) -> int:
        _pending.remove(called)
        function()
        return 0

    called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
    _pending.append(called)
    ctypes.pythonapi.Py_AddPendingCall(called, None)


def _wait() -> None:
    """Wait for the debugger, and stop where it comes: it sees the program's frames below."""
    global _until_s  # noqa: PLW0603 - as above
    # debugpy's trace function waits, without a limit, for a debugger that says that it is ready.
    _set_trace(None)
    while _is_held() and not _is_connected():
        time.sleep(_POLL_S)
    _until_s = 0.0
    if _is_connected():
        _debugpy().breakpoint()
