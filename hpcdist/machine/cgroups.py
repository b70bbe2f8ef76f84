"""The cgroups that bound this process, of version 1 and 2, as folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")


class Group(NamedTuple):
    """A cgroup that may bound this process."""

    folder: Path
    is_v2: bool


def bounding_groups(
    controller: str, membership: str | None, root: Path, *, with_parents: bool = True
) -> Iterator[Group]:
    """Yield the process's group and those above it, for a controller such as `cpu` or `memory`.

    `membership` is the text of /proc/self/cgroup; None reads it there. root itself has no bound,
    but in a container it stands for a group of the host's that may.
    """
    if membership is None:
        try:
            membership = Path("/proc/self/cgroup").read_text()
        except OSError:
            return
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        is_v2 = not controllers
        if not is_v2 and controller not in controllers.split(","):
            continue
        top = root if is_v2 else root / controller
        own = top / path.lstrip("/")
        yield Group(own, is_v2)
        if with_parents:
            yield from (Group(each, is_v2) for each in own.parents if each.is_relative_to(top))
