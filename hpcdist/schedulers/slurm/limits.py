"""What the site allows, as `scontrol show config` tells."""

from __future__ import annotations

import re

from hpcdist.schedulers.slurm.config import ask_config

DEFAULT_MAX_ARRAY_SIZE = 1001
"""slurm.schedmd.com/slurm.conf.html, MaxArraySize."""

_MAX_ARRAY_SIZE = re.compile(r"^MaxArraySize\s*=\s*(\d+)\s*$", re.MULTILINE)


def ask_max_array_size() -> int:
    """MaxArraySize; Slurm's default where scontrol does not answer: then sbatch will tell."""
    return parse_max_array_size(ask_config())


def parse_max_array_size(text: str) -> int:
    """The number of indices that an array may have: the highest index is one less."""
    found = _MAX_ARRAY_SIZE.search(text)
    return DEFAULT_MAX_ARRAY_SIZE if found is None else int(found[1])
