"""apptainer and pyxis as their manuals say, over the real ch-run: they refuse what the real
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

CONTENTS = {
    ".sif": b"\0" * 32 + b"SIF_MAGIC\x0001\0" + b"\0" * 3 + bytes(range(16)) + b"\0" * 64,
    ".sqsh": b"hsqs" + b"\0" * 124,
}
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
    path.write_bytes(CONTENTS[ending])
    return path


def _fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)


def _parse(words, known, refuse):
    """Split into options (name -> values), and the rest; `known` ends those with `=` that take a
    value. `refuse` is called with others."""
    found = {}
    for at, word in enumerate(words):
        if not word.startswith("-"):
            return found, words[at:]
        name, equals, value = word.partition("=")
        if name + equals not in known.split():
            refuse(name)
        found.setdefault(name, []).append(value)
    return found, []


def _binds(mounts, refuse):
    """Those of ch-run for mounts SOURCE:TARGET[:ro]; `refuse` is called with others."""
    binds = []
    for mount in mounts:
        source, _, rest = mount.partition(":")
        target, *flags = (rest or source).split(":")
        if not os.path.exists(source) or flags not in ([], ["ro"]) or not os.path.isabs(target):
            refuse(mount)
        binds.append(f"--bind={source}:{target}")
    return binds


def apptainer(words, _):
    """man apptainer-exec. Like the real one, which is set up before it starts the command, it
    passes on no descriptors."""

    def refuse(name):
        _fail(f'Error for command "exec": unknown flag: {name}')

    if words[:1] != ["exec"]:
        refuse(words[0])
    options, (image, *command) = _parse(words[1:], "--nv --rocm --bind= --pwd= --cleanenv", refuse)
    if not os.path.exists(image):
        _fail(f"FATAL:   could not open image {image}: no such file or directory", 255)
    kept = {} if "--cleanenv" in options else dict(os.environ)
    kept.pop("LD_LIBRARY_PATH", None)
    own = {"PATH": _PATH, "APPTAINER_CONTAINER": image, "USER": "somebody"}
    said = "FATAL:   container creation failed: mount hook function failure: mount"
    binds = _binds(options.get("--bind", []), lambda mount: _fail(f"{said} {mount}", 255))
    # A runtime above its command passes signals on, and ends with its exit code.
    folder = str(Path(image).with_suffix("")) if os.path.isfile(image) else image
    where = f"--cd={options['--pwd'][0]}"
    process = subprocess.Popen(["ch-run", *binds, where, folder, "--", *command], env=kept | own)
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, lambda signum, _: process.send_signal(signum))
    code = process.wait()
    sys.exit(128 - code if code < 0 else code)


def srun(words, real):
    """Slurm's srun with the plugin pyxis: github.com/NVIDIA/pyxis, Usage."""
    if "--help" in words:
        print("      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH")
    own = [word for word in words if re.match(r"--(no-)?container-", word)]
    others = [word for word in words if word not in own]
    if not own:
        os.execv(real, [real, *words])

    def refuse(what):
        _fail(f"srun: error: pyxis: invalid or unknown: {what}")

    known = "--container-image= --container-mounts= --container-workdir="
    known += " --no-container-entrypoint --no-container-remap-root"
    options, _ = _parse(own, known, refuse)
    (image,), (cwd,) = options["--container-image"], options["--container-workdir"]
    if not os.path.isabs(image) or not os.path.isfile(image):
        refuse(image)
    binds = _binds(options["--container-mounts"][0].split(","), refuse)
    at = next(i for i, word in enumerate(others) if not word.startswith("-"))
    inside = ["/usr/bin/env", f"PATH={_PATH}", "USER=somebody", "ch-run", *binds, f"--cd={cwd}"]
    # The tasks are started by slurmstepd, in the image: no process of pyxis's is above them.
    os.execv(real, [real, *others[:at], *inside, image[: -len(".sqsh")], "--", *others[at:]])
