"""Container runtimes: how each starts a command in an image, and what it takes for an image.

Everything a rank needs is the host's: network, processes, shared memory, the user's id, and the
folders that are mounted at their own paths. So only the root file system is the image's. Pure, but
for `find_runtimes` and `look_at_image`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

RUNTIMES = ("apptainer", "pyxis", "charliecloud", "podman")
NO_IMAGE = "none"
"""In the place of an image: no container, whatever the profile says."""

_PROGRAMS = {"apptainer": ("apptainer", "singularity"), "podman": ("podman",)}
_PROGRAMS["charliecloud"] = ("ch-run",)
_PROBE_TIMEOUT_S = 10.0
_REFERENCE = re.compile(r"(?P<scheme>[a-z][a-z0-9+-]*)://(?P<rest>.+)")
_NAME_OF_IMAGE = re.compile(
    r"(?:[\w.-]+@)?(?:[\w.-]+(?::\d+)?[/#])?[a-z0-9._/-]+(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?"
)
_SIF_MAGIC = (32, b"SIF_MAGIC")
_SQUASHFS_MAGIC = (0, b"hsqs")
CUT_OFF = {"apptainer": {"-e", "--cleanenv", "-C", "--containall", "-p", "--pid"}}
"""Options by which an agent would not see the job's variables, or its node's processes."""
_SIGNS = ":,$"
"""Characters with a meaning in a mount."""
_FOLDER_SIGNS = ("usr", "bin", "lib")


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
        if not path.isprintable() or set(path) & set(_SIGNS):
            signs = " ".join(_SIGNS)
            raise ValueError(f"{path!r} cannot be mounted: its name has one of {signs}")
        return cls(path, path, is_read_only)

    def __str__(self) -> str:
        return self.source if self == Mount(self.source, self.source) else self.whole

    @property
    def whole(self) -> str:
        """SRC:DST or SRC:DST:ro, as those want it who know no shorter form."""
        return f"{self.source}:{self.target}{':ro' if self.is_read_only else ''}"

    def filled(self, environment: Mapping[str, str]) -> Mount:
        """Return the mount with its variables replaced; KeyError for one that is not set."""

        def fill(text: str) -> str:
            return re.sub(r"\$\{?(\w+)\}?", lambda match: environment[match[1]], text)

        return Mount(fill(self.source), fill(self.target), self.is_read_only)


class InContainer(NamedTuple):
    """The start of a job's agents in an image."""

    runtime: str
    image: str
    mounts: tuple[Mount, ...]
    """Options of the job and the profile, after hpcdist's own."""
    python: str
    """Interpreter of the image."""
    python_path: str
    """Folder with the hpcdist that is carried along: `hpcdist.base.carried`."""
    options: tuple[str, ...] = ()
    """Further options for the runtime."""


class Surroundings(NamedTuple):
    """Devices of a node that a runtime must be told of."""

    has_nvidia: bool = False
    has_amd: bool = False
    has_infiniband: bool = False

    @classmethod
    def here(cls) -> Surroundings:
        return cls(
            has_nvidia=os.path.exists("/dev/nvidiactl"),
            has_amd=os.path.exists("/dev/kfd"),
            has_infiniband=os.path.isdir("/dev/infiniband"),
        )


# How each starts a command.


def start_command(
    container: InContainer,
    command: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    node: Surroundings,
) -> list[str]:
    """Return what starts a command in the image; for pyxis, what follows srun's own options."""
    return _STARTERS[container.runtime](container, command, cwd, environment, node)


def _apptainer(
    container: InContainer,
    command: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],  # noqa: ARG001 - it passes its own on
    node: Surroundings,
) -> list[str]:
    program = next(filter(shutil.which, _PROGRAMS["apptainer"]), "apptainer")
    binds = [f"--bind={mount}" for mount in container.mounts]
    gpus = ["--nv"] if node.has_nvidia else ["--rocm"] if node.has_amd else []
    options = [*gpus, *binds, f"--pwd={cwd}", *container.options]
    return [program, "exec", *options, container.image, *command]


