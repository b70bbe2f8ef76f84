"""Version of hpcdist."""

from __future__ import annotations

import sys
from pathlib import Path

__version__ = "0.1.0"

_MOST_LOCK_BYTES = 50_000_000
_DIGITS = 16
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


def locked(folder: Path) -> dict[str, str | None]:
    """Return the digest of the uv.lock that holds for a folder, its own or the nearest above it;
    nothing without one."""
    import hashlib

    from hpcdist.base import files

    for place in (folder, *folder.parents):
        try:
            content = files.read_bytes(place / "uv.lock", most_bytes=_MOST_LOCK_BYTES)
        except (OSError, ValueError):
            continue
        return {"uv.lock": hashlib.sha256(content).hexdigest()[:_DIGITS]}
    return {}
