"""The programs: what is run, and what of it is compared.

Exit code, the rank that is said to have failed first and its exit code, and every file that the
program wrote are compared for all of them: `facts-*.json` key by key, what was drawn at random
(`random-*.json`) among the ranks of a run, and all others byte for byte.
"""

import shutil
import stat
import zipapp
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
    files: tuple[str, ...] = ()
    """Of the folder of programs: what it needs where it runs."""
    prepare: Callable[[Path], None] | None = None
    """Makes what else it needs, in the folder where it runs."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """None: not set."""
    exit_code: int = 0
    """Of torchrun: what the row is about would be lost if torchrun failed otherwise."""
    compares: tuple[Literal["output"], ...] = ()
    """Output: the lines that each rank wrote, in any order."""
    readers: Mapping[str, Callable[[Path], Any]] = field(default_factory=dict)
    """By pattern of a name: what is compared of files whose bytes are never the same."""
    ignores: tuple[str, ...] = ()
    """Patterns of files that differ from run to run."""
    differs: Mapping[str, str] = field(default_factory=dict)
    """By pattern of a key of facts-*.json: why it may differ."""
    packages: tuple[str, ...] = ()
    """Modules that must be there; else the row is skipped."""
    is_slow: bool = False
    """Left to `make foreign`."""

    def compared(self, outcome) -> str:
        """What was compared, for people."""
        written = [path for path in outcome.folder.rglob("*") if path.is_file()]
        names = {str(path.relative_to(outcome.folder)) for path in written} - outcome.given
        parts = ["exit code"]
        if outcome.first_failure:
            parts.append("first failure")
        parts += [
            text
            for prefix, text in (("facts-", "facts"), ("random-", "random numbers"))
            if any(name.startswith(prefix) for name in names)
        ]
        others = [name for name in names if not name.startswith(("facts-", "random-"))]
        if others:
            parts.append(f"{len(others)} files")
        return ", ".join([*parts, *self.compares])


def _script(name, *, label=None, arguments=(), files=(), **options):
    """A row for a script of the folder of programs."""
    stem = name.removesuffix(".py").replace("_", " ")
    words = " ".join(arguments) if label is None else label
    return Row(
        name=f"{stem}: {words}" if words else stem,
        program=name,
        arguments=tuple(arguments),
        files=(name, *files),
        **options,
    )


def _end(way, exit_code=0):
    return _script(
        "ends.py", arguments=(way,), exit_code=exit_code, compares=("output",)
    )


def _without_suffix(folder):
    shutil.copy(_PROGRAMS / "place.py", folder / "program")
    _beside(folder)


def _beside(folder):
    (folder / "beside.py").write_text("NAME = 'beside'\n")


def _in_package(folder, *, initialized):
    part = folder / "outer" / "part"
    part.mkdir(parents=True)
    for name in ("__main__.py", "program.py"):
        shutil.copy(_PROGRAMS / "place.py", part / name)
    (part / "sibling.py").write_text("NAME = 'sibling'\n")
    if initialized:
        for package in (part, part.parent):
            (package / "__init__.py").touch()
    _beside(folder)


def _in_packages(folder):
    _in_package(folder, initialized=True)


def _in_namespace(folder):
    _in_package(folder, initialized=False)


def _folder_with_main(folder):
    (folder / "program").mkdir()
    shutil.copy(_PROGRAMS / "place.py", folder / "program" / "__main__.py")
    _beside(folder / "program")


def _zip_with_main(folder):
    source = folder.parent / "zipped"
    (source / "program").mkdir(parents=True)
    _folder_with_main(source)
    zipapp.create_archive(source / "program", folder / "program.pyz")


def _console_entry(folder):
    path = folder / "entry"
    path.write_text(f"#!/usr/bin/env python\n{(_PROGRAMS / 'place.py').read_text()}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


_OURS = "HPCDIST_*"
_PORTRAIT = {}

_FORMS = [
    Row(name="a script without .py", program="program", prepare=_without_suffix),
    Row(name="a script in a folder below", program="below/place.py", prepare=lambda folder: shutil.copytree(_PROGRAMS, folder / "below", ignore=lambda _, names: {n for n in names if n != "place.py"})),
    Row(name="a folder with __main__.py", program="program", prepare=_folder_with_main),
    Row(name="a zip with __main__.py", program="program.pyz", prepare=_zip_with_main),
    Row(name="a module", program="outer.part.program", how="module", prepare=_in_packages),
    Row(name="a package", program="outer.part", how="module", prepare=_in_packages),
    Row(name="a module in a namespace package", program="outer.part.program", how="module", prepare=_in_namespace),
    Row(name="a package that is a namespace", program="outer.part", how="module", prepare=_in_namespace),
    Row(name="a console entry point", program="./entry", how="command", prepare=_console_entry),
    Row(name="a command that fails", program="./entry", how="command", arguments=("6",), exit_code=1, prepare=_console_entry),
]

_ENDS = [
    _end("os._exit(0)"),
    _end("os._exit(9)", 1),
    _end("exec"),
    _end("exec that fails", 1),
    _end("exec of a command"),
    _end("sys.exit(None)"),
    _end("sys.exit(True)", 1),
    _end("sys.exit(text)", 1),
    _end("sys.exit(object)", 1),
    _end("sys.exit(-1)", 1),
    _end("sys.exit(256)"),
    _end("sys.exit(75)", 1),
    _end("raise", 1),
    _end("group", 1),
    _end("interrupt", 1),
    _end("SIGINT", 1),
    _end("SIGTERM", 1),
    _end("SIGKILL", 1),
    _end("SIGUSR1", 1),
    _end("SIGUSR2", 1),
    _end("abort", 1),
    _end("segfault", 1),
    _end("exit handler raises"),
    _end("exit handler exits"),
    _end("exit handler leaves", 1),
    _end("thread raises"),
    _end("thread exits"),
    _end("destructor raises"),
    _end("no stdout"),
    _end("stdout is None"),
    _end("stderr is None"),
    _end("no streams"),
    _end("descriptors closed"),
    _end("stdout is devnull"),
    _end("hook", 1),
    _end("hook exits", 1),
    _end("many threads"),
    _end("recursion", 1),
    _end("syntax", 1),
    _end("generator exit", 1),
    _end("own BaseException", 1),
]

ROWS = [
    *_FORMS,
    *_ENDS,
    _script("open_files.py", compares=("output",)),
    _script("open_files.py", arguments=("raises",), exit_code=1, compares=("output",)),
    _script("open_files.py", arguments=("exits",), exit_code=1, compares=("output",)),
    _script("children.py", compares=("output",), label=""),
    _script("fork_ends.py", arguments=("raises",), compares=("output",)),
    _script("fork_ends.py", arguments=("exits",), compares=("output",)),
    _script("fork_ends.py", arguments=("ends",), compares=("output",)),
    _script("signals.py"),
    _script("output.py", compares=("output",)),
    _script("introspection.py"),
    _script("portrait.py"),
    _script("torch_portrait.py"),
    _script("random_numbers.py"),
    _script("early_environment.py", environment={"OMP_NUM_THREADS": None}),
    _script("ddp_snapshot.py", arguments=("4",)),
    _script("ddp_snapshot.py", arguments=("2", "--no-destroy")),
    _script("recorded.py", arguments=("raises",), exit_code=1),
    _script("recorded.py", arguments=("exits",), exit_code=1),
    _script("fsdp_checkpoint.py", is_slow=True),
    _script("compiled.py", is_slow=True),
]
