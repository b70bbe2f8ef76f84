"""The needs of hpcdist in a Python that it was not installed for, such as a container image's.

This module needs nothing itself, since it says what is missing.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys

OLDEST = (3, 10)
"""The oldest Python that hpcdist runs on."""
CARRIED = ("cloudpickle", "msgspec", "nvidia-ml-py", "psutil", "submitit", "typing_extensions")
"""Distributions that agents and recording ranks import, besides torch; they are carried along."""
_MODULES = {"nvidia-ml-py": "pynvml"}
_FROM_IMAGE = "torch"


def compiled_tags() -> list[str]:
    """Return the kinds of compiled modules that this Python loads, as their files are called:
    `cpython-311-x86_64-linux-gnu`, and `abi3-x86_64-linux-gnu` for those of any CPython."""
    own = importlib.machinery.EXTENSION_SUFFIXES[0].split(".")[1]
    _, _, platform = own.split("-", 2)
    return [own, f"abi3-{platform}"]


def missing() -> list[str]:
    """Return the distributions that cannot be imported here, torch included; torch itself, which
    takes seconds, is only looked for."""
    found = [name for name in CARRIED if not _imports(_MODULES.get(name, name))]
    return found if importlib.util.find_spec(_FROM_IMAGE) else [*found, _FROM_IMAGE]


def check(place: str) -> None:
    """End the program where something is missing, with what is to be done."""
    if names := missing():
        sys.exit(what_to_do(names, place))


def what_to_do(names: list[str], place: str) -> str:
    """Return the sentence on what a `place` such as an image lacks, and how it gets there."""
    return f"{place} has no {' and no '.join(names)}: python -m pip install {' '.join(names)}"


def _imports(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:  # also of a library that is older than what it was compiled for
        return False
    return True
