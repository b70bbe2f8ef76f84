"""The door by which submitit finds LSF: the entry points of the group `submitit` in setup.cfg.

submitit takes what is registered for there: whatever is installed is in the list of its clusters,
its parameters are among the known ones, and its modules are imported by every program. So where
there is no LSF, one of submitit's own classes is registered once more, which changes nothing.
"""

from __future__ import annotations

import os
import shutil
from typing import Any


def __getattr__(name: str) -> Any:
    """`executor` and `job_environment`; found out when submitit asks, which it does once."""
    if name not in {"executor", "job_environment"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Jobs can be submitted to LSF from here, or this is a task of one.
    if "LSB_JOBID" in os.environ or shutil.which("bsub") is not None:
        from hpcdist.schedulers.lsf.plugin import LsfExecutor, LsfJobEnvironment

        return LsfExecutor if name == "executor" else LsfJobEnvironment
    from submitit.local.local import LocalExecutor, LocalJobEnvironment

    return LocalExecutor if name == "executor" else LocalJobEnvironment
