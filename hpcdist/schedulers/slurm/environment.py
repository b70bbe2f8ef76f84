"""The environment that sbatch is called with."""

from __future__ import annotations

import re
from collections.abc import Mapping

_KEPT = frozenset(("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_JWT"))
_NEVER = frozenset(
    f"SBATCH_{name}"
    for name in (
        *("ARRAY_INX", "REQUEUE", "NO_REQUEUE", "WAIT", "JOB_NAME", "OUTPUT", "ERROR", "INPUT"),
        *("OPEN_MODE", "SIGNAL", "EXPORT", "GET_USER_ENV", "IGNORE_PBS", "WAIT_ALL_NODES"),
    )
)
"""They would make another job of it than the one that is tracked."""
_ALTERNATIVES = (
    frozenset(f"SBATCH_MEM_PER_{what}" for what in ("NODE", "CPU", "GPU")),
    frozenset(
        f"SBATCH_{name}"
        for name in ("GPUS", "GPUS_PER_NODE", "GPUS_PER_SOCKET", "GPUS_PER_TASK", "GRES")
    ),
)
"""Variables that contradict each other: where the script has one, none of the others counts."""
_DIRECTIVE = re.compile(r"^#SBATCH --([a-z-]+)", re.MULTILINE)
_VARIABLES = {
    "array": "SBATCH_ARRAY_INX",
    "job-name": "SBATCH_JOB_NAME",
    "mem": "SBATCH_MEM_PER_NODE",
    "time": "SBATCH_TIMELIMIT",
    "no-requeue": "SBATCH_NO_REQUEUE",
}
"""Options whose variable is not SBATCH_ with their name (slurm.schedmd.com/sbatch.html, INPUT
ENVIRONMENT VARIABLES)."""


def submission_environment(before: Mapping[str, str], script: str) -> dict[str, str]:
    """The caller's environment, without what would change the job unseen.

    Variables win over directives in sbatch, so those of the script's own directives are left out:
    what `hpcdist render` shows is what counts. Variables of a job that this shell is part of would
    be taken for the new job's.
    """
    named = {
        _VARIABLES.get(name, f"SBATCH_{name.upper().replace('-', '_')}")
        for name in _DIRECTIVE.findall(script)
    }
    left_out = _NEVER.union(named, *(group for group in _ALTERNATIVES if group & named))
    return {
        name: value
        for name, value in before.items()
        if name not in left_out and (name in _KEPT or not name.startswith("SLURM_"))
    }
