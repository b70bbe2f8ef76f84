"""apptainer, podman and pyxis as their manuals say, over the real ch-run: they refuse what the real
ones refuse, in their words, and give a command the environment, folders and signals that they give.

A .sif or .sqsh file stands for the folder of the same name without the ending. Called as a program,
this is the one whose name it has.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

SIF = b"\0" * 32 + b"SIF_MAGIC\x0001\0" + b"\0" * 3 + bytes(range(16)) + b"\0" * 64
SQUASHFS = b"hsqs" + b"\0" * 124
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def install(folder, *names):
    """Programs of these names in a folder, for PATH."""
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        real = shutil.which(name) or ""
        path.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            f"from runtime_stand_ins import {name}\n{name}(sys.argv[1:], {real!r})\n"
        )
        path.chmod(0o755)
    return folder


def image_file(image, ending):
    """A file that stands for an image in a folder."""
    path = image.with_name(image.name + ending)
    path.write_bytes({".sif": SIF, ".sqsh": SQUASHFS}[ending])
    return path


def _folder_of(image):
    return str(Path(image).with_suffix("")) if Path(image).is_file() else image


def _parse(words, options, refuse):
    """Split into options (name -> values), and the rest; `options` says which take a value."""
    found = {}
    for at, word in enumerate(words):
        if not word.startswith("-"):
            return found, words[at:]
        name, equals, value = word.partition("=")
        if name not in options or options[name] != bool(equals):
            refuse(name)
        found.setdefault(name, []).append(value)
    return found, []


def _run_below(command, environment):
    """As a runtime above its command: it passes signals on, and ends with its exit code."""
    process = subprocess.Popen(command, env=environment)
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, lambda signum, _: process.send_signal(signum))
    code = process.wait()
    sys.exit(128 - code if code < 0 else code)


def apptainer(words, _):
    """man apptainer-exec."""

    def fail(text, code=255):
        print(text, file=sys.stderr)
        sys.exit(code)

    def refuse(name):
        fail(f'Error for command "exec": unknown flag: {name}', 1)

    if words[:1] != ["exec"]:
        refuse(words[0])
    known = {"--nv": False, "--rocm": False, "--bind": True, "--pwd": True, "--cleanenv": False}
    # Like the real one, which is set up before it starts the command, it passes on no descriptors.
    options, (image, *command) = _parse(words[1:], known, refuse)
    if not os.path.exists(image):
        fail(
            f"FATAL:   could not open image {image}: failed to retrieve path for {image}: lstat "
            f"{image}: no such file or directory"
        )
    binds = []
    for bind in options.get("--bind", []):
        source, target, *_ = [*bind.split(":"), bind.partition(":")[0]]
        if not os.path.exists(source):
            fail(
                "FATAL:   container creation failed: mount hook function failure: mount "
                f"{source}->{target} error: while mounting {source}: mount source {source} doesn't "
                "exist"
            )
        binds.append(f"--bind={source}:{target}")
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    if "--cleanenv" in options:
        environment = {}
    environment |= {"PATH": _PATH, "APPTAINER_CONTAINER": image, "USER": "somebody"}
    _run_below(
        ["ch-run", *binds, f"--cd={options['--pwd'][0]}", _folder_of(image), "--", *command],
        environment,
    )


def podman(words, _):
    """man podman-run; a container gets nothing of the environment."""

    def refuse(name):
        print(f"Error: unknown flag: {name}", file=sys.stderr)
        sys.exit(125)

    if words[:1] != ["run"]:
        refuse(words[0])
    with_value = ("network", "pid", "ipc", "uts", "userns", "cgroups", "security-opt", "ulimit")
    with_value += ("entrypoint", "volume", "workdir", "device")
    known = {f"--{name}": True for name in with_value} | {"--rm": False, "--rootfs": False}
    options, (image, *command) = _parse(words[1:], known, refuse)
    if not os.path.isdir(image):
        print(f"Error: short-name {image!r} did not resolve to an alias", file=sys.stderr)
        sys.exit(125)
    binds = []
    for volume in options["--volume"]:
        source, target, *flags = volume.split(":")
        if not os.path.exists(source) or flags not in ([], ["ro"]):
            print(f"Error: statfs {source}: no such file or directory", file=sys.stderr)
            sys.exit(125)
        binds.append(f"--bind={source}:{target}")
    environment = {"PATH": _PATH, "HOME": "/root", "container": "podman", "USER": "somebody"}
    _run_below(
        ["ch-run", *binds, f"--cd={options['--workdir'][0]}", image, "--", *command], environment
    )


def srun(words, real):
    """Slurm's srun with the plugin pyxis: github.com/NVIDIA/pyxis, Usage."""
    if "--help" in words:
        print("      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH")
    own = [word for word in words if re.match(r"--(no-)?container-", word)]
    others = [word for word in words if word not in own]
    if not own:
        os.execv(real, [real, *words])

    def fail(text):
        print(f"srun: error: pyxis: {text}", file=sys.stderr)
        sys.exit(1)

    known = {"--container-image": True, "--container-mounts": True, "--container-workdir": True}
    known |= {"--no-container-entrypoint": False, "--no-container-remap-root": False}
    options, _ = _parse(own, known, lambda name: fail(f"srun: unrecognized option '{name}'"))
    (image,) = options["--container-image"]
    if not os.path.isabs(image) or not os.path.isfile(image):
        fail(f"--container-image: failed to import {image}")
    binds = []
    for mount in options["--container-mounts"][0].split(","):
        source, target, *flags = mount.split(":")
        if flags not in ([], ["ro"]) or not os.path.isabs(target):
            fail(f"--container-mounts: invalid format: {mount}")
        binds.append(f"--bind={source}:{target}")
    (cwd,) = options["--container-workdir"]
    at = next(i for i, word in enumerate(others) if not word.startswith("-"))
    inside = ["/usr/bin/env", f"PATH={_PATH}", "USER=somebody", "ch-run", *binds, f"--cd={cwd}"]
    # The tasks are started by slurmstepd, in the image: no process of pyxis's is above them.
    command = [*others[:at], *inside, _folder_of(image), "--", *others[at:]]
    os.execv(real, [real, *command])
