"""The cgroups that bound this process, of version 1 and 2, as folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")


class Group(NamedTuple):
    """One that may bound this process."""

    folder: Path
    is_v2: bool


def bounding_groups(controller: str, membership: str | None, root: Path) -> Iterator[Group]:
    """The process's group and those above it, for a controller such as `cpu` or `memory`.

    `membership` is what /proc/self/cgroup says; None reads it there.
    """
    if membership is None:
        try:
            membership = Path("/proc/self/cgroup").read_text()
        except OSError:
            return
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from (Group(folder, is_v2=True) for folder in _upwards(root, path))
        elif controller in controllers.split(","):
            folders = _upwards(root / controller, path)
            yield from (Group(folder, is_v2=False) for folder in folders)


def _upwards(root: Path, path: str) -> list[Path]:
    """The cgroup and those above it; root itself has no bound, but in a container it stands for a
    group of the host's that may."""
    folder = root / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
