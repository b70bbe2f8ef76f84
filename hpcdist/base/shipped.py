"""Where the data that ship with hpcdist lie: job files and templates."""

from __future__ import annotations

from pathlib import Path


def shipped_folder(name: str) -> Path:
    """Folder `name`: inside the package in a wheel, beside it in a checkout.

    importlib.resources finds neither in editable installs, nor where the working directory is the
    checkout, and submitit starts its workers so.
    """
    package = Path(__file__).parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
