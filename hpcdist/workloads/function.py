"""A function that was submitted from Python, called in every rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from hpcdist import record
from hpcdist.functions.call import load_call
from hpcdist.functions.outcome import Kind, write_outcome
from hpcdist.rank import RankContext
from hpcdist.spec import FunctionJob, JobSpec


def check(job: JobSpec) -> None:
    """Nothing: the call was pickled before its job was made."""


def prepare(job: JobSpec) -> None:
    """Nothing: what a function needs is its own business."""


def preload(job: JobSpec) -> list[str]:
    """The heavy modules that were found where the function was submitted."""
    assert isinstance(job, FunctionJob)
    return job.modules


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
        record.finish()


def _extend_path(folders: Sequence[str]) -> None:
    """Import as the submitting process did; what is there already keeps its place."""
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


def _keep(context: RankContext, kind: Kind, value: object) -> None:
    write_outcome(context.run, context.rank, context.attempt, kind, value)
