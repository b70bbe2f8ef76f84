"""torchx in a virtual environment of its own, made at the first use, in the user's cache."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

_INSTALL_LIMIT_S = 300.0


def torchx_program() -> str | None:
    """The path of the torchx command; None, after a note, where it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "hpcdist-benchmarks" / "torchx"
    program = folder / "bin" / "torchx"
    try:
        if not _answers(program):
            _make(folder)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"skipped: torchx cannot be installed in {folder}: {error}", file=sys.stderr)
        return None
    return str(program)


def torchx_version(program: str) -> str:
    """As the command tells it."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _answers(program: Path) -> bool:
    """False also of what an installation left that was interrupted."""
    if not program.exists():
        return False
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


def _make(folder: Path) -> None:
    print(f"installing torchx in {folder}", file=sys.stderr)
    venv.create(folder, clear=True, with_pip=True)
    subprocess.run(
        [folder / "bin" / "pip", "install", "--quiet", "torchx"],
        check=True,
        timeout=_INSTALL_LIMIT_S,
        capture_output=True,
    )
