"""The user's own script, run in every rank as `python script.py args` would run it."""

from __future__ import annotations

import builtins
import os
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from hpcdist import record
from hpcdist.rank import RankContext
from hpcdist.spec import JobSpec, ScriptJob
from hpcdist.workloads.imports import heavy_imports, notes_on_imports
from hpcdist.workloads.preload import Preload


def check(job: JobSpec) -> None:
    """Nothing: the script was read and compiled when the job was loaded."""


def prepare(job: JobSpec) -> None:
    """Nothing: what a script needs is the script's own business."""


def notes(job: JobSpec) -> list[str]:
    """What keeps a heavy module from being imported once per node."""
    return notes_on_imports(_script(job))


def preload(job: JobSpec) -> Preload:
    """Heavy modules that the script imports, found without running it."""
    return heavy_imports(_script(job))


def run(context: RankContext) -> None:
    """Run the script as `__main__`, with sys.argv and sys.path as python would give them."""
    job = context.job
    assert isinstance(job, ScriptJob)
    path = _script(job)
    set_path(path)
    sys.argv = [str(path), *job.args]
    run_as_main(
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True),
        __file__=str(path),
        __loader__=SourceFileLoader("__main__", str(path)),
        __cached__=None,
    )


def run_as_main(code: types.CodeType, **names: Any) -> None:
    """Run the user's code as the module `__main__`, which has these names beside those of all."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, **names)
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)  # noqa: S102 - it is what the user asked for
    finally:
        record.finish()


def set_path(path: Path) -> None:
    """Put the script's folder where python puts it: first on sys.path, links resolved."""
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))


def _script(job: JobSpec) -> Path:
    assert isinstance(job, ScriptJob)
    return Path(job.script)
