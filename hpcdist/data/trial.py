"""Trying out what a user names, where a job is submitted, in a process beside the command.

It imports what takes seconds and much memory, such as torch and torchvision, and what the user
wrote. All trials of a command have one process.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hpcdist.base.errors import JobError
from hpcdist.machine.command import python_command

_LIMIT_S = 120.0
"""A trial that takes longer is given up: the ranks will say what is wrong."""
_SERVE = "from hpcdist.data.trial import serve; serve()"
_process: subprocess.Popen[str] | None = None


def try_apart(function: str, argument: Any, *, modules: Sequence[str] = ()) -> None:
    """Call `module:function` with a value of JSON in the other process, which imports `modules`
    once; raises the JobError that it raises. Other errors are left to the ranks: this machine may
    lack what nodes have."""
    global _process  # noqa: PLW0603 - one serves all
    if _process is None or _process.poll() is not None:
        pipe = subprocess.PIPE
        _process = subprocess.Popen(
            python_command(_SERVE),
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
    assert _process.stdin is not None
    assert _process.stdout is not None
    try:
        asked = [os.getcwd(), function, argument, [function.partition(":")[0], *modules]]
        _process.stdin.write(json.dumps(asked) + "\n")
        _process.stdin.flush()
        is_ready, _, _ = select.select([_process.stdout], [], [], _LIMIT_S)
        answer = _process.stdout.readline() if is_ready else ""
    except BrokenPipeError:
        answer = ""
    if not answer:
        os.killpg(_process.pid, signal.SIGKILL)
        _process.wait()
    elif (wrong := json.loads(answer)) is not None:
        message, hint = wrong
        raise JobError(message, hint=hint)


def serve() -> None:
    """Answer calls until the command ends: what is wrong, or null. What is tried may print. Each
    call has a fork, so that what it imports is imported anew, as the user may change it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        folder, name, argument, modules = json.loads(line)
        for module in modules:
            with suppress(Exception):
                importlib.import_module(module)
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            if status:
                print("null", file=answers, flush=True)
            continue
        with suppress(BaseException):  # see try_apart
            os.chdir(folder)
            module, _, function = name.partition(":")
            wrong = None
            try:
                getattr(sys.modules[module], function)(argument)
            except JobError as error:
                wrong = [error.message, error.hint]
            print(json.dumps(wrong), file=answers, flush=True)
            os._exit(0)
        os._exit(1)
