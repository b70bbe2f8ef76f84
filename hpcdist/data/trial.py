"""Trying out what a user names, where a job is submitted, in a process beside the command.

It imports what takes seconds and much memory, such as torch and torchvision, and what the user
wrote.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

from hpcdist.base.errors import JobError
from hpcdist.machine.command import python_command

_LIMIT_S = 120.0
"""A trial that takes longer is given up: the ranks will say what is wrong."""
_passed: set[str] = set()
"""Trials that found nothing wrong: the points of a sweep often share theirs."""


def try_apart(function: str, argument: Any) -> None:
    """Call `module:function` as `call_apart` does, once; raises the JobError that it raises. Other
    errors are left to the ranks: this machine may lack what nodes have."""
    asked = json.dumps([os.getcwd(), function, argument])
    if asked not in _passed:
        with suppress(subprocess.SubprocessError):
            call_apart(function, argument, limit_s=_LIMIT_S)
        _passed.add(asked)


def call_apart(function: str, argument: Any, *, limit_s: float) -> Any:
    """Return what `module:function` makes of a value of JSON in another process; raises the
    JobError that it raises, and SubprocessError, with its last line, where it ends otherwise."""
    done = subprocess.run(
        python_command("from hpcdist.data.trial import answer; answer()"),
        input=json.dumps([function, argument]),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if not done.stdout:
        raise subprocess.SubprocessError((done.stderr.splitlines() or ["it said nothing"])[-1])
    value, message, hint = json.loads(done.stdout)
    if message is not None:
        raise JobError(message, hint=hint)
    return value


def answer() -> None:
    """Print what the function that is asked for returns, or what is wrong by it; it may print."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, argument = json.load(sys.stdin)
    module, _, function = name.partition(":")
    try:
        found = [getattr(importlib.import_module(module), function)(argument), None, None]
    except JobError as error:
        found = [None, error.message, error.hint]
    print(json.dumps(found), file=answers, flush=True)
