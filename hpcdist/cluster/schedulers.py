"""The table of schedulers.

A scheduler is a folder (or a file) with everything about it, and one line here. The table stands
this low because profiles and options name schedulers; `hpcdist.schedulers` loads them.
"""

from __future__ import annotations

SCHEDULERS = {
    "slurm": "hpcdist.schedulers.slurm.slurm",
    "lsf": "hpcdist.schedulers.lsf.lsf",
    "pbs": "hpcdist.schedulers.pbs.pbs",
    "azure": "hpcdist.schedulers.azure.azure",
    "local": "hpcdist.schedulers.local",
}
"""Scheduler -> module with an object `scheduler`, a `hpcdist.schedulers.base.Scheduler`.

`auto` takes the first that answers: sites that moved to Slurm keep wrappers of LSF's commands.
"""

LOCAL = "local"
"""The scheduler of --local: this machine."""


def scheduler_choices() -> list[str]:
    """Return what a profile, and the option --scheduler, may name."""
    return ["auto", *SCHEDULERS]
