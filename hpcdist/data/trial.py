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
    """Call `module:function` with a value of JSON in another process; raises the JobError that it
    raises. Other errors are left to the ranks: this machine may lack what nodes have."""
    asked = json.dumps([os.getcwd(), function, argument])
    if asked in _passed:
        return
    command = python_command("from hpcdist.data.trial import answer; answer()")
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command, input=asked, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        if done.stdout:
            message, hint = json.loads(done.stdout)
            raise JobError(message, hint=hint)
    _passed.add(asked)


def answer() -> None:
    """Print what is wrong by the function that is asked for, if anything; it may print, too."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _, name, argument = json.load(sys.stdin)
    module, _, function = name.partition(":")
    try:
        getattr(importlib.import_module(module), function)(argument)
    except JobError as error:
        print(json.dumps([error.message, error.hint]), file=answers, flush=True)