def _charliecloud(
    container: InContainer,
    command: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    node: Surroundings,  # noqa: ARG001 - /dev is the host's; the image must have the libraries
) -> list[str]:
    binds = [f"--bind={mount.source}:{mount.target}" for mount in container.mounts]
    own = []
    if os.path.exists(os.path.join(container.image, "ch/environment")):
        own = ["--set-env", f"--set-env=PYTHONPATH={environment.get('PYTHONPATH', '')}"]
    options = [*own, *binds, f"--cd={cwd}", *container.options]
    return ["ch-run", *options, container.image, "--", *command]


def _podman(
    container: InContainer,
    command: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    node: Surroundings,
) -> list[str]:
    """Names alone of variables stand on the command line, which others can read."""
    shared = [f"--{what}=host" for what in ("network", "pid", "ipc", "uts")]
    volumes = [f"--volume={mount.whole}" for mount in container.mounts]
    variables = [f"--env={name}" for name in sorted(environment) if name not in _OF_IMAGE]
    devices = ["--device=nvidia.com/gpu=all"] if node.has_nvidia else []
    devices += ["--device=/dev/kfd", "--device=/dev/dri"] if node.has_amd else []
    devices += ["--device=/dev/infiniband"] if node.has_infiniband else []
    root = ["--rootfs"] if os.path.isdir(container.image) else []
    return [
        *("podman", "run", "--rm", *shared, "--userns=keep-id", "--cgroups=disabled"),
        *("--security-opt=label=disable", "--ulimit=host", "--entrypoint="),
        *(*devices, *volumes, *variables, f"--workdir={cwd}", *container.options),
        *(*root, container.image, *command),
    ]


def _pyxis(
    container: InContainer,
    command: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],  # noqa: ARG001 - srun passes it on
    node: Surroundings,  # noqa: ARG001 - enroot's hooks see to devices
) -> list[str]:
    return [
        f"--container-image={pyxis_image(container.image)}",
        f"--container-mounts={','.join(one.whole for one in container.mounts)}",
        f"--container-workdir={cwd}",
        *("--no-container-entrypoint", "--no-container-remap-root"),
        "--container-env=PYTHONPATH,PYTHONNOUSERSITE",
        *container.options,
        *command,
    ]


_STARTERS: dict[str, Callable[..., list[str]]] = {
    "apptainer": _apptainer,
    "charliecloud": _charliecloud,
    "podman": _podman,
    "pyxis": _pyxis,
}

