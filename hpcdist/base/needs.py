"""The needs of hpcdist in a Python that it was not installed for, such as a container image's.

This module needs nothing itself, since it says what is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

OLDEST = (3, 10)
"""The oldest Python that hpcdist runs on."""
CARRIED = ("cloudpickle", "msgspec", "nvidia-ml-py", "psutil", "submitit", "typing_extensions")
"""Distributions that agents and recording ranks import, besides torch; they are carried along."""
_MODULES = {"nvidia-ml-py": "pynvml"}
_FROM_IMAGE = "torch"


def check(place: str) -> None:
    """End the program where a `place` such as an image lacks a distribution, with what to do.

    torch itself, which takes seconds to import, is only looked for.
    """
    missing = [] if importlib.util.find_spec(_FROM_IMAGE) else [_FROM_IMAGE]
    for name in reversed(CARRIED):
        try:
            importlib.import_module(_MODULES.get(name, name))
        except ImportError:  # also where it was compiled for another Python
            missing.insert(0, name)
    if missing:
        what_to_do = f"python -m pip install {' '.join(missing)}"
        sys.exit(f"{place} has no {' and no '.join(missing)}: {what_to_do}")
