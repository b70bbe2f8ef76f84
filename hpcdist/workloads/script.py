"""The user's own script, run in every rank as `python script.py args` would run it.

A folder or a zip file with a `__main__.py` is one, too: `python folder args`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

from hpcdist.job.imports import heavy_imports, notes_on_imports
from hpcdist.job.preload import Preload
from hpcdist.job.source import find_main, unpacked
from hpcdist.job.spec import JobSpec, ScriptJob
from hpcdist.rank.context import RankContext
from hpcdist.workloads.main_module import put_first, run_as_main, run_module


def check(job: JobSpec) -> None:
    """Nothing: the script was read and compiled when the job was loaded."""


def prepare(job: JobSpec) -> None:
    """Nothing: what a script needs is the script's own business."""


def notes(job: JobSpec) -> list[str]:
    """What keeps a heavy module from being imported once per node."""
    with _source(job) as path:
        return notes_on_imports(path)


def preload(job: JobSpec) -> Preload:
    """Heavy modules that the script imports, found without running it."""
    with _source(job) as path:
        return heavy_imports(path)


@contextlib.contextmanager
def _source(job: JobSpec) -> Iterator[Path]:
    """The file that is run: of a folder or a zip file, its main program."""
    path = _script(job)
    main = find_main(str(path))
    if main is None:
        yield path
        return
    assert main.origin is not None
    with unpacked(Path(main.origin)) as (source, _):
        yield source


def run(context: RankContext) -> None:
    """Run the script as `__main__`, with sys.argv and sys.path as python would give them."""
    job = context.job
    assert isinstance(job, ScriptJob)
    path = _script(job)
    sys.argv = [str(path), *job.args]
    main = find_main(str(path))
    if main is not None:
        put_first(str(path))
        run_module(main)
        return
    if not getattr(sys.flags, "safe_path", False):  # python -P, PYTHONSAFEPATH
        put_first(os.path.dirname(os.path.realpath(path)))
    run_as_main(
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True),
        __file__=str(path),
        __loader__=SourceFileLoader("__main__", str(path)),
        __cached__=None,
    )


def _script(job: JobSpec) -> Path:
    assert isinstance(job, ScriptJob)
    return Path(job.script)