_OF_IMAGE = frozenset({"PATH", "HOME", "HOSTNAME", "SHELL", "_", "PWD", "OLDPWD", "SHLVL"})
_OF_HOST = frozenset(
    ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "CONDA_PREFIX")
)
"""Variables that mean the host's libraries, and would break the image's."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment_inside(container: InContainer, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the runtime: the job's, without what means the host's libraries.

    hpcdist stands first on PYTHONPATH; packages of the host's, or in the user's home, are those of
    another Python.
    """
    kept = {name: value for name, value in environment.items() if name not in _OF_HOST}
    entries = [
        entry
        for entry in environment.get("PYTHONPATH", "").split(os.pathsep)
        if entry and not re.search(r"(site|dist)-packages", entry)
    ]
    kept["PYTHONPATH"] = os.pathsep.join([container.python_path, *entries])
    kept.setdefault("PYTHONNOUSERSITE", "1")
    if container.runtime == "apptainer":  # also where the image sets one
        for prefix in ("APPTAINERENV", "SINGULARITYENV"):
            kept[f"{prefix}_PYTHONPATH"] = kept["PYTHONPATH"]
    if container.runtime == "charliecloud":
        kept["PATH"] = _PATH
        kept.pop("TMPDIR", None)  # it is mounted at /tmp
        kept.setdefault("USER", str(os.geteuid()))
    return kept


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
    registry, of which only the form is looked at. Raises NoImageError."""
    if is_reference(image, runtime):
        _check_reference(image, runtime)
        return None
    try:
        status = os.stat(image)
        if os.path.isdir(image):
            _check_folder(image, runtime)
            return f"folder:{status.st_mtime_ns:x}"
        with open(image, "rb") as file:
            head = file.read(128)
    except OSError as error:
        raise NoImageError(f"cannot be read: {error.strerror}") from None
    for kind, (offset, magic), runtimes in (
        ("sif", _SIF_MAGIC, ("apptainer",)),
        ("squashfs", _SQUASHFS_MAGIC, ("apptainer", "pyxis", "charliecloud")),
    ):
        if head[offset : offset + len(magic)] == magic:
            if runtime not in runtimes:
                raise NoImageError(f"is a {kind} file, which {runtime} does not start")
            # Bytes 48 to 64 of a SIF are its own id.
            return f"sif:{head[48:64].hex()}" if kind == "sif" else _of_file(status)
    if runtime == "pyxis" and image.endswith(".sqsh"):
        return _of_file(status)
    raise NoImageError("is neither an image file (.sif, .sqsh) nor a folder with a root in it")


def _of_file(status: os.stat_result) -> str:
    return f"file:{status.st_size:x}-{status.st_mtime_ns:x}"


def _check_folder(image: str, runtime: str) -> None:
    if runtime == "pyxis":
        raise NoImageError("is a folder, which pyxis does not start")
    if not any(os.path.isdir(os.path.join(image, sign)) for sign in _FOLDER_SIGNS):
        raise NoImageError("is a folder, but has none of usr/, bin/ and lib/: it is no image")


def _check_reference(image: str, runtime: str) -> None:
    match = _REFERENCE.fullmatch(image)
    name = match["rest"] if match else image
    if runtime == "charliecloud":
        raise NoImageError(
            "names a registry, and charliecloud starts folders: ch-convert and ch-image make one"
        )
    if runtime != "apptainer" and match and match["scheme"] not in {"docker", "oci"}:
        raise NoImageError(f"begins with {match['scheme']}://, which {runtime} does not know")
    if not _NAME_OF_IMAGE.fullmatch(name):
        raise NoImageError("is no reference such as docker://pytorch/pytorch:2.6.0")


def missing_targets(image: str, mounts: Sequence[Mount]) -> list[str]:
    """Return the folders that an image in a folder lacks, which cannot be made as it starts."""
    return [
        mount.target
        for mount in mounts
        if not os.path.exists(os.path.join(image, mount.target.lstrip("/")))
        and mount.target.split("/")[1] not in {"tmp", "dev", "proc", "sys"}
    ]


def pyxis_image(image: str) -> str:
    """Return an image as pyxis writes it, [REGISTRY#]IMAGE: the registry is the first part of a
    reference, where that can be a host's name."""
    match = _REFERENCE.fullmatch(image)
    if match is None:
        return image
    first, slash, rest = match["rest"].partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost")
    return f"{first}#{rest}" if is_host else match["rest"]


# Runtimes.


def find_runtimes(*, with_pyxis: bool = True) -> list[str]:
    """Return the runtimes of this machine; pyxis is a plugin of srun's."""
    return [
        name
        for name in RUNTIMES
        if (with_pyxis and has_pyxis() if name == "pyxis" else program_of(name) is not None)
    ]


def program_of(runtime: str) -> str | None:
    """Return the path of a runtime's program; None where it is not there."""
    return next(filter(None, map(shutil.which, _PROGRAMS[runtime])), None)


def has_pyxis() -> bool:
    try:
        done = subprocess.run(
            ["srun", "--help"], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return b"--container-image" in done.stdout


def first_missing_source(mounts: Sequence[Mount]) -> Mount | None:
    """Return the first mount of something that is not there."""
    return next((mount for mount in mounts if not Path(mount.source).exists()), None)
