"""The folder of the runs, as far as this machine can tell."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from hpcdist.schedulers.base import Finding, failed, passed, warned

_LOCAL_KINDS = frozenset(
    ("tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs")
)
"""File systems that one machine has for itself, as a rule."""
_LEAST_BYTES = 100e6
_FEW_BYTES = 5e9
_SHARED = "name a folder on the shared file system, such as your home, with --runs or HPCDIST_RUNS"


def examine_folder(runs: Path, *, is_shared: bool) -> Finding:
    """Whether runs can be made there, privately, and with room; `is_shared` where other machines
    must see it."""
    try:
        problem = _try_to_write(runs)
        free = shutil.disk_usage(runs).free
    except OSError as error:
        return failed(
            "runs folder",
            f"{runs}: {error.strerror}",
            "name a folder that you can write, with --runs or HPCDIST_RUNS",
        )
    kind, mount = file_system(runs)
    where = f"{runs}, on {kind} at {mount}, {free / 1e9:,.1f} GB free"
    if problem:
        return failed("runs folder", f"{where}: {problem}", _SHARED)
    if free < _LEAST_BYTES:
        return failed("runs folder", f"{where}: too little", "free some space, or name another")
    if is_shared and (is_temporary(runs) or kind in _LOCAL_KINDS):
        return warned("runs folder", f"{where}: other machines may not see it", _SHARED)
    if free < _FEW_BYTES:
        return warned("runs folder", where, "checkpoints need more; `hpcdist runs` lists old runs")
    return passed("runs folder", f"{where}, writable and private")


def file_system(path: Path, mounts: str | None = None) -> tuple[str, str]:
    """Kind and mount point of the file system that holds a path, from /proc/mounts."""
    text = Path("/proc/mounts").read_text() if mounts is None else mounts
    resolved = os.path.realpath(path)
    best = ("unknown", "/")
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        mount = words[1].replace("\\040", " ")
        holds = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if holds and len(mount) >= len(best[1]):
            best = (words[2], mount)
    return best


def is_temporary(path: Path) -> bool:
    """Whether it is in a folder that every machine has for itself."""
    resolved = os.path.realpath(path)
    return any(resolved.startswith(f"{one}/") for one in ("/tmp", "/var/tmp", "/dev/shm"))  # noqa: S108 - these are what is warned of


def _try_to_write(runs: Path) -> str:
    """What is wrong with a folder made there; empty: nothing."""
    probe = Path(tempfile.mkdtemp(prefix=".doctor-", dir=runs))
    try:
        (probe / "file").write_bytes(b"x" * 4096)
        mode = stat.S_IMODE(probe.stat().st_mode)
    finally:
        shutil.rmtree(probe)
    return f"others can read what is private there (mode {mode:o})" if mode & 0o077 else ""
