"""The programs: what is run, and what of it is compared.

The exit code and every file that the program wrote are compared for all of them: `facts-*.json`
key by key, what was drawn at random (`random-*.json`) among the ranks of a run, and all others byte
for byte.
"""

import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A program."""

    name: str
    program: str
    """As both commands are told it."""
    how: Literal["script", "module", "command"] = "script"
    """A module is for -m, a command for --no-python."""
    arguments: tuple[str, ...] = ()
    num_ranks: int = 2
    prepare: Callable[[Path], None] | None = None
    """Makes what it needs beside the programs, in the folder where it runs."""
    exit_code: int = 0
    """Of torchrun: what the row is about would be lost if torchrun failed otherwise."""
    compares: tuple[Literal["output"], ...] = ()
    """Output: the lines that each rank wrote, in any order."""
    ignores: tuple[str, ...] = ()
    """Patterns of files that differ from run to run."""
    differs: Mapping[str, str] = field(default_factory=dict)
    """By pattern of a key of facts-*.json: why it may differ."""
    packages: tuple[str, ...] = ()
    """Modules that must be there; else the row is skipped."""
    is_slow: bool = False
    """Left to `make foreign`."""


def _script(name, *arguments, label=None, **options):
    """A row for a script of the folder of programs."""
    stem = name.removesuffix(".py").replace("_", " ")
    words = label or " ".join(arguments)
    return Row(
        name=f"{stem}: {words}" if words else stem, program=name, arguments=arguments, **options
    )


def _without_suffix(folder):
    shutil.copy(_PROGRAMS / "place.py", folder / "program")
    _beside(folder)


def _beside(folder):
    (folder / "beside.py").write_text("NAME = 'beside'\n")
    for name in ("msgspec", "queue", "secrets"):  # the script's own come first
        (folder / f"{name}.py").write_text("IS_OWN = True\n")


def _in_package(folder):
    part = folder / "outer" / "part"
    part.mkdir(parents=True)
    shutil.copy(_PROGRAMS / "place.py", part / "program.py")
    (part / "sibling.py").write_text("NAME = 'sibling'\n")
    for package in (part, part.parent):
        (package / "__init__.py").touch()
    _beside(folder)


def _console_entry(folder):
    path = folder / "entry"
    path.write_text(f"#!/usr/bin/env python\n{(_PROGRAMS / 'portrait.py').read_text()}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


_OWN_VARIABLES = (
    "hpcdist, submitit and the schedulers add variables; the store has an address of its own"
)
_SIGUSR2 = (
    "SIGUSR2 says that the run is about to end, and does not end a program that knows nothing of it"
)
_PATH = {
    "argv": "a program is found when it is submitted: it is told its whole path",
    "file": "the same, without a ./ in it",
}
_PORTRAIT = {
    "dispositions.SIGUSR2": _SIGUSR2,
    "limits.RLIMIT_*OFILE": "a rank has connections to all others",
    **{
        f"environment.{name}": _OWN_VARIABLES
        for name in (
            *("HPCDIST_*", "SUBMITIT_*", "MASTER_*", "*_SOCKET_IFNAME", "NODE_RANK", "OLDPWD", "_"),
            *("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_SIGNALS_TO_HANDLE"),
            *("TORCH_FR_BUFFER_SIZE", "WANDB_RUN_*", "WANDB_RESUME", "MLFLOW_RUN_CONTEXT"),
        )
    },
}
_PORTRAIT_OF_A_PROGRAM = _PORTRAIT | {
    "dispositions.SIGQUIT": "nobody can ask a program for the stacks of its threads",
    "main_module.*": _PATH["file"],
    "sources.file": _PATH["file"],
}

_FORMS = [
    Row(name="script without .py", program="program", prepare=_without_suffix, differs=_PATH),
    Row(name="module", program="outer.part.program", how="module", prepare=_in_package),
    Row(
        name="console entry point",
        program="./entry",
        how="command",
        arguments=("--lr", "0.1", "", "two words", "--"),
        prepare=_console_entry,
        differs=_PORTRAIT_OF_A_PROGRAM,
    ),
]

_ENDS_WELL = (
    *("os._exit(0)", "exec", "exec of a command", "sys.exit(256)", "exit handler raises"),
    *("thread raises", "thread leaves", "no stdout", "no streams"),
    *("descriptors closed", "descriptors taken"),
)
_PLAIN = [
    _script(
        "ends.py",
        *_ENDS_WELL,
        label="well, in many ways",
        num_ranks=len(_ENDS_WELL),
        compares=("output",),
    ),
    _script("ends.py", "waits", "raise", exit_code=1, compares=("output",)),
    _script("writes.py", compares=("output",)),
    _script("children.py", compares=("output",)),
    _script("portrait.py", differs=_PORTRAIT),
]

_OF_PACKAGES = [
    _script("torch_portrait.py", "random_numbers.py"),
    Row(
        name="accelerate",
        program="accelerate.test_utils.scripts.test_sync",
        how="module",
        packages=("accelerate",),
        is_slow=True,
    ),
    _script(
        "transformers_trainer.py",
        packages=("transformers", "accelerate"),
        ignores=("trained/*/training_args.bin", "trained/*/trainer_state.json", "trained/*.bin"),
        is_slow=True,
    ),
]

ROWS = [*_FORMS, *_PLAIN, *_OF_PACKAGES]
