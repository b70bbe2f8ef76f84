"""What a machine must have for a cluster to boot."""

import os
import shutil
from pathlib import Path

ADMINISTRATORS = "/usr/sbin:/sbin"  # where daemons lie, which not every user's PATH names
_PROGRAMS = (
    *("slurmctld", "slurmd", "slurmdbd", "sbatch", "srun", "squeue", "sacct", "sacctmgr"),
    *("scontrol", "sinfo", "scancel", "munged", "mariadbd", "mariadb-install-db", "mariadb"),
    *("setpriv", "unshare", "nsenter", "ip"),
)


def missing_programs():
    """What this machine lacks to boot a cluster, in one sentence, or None."""
    path = f"{os.environ.get('PATH', os.defpath)}:{ADMINISTRATORS}"
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=path)]
    if missing:
        return f"a real Slurm takes {', '.join(missing)}; `make test` says how to install them"
    if not Path("/dev/tty1").is_char_device():
        return "a real Slurm takes /dev/tty0 and /dev/tty1, which stand for GPUs"
    return None
