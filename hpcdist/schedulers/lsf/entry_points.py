"""The door by which submitit finds LSF: the entry points of the group `submitit` in setup.cfg.

submitit takes what is registered for there: whatever is installed is in the list of its clusters,
its parameters are among the known ones, and its modules are imported by every program. So where
there is no LSF, one of submitit's own classes is registered once more, which changes nothing.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

_JOB_VARIABLE = "LSB_JOBID"


def __getattr__(name: str) -> Any:
    """`executor` and `job_environment`; found out when submitit asks, which it does once."""
    if name == "executor":
        return _executor()
    if name == "job_environment":
        return _job_environment()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _executor() -> type:
    if _is_lsf_here():
        from hpcdist.schedulers.lsf.plugin import LsfExecutor

        return LsfExecutor
    from submitit.local.local import LocalExecutor

    return LocalExecutor


def _job_environment() -> type:
    if _is_lsf_here():
        from hpcdist.schedulers.lsf.plugin import LsfJobEnvironment

        return LsfJobEnvironment
    from submitit.local.local import LocalJobEnvironment

    return LocalJobEnvironment


def _is_lsf_here() -> bool:
    """Return whether jobs can be submitted to LSF, or this is a task of one."""
    return _JOB_VARIABLE in os.environ or shutil.which("bsub") is not None
