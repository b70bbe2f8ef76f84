"""Container runtimes: how each starts a command in an image, and what it takes for an image.

Everything a rank needs is the host's: network, processes, shared memory, the user's id, and the
folders that are mounted at their own paths. So only the root file system is the image's. Variables
do not pass through the runtimes: the command gets them otherwise.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

HOST_RUNTIMES = ("apptainer", "charliecloud", "podman")
RUNTIMES = (*HOST_RUNTIMES, "pyxis")
"""The last one is started by Slurm's srun alone."""
NO_IMAGE = "none"
"""In the place of an image: no container, whatever the profile says."""

_PROGRAMS = {
    "apptainer": ("apptainer", "singularity"),
    "charliecloud": ("ch-run",),
    "podman": ("podman",),
}
_REFERENCE = re.compile(r"(?P<scheme>[a-z][a-z0-9+-]*)://(?P<rest>\S+)")
_STARTED_BY = {
    "folder": ("apptainer", "charliecloud", "podman"),
    "sif": ("apptainer",),
    "squashfs": ("apptainer", "pyxis", "charliecloud"),
}
"""Runtimes that start an image of each kind."""
_OF_HOST = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONPATH"),
    *("VIRTUAL_ENV", "CONDA_PREFIX"),
)
"""Variables that mean the host's libraries, and would break the image's."""
_OF_IMAGE = ("PATH", "HOME", "HOSTNAME", "SHELL", "_", "PWD", "OLDPWD", "SHLVL")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Mount(NamedTuple):
    """A folder or file of the host's, as it is seen inside."""

    source: str
    target: str
    is_read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Read SRC, SRC:DST, SRC:DST:ro. Raises ValueError, which says what is wrong."""
        source, *rest = text.split(":")
        flags = rest[1:]
        if len(rest) > 2 or any(flag not in {"ro", "rw"} for flag in flags):
            raise ValueError("must be SRC, SRC:DST, SRC:DST:ro or SRC:DST:rw")
        target = rest[0] if rest else source
        for path in (source, target):
            if not path.startswith(("/", "$")) or not path.isprintable() or "," in path:
                raise ValueError(f"{path!r} must be an absolute path, without commas")
        return cls(source, target, flags == ["ro"])

    @classmethod
    def at_same_path(cls, path: str, *, is_read_only: bool = False) -> Mount:
        """Mount a folder at its own path. Raises ValueError where that cannot be written as one."""
        if not path.isprintable() or set(path) & set(":,$"):
            raise ValueError(f"{path!r} cannot be mounted: its name has one of : , $")
        return cls(path, path, is_read_only)

    def __str__(self) -> str:
        return f"{self.source}:{self.target}{':ro' if self.is_read_only else ''}"

    def filled(self, environment: Mapping[str, str]) -> Mount:
        """Return the mount with its variables replaced; KeyError for one that is not set."""
        source, target = (
            re.sub(r"\$\{?(\w+)\}?", lambda match: environment[match[1]], text)
            for text in (self.source, self.target)
        )
        return Mount(source, target, self.is_read_only)


class InContainer(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a job's forkservers in an image."""

    runtime: str
    image: str
    mounts: list[Mount]
    """Those of the job and the profile come after hpcdist's own."""
    python: str
    """Interpreter of the image."""
    python_path: str
    """Folder with the hpcdist that is carried along: `hpcdist.base.carried`."""
    options: list[str] = []
    """Further options for the runtime."""


# How each starts a command.


