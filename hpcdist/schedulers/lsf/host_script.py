"""What is run on a host of a job, as a script that has the directory and the environment in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from hpcdist.base.secrets import looks_secret
from hpcdist.schedulers.lsf.own_job import TASK_VARIABLE

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_ONE_HOST = re.compile(
    r"CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|HOSTNAME|HOST|TMPDIR|PWD|OLDPWD|SHLVL|_|DISPLAY"
    r"|SSH_\w+|XDG_\w+|JSM_\w+|PMIX_\w+|LS_\w+"
)
"""Variables that mean the first host, or its shell, alone."""
_OF_FIRST_TASK = re.compile(
    r"LSB_(?!(?:JOBID|JOBINDEX|JOBNAME|QUEUE|MCPU_HOSTS|HOSTS|SUB_HOST|DJOB_\w+)$)\w+"
)
"""Variables that mean what LSF has started there."""


def host_script(
    environment: Mapping[str, str],
    cwd: str,
    command: Sequence[str],
    *,
    logs: str,
    task: str,
    errors: str = "",
) -> str:
    """What the launcher starts: a script that makes the directory and the environment its own.

    A launcher may bring neither along, and may go through a login shell of whatever kind: so it is
    given a path and a number, and nothing that needs quoting. `task` is what the number is in the
    script, `errors` the end of the name of the file for standard error, where it has one of its
    own. Variables that look secret are left out: a launcher that brings the environment along
    brings them.
    """
    exported = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(environment.items())
        if _NAME.fullmatch(name)
        and not means_first_host(name)
        and not _OF_FIRST_TASK.fullmatch(name)
        and not looks_secret(name, value)
    ]
    log = shlex.quote(logs) + f'"_${{{TASK_VARIABLE}}}_log'
    lines = [
        f"cd {shlex.quote(cwd)} || exit 1",
        *exported,
        f'export {TASK_VARIABLE}="{task}"',
        f'exec >> {log}.out" ' + (f'2>> {log}{errors}"' if errors else "2>&1"),
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def means_first_host(name: str) -> bool:
    """Whether a variable of the job's first host, such as TMPDIR, would be wrong on any other."""
    return bool(_OF_ONE_HOST.fullmatch(name))
