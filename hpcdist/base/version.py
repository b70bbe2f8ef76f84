"""Version of hpcdist."""

from __future__ import annotations

import sys

__version__ = "0.1.0"

_PACKAGES = ("torch", "torchvision", "pytorch-lightning", "numpy", "submitit")


def versions() -> dict[str, str | None]:
    """Versions of Python, hpcdist and the packages that results depend on; imports none of them."""
    from importlib import metadata

    found: dict[str, str | None] = {"python": sys.version.split()[0], "hpcdist": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found
