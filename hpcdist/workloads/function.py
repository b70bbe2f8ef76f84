"""A function that was submitted from Python, called in every rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcdist.job.function import load_call
from hpcdist.job.imports import heavy_imports, notes_on_imports
from hpcdist.job.preload import Preload
from hpcdist.job.spec import FunctionJob, JobSpec
from hpcdist.rank import own_loop
from hpcdist.rank.context import RankContext
from hpcdist.runs.function_outcome import Kind, write_outcome


def check(job: JobSpec) -> None:
    """Nothing: the call was pickled before its job was made."""


def prepare(job: JobSpec) -> None:
    """Nothing: what a function needs is its own business."""


def notes(job: JobSpec) -> list[str]:
    """What keeps a heavy module from being imported once per node."""
    assert isinstance(job, FunctionJob)
    if job.source is None:
        return []
    return notes_on_imports(Path(job.source), function=job.function)


def preload(job: JobSpec) -> Preload:
    """The heavy modules that the function imports, or those that were found where it was
    submitted, where its file says nothing of any."""
    assert isinstance(job, FunctionJob)
    found = Preload()
    if job.source is not None:
        with suppress(OSError, SyntaxError, ValueError):  # such as a notebook's, that is gone
            found = heavy_imports(Path(job.source), function=job.function)
    return found if found.steps or found.left_out else Preload(steps=[*job.modules])


def run(context: RankContext) -> None:
    """Call the function, and keep what it returns or raises."""
    job = context.job
    assert isinstance(job, FunctionJob)
    _extend_path(job.python_path)
    sys.argv = [job.source or job.function]  # those of this process are nobody's business
    try:
        function, args, kwargs = load_call(context.run.function_file)
        value = function(*args, **kwargs)
    except SystemExit as leaving:
        if leaving.code in {None, 0}:
            _keep(context, "returned", None)
        raise
    except Exception as error:
        with suppress(OSError, MemoryError):  # it has a verdict and a traceback all the same
            _keep(context, "raised", error)
        raise
    else:
        _keep(context, "returned", value)
    finally:
        own_loop.finish()


def _extend_path(folders: Sequence[str]) -> None:
    """Import as the submitting process did; what is there already keeps its place."""
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


def _keep(context: RankContext, kind: Kind, value: object) -> None:
    write_outcome(context.run, context.rank, context.attempt, kind, value)