def start_command(
    container: InContainer,
    command: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    has: Callable[[str], bool] = os.path.exists,
) -> list[str]:
    """Return what starts a command in the image on this node; `has` tells which devices are there,
    the environment is the job's."""
    image, options, mounts = container.image, container.options, container.mounts
    has_nvidia, has_amd = has("/dev/nvidiactl"), has("/dev/kfd")
    match container.runtime:
        case "apptainer":
            gpus = ["--nv"] if has_nvidia else ["--rocm"] if has_amd else []
            binds = [f"--bind={mount}" for mount in mounts]
            program = next(filter(shutil.which, _PROGRAMS["apptainer"]), "apptainer")
            return [program, "exec", *gpus, *binds, f"--pwd={cwd}", *options, image, *command]
        case "charliecloud":  # /dev is the host's; the image must have the libraries
            binds = [f"--bind={mount.source}:{mount.target}" for mount in mounts]
            own = ["--set-env"] if has(os.path.join(image, "ch/environment")) else []
            return ["ch-run", *own, *binds, f"--cd={cwd}", *options, image, "--", *command]
        case "podman":
            devices = ["--device=nvidia.com/gpu=all"] if has_nvidia else []
            devices += ["--device=/dev/kfd", "--device=/dev/dri"] if has_amd else []
            devices += ["--device=/dev/infiniband"] if has("/dev/infiniband") else []
            return [
                *("podman", "run", "--rm", "--network=host", "--pid=host", "--ipc=host"),
                *("--uts=host", "--userns=keep-id", "--cgroups=disabled"),
                *("--security-opt=label=disable", "--ulimit=host", "--entrypoint="),
                *(*devices, *(f"--volume={mount}" for mount in mounts), f"--workdir={cwd}"),
                *(*options, *(["--rootfs"] if os.path.isdir(image) else []), image, *command),
            ]
        case _:
            # A step of this node's own, which has all that the agent's step has.
            node = environment.get("SLURMD_NODENAME", "")
            cpus = environment.get("SLURM_CPUS_PER_TASK")
            return [
                *("srun", "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", f"--nodelist={node}"),
                *("--ntasks-per-node=1", "--cpu-bind=none", "--unbuffered", "--input=none"),
                *([f"--cpus-per-task={cpus}"] if cpus else []),
                f"--container-image={pyxis_image(image)}",
                f"--container-mounts={','.join(map(str, mounts))}",
                f"--container-workdir={cwd}",
                *("--no-container-entrypoint", "--no-container-remap-root"),
                *(*options, *command),
            ]


def environment_of_runtime(runtime: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a runtime is started with, which may reach the command, or not:
    the job's, without what means the host's libraries."""
    kept = {name: value for name, value in environment.items() if name not in _OF_HOST}
    if runtime == "charliecloud":
        kept["PATH"] = _PATH
        kept.setdefault("USER", str(os.geteuid()))
    return kept


def environment_inside(container: InContainer, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the job's environment that hold in the image, too.

    hpcdist stands first on PYTHONPATH; packages of the host's, or in the user's home, are those of
    another Python.
    """
    foreign = {*_OF_HOST, *_OF_IMAGE}
    kept = {name: value for name, value in environment.items() if name not in foreign}
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    own = [entry for entry in entries if entry and not re.search(r"(site|dist)-packages", entry)]
    kept["PYTHONPATH"] = os.pathsep.join([container.python_path, *own])
    return {"PYTHONNOUSERSITE": "1", **kept}


# Images.


class NoImageError(ValueError):
    """There is no such image, or it is none; the message says what is wrong."""


def is_reference(image: str, runtime: str) -> bool:
    """Return whether an image is named for a registry, and is no path."""
    if _REFERENCE.fullmatch(image):
        return True
    is_path = image.startswith(("/", ".", "~", "$")) or image.endswith((".sif", ".sqsh"))
    return runtime in {"podman", "pyxis"} and not is_path and not os.path.lexists(image)


def look_at_image(image: str, runtime: str) -> str | None:
    """Return what tells an image from a changed one, as far as that is cheap; None for one in a
    registry. Raises NoImageError."""
    if is_reference(image, runtime):
        scheme = image.partition("://")[0] if "://" in image else "docker"
        if runtime == "charliecloud":
            raise NoImageError("names a registry, and charliecloud starts folders: see ch-convert")
        if runtime != "apptainer" and scheme != "docker":
            raise NoImageError(f"begins with {scheme}://, which {runtime} does not know")
        return None
    try:
        status, head = os.stat(image), b""
        if not (is_folder := stat.S_ISDIR(status.st_mode)):
            with open(image, "rb") as file:
                head = file.read(64)
        is_root = is_folder and "usr" in os.listdir(image)
    except OSError as error:
        raise NoImageError(f"cannot be read: {error.strerror}") from None
    is_squashfs = head[:4] == b"hsqs" or (runtime == "pyxis" and image.endswith(".sqsh"))
    kinds = {"folder": is_root, "sif": head[32:41] == b"SIF_MAGIC", "squashfs": is_squashfs}
    kind = next((name for name, is_it in kinds.items() if is_it), None)
    if kind is None:
        raise NoImageError("is neither an image file (.sif, .sqsh) nor a folder with usr/ in it")
    if runtime not in _STARTED_BY[kind]:
        raise NoImageError(f"is a {kind}, which {runtime} does not start")
    own_id = head[48:64].hex() if kind == "sif" else f"{status.st_size:x}-{status.st_mtime_ns:x}"
    return f"{kind}:{own_id}"


def pyxis_image(image: str) -> str:
    """Return an image as pyxis writes it, [REGISTRY#]IMAGE: the registry is the first part of a
    reference, where that can be a host's name."""
    match = _REFERENCE.fullmatch(image)
    if match is None:
        return image
    first, slash, rest = match["rest"].partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost")
    return f"{first}#{rest}" if is_host else match["rest"]
