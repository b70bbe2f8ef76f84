"""The site's configuration, as `scontrol show config` prints it."""

from __future__ import annotations

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import run_command

_TIMEOUT_S = 10.0


def ask_config() -> str:
    """The lines `Name = value`; empty where scontrol does not answer."""
    try:
        return run_command(["scontrol", "show", "config"], timeout_s=_TIMEOUT_S).stdout
    except SchedulerError:
        return ""
