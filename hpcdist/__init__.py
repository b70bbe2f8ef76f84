"""hpcdist: PyTorch jobs from a laptop to Slurm, LSF or PBS with one command.

Importing hpcdist imports no torch, and next to nothing else: what is heavy is imported where it is
used.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from hpcdist.base.version import __version__

if TYPE_CHECKING:
    from hpcdist.api import RunFailedError, SubmittedRun, load, submit, sweep

_CARRIED = os.path.join(os.path.dirname(__file__), "carried")
if os.path.isdir(_CARRIED):  # a copy for another Python: hpcdist.base.carried
    sys.path.append(_CARRIED)  # behind all else: what this Python has of its own is in use

__all__ = ["RunFailedError", "SubmittedRun", "__version__", "load", "submit", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hpcdist import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
