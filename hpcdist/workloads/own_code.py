"""The user's own code: a script, a module, a program in any language, or a Python function."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import runpy
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader, all_suffixes
from pathlib import Path
from typing import Any

from hpcdist.base.errors import JobError
from hpcdist.base.files import read_bytes
from hpcdist.job.files import MOST_SOURCE_BYTES
from hpcdist.job.function import load_call, read_function
from hpcdist.job.preload import Program, read_program
from hpcdist.job.spec import FunctionJob, ModuleJob, ProgramJob, ScriptJob
from hpcdist.rank import own_loop
from hpcdist.rank.context import RankContext, Workload
from hpcdist.runs.run import write_outcome
from hpcdist.workloads.rank_process import set_main

_LOADED_AT_START = frozenset(
    (
        *("abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat"),
        *("types", "zipimport", "hpcdist", "__main__", "__mp_main__", *sys.builtin_module_names),
    )
)
"""Modules that no file beside a script can replace: python's own at its start, and the rank's."""
_run_module: Any = runpy._run_module_as_main  # type: ignore[attr-defined] # noqa: SLF001
"""Python's own function for `-m`."""

_STARTS_RANKS = re.compile(
    rb"^(?:[^#'\"\n]|'[^'\n]*'|\"[^\"\n]*\")*?\b((torch\.)?(mp|multiprocessing)\.(spawn|start_processes)|notebook_launcher)\(",
    re.MULTILINE,
)
_KNOWS_LAUNCHERS = re.compile(
    rb"""["'](LOCAL_RANK|RANK|WORLD_SIZE)["'](?!\]\s*=[^=])|is_torchelastic_launched"""
)
"""Text by which a program reads what launchers set, or asks for one."""

read_once = functools.cache(read_program)
"""The forkserver reads, and the ranks that it forks know."""


class ScriptWorkload(Workload[ScriptJob]):
    """A Python script, run as `python script.py args` would run it."""

    def check(self) -> None:
        """Raise JobError for a program that starts its own ranks: these would wait forever."""
        if self.job.num_ranks == 1 or self.job.force:
            return
        path, source = Path(self.job.script), b""
        with contextlib.suppress(OSError):  # it is read again where it runs
            source = read_bytes(path, most_bytes=MOST_SOURCE_BYTES)
        call = _STARTS_RANKS.search(source)
        if call is None or _KNOWS_LAUNCHERS.search(source):
            return
        line = source.count(b"\n", 0, call.start(1)) + 1
        raise JobError(
            f"{path.name}, line {line} starts ranks by {call[1].decode()}, as hpcdist does: each "
            "rank would start all of them again, and these would wait for each other forever",
            hint="call the function that it starts once in each rank, with RANK and LOCAL_RANK of "
            "the environment as its numbers, and do not set MASTER_ADDR and MASTER_PORT; --set "
            "force=true starts it as it is",
        )

    def preload(self) -> list[str]:
        """Return the heavy modules that the script imports."""
        return self._read().heavy

    def own_files(self) -> Sequence[Path]:
        return self._read().files

    def _read(self) -> Program:
        root = Path.cwd() if isinstance(self.job, ModuleJob) else None  # as `python -m` has it
        return read_once(Path(self.job.script), root)

    def run(self, context: RankContext) -> None:  # noqa: ARG002
        """Run the script as `__main__`, with sys.argv and sys.path as python would give them."""
        path = str(Path(self.job.script))
        sys.argv = [path, *self.job.args]
        sys.orig_argv = [sys.executable, "-u", *sys.argv]  # programs execute it to start again
        if not getattr(sys.flags, "safe_path", False):  # python -P, PYTHONSAFEPATH
            put_first(os.path.dirname(os.path.realpath(path)))
        loader = SourceFileLoader("__main__", path)
        main = set_main(__file__=path, __loader__=loader, __cached__=None)
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        run_program(exec, code, main.__dict__)


class ModuleWorkload(ScriptWorkload):
    """A module, run as `python -m package.module args` would run it."""

    job: ModuleJob

    def run(self, context: RankContext) -> None:  # noqa: ARG002
        """Run the module as `__main__`; its packages are imported before."""
        if not getattr(sys.flags, "safe_path", False):  # python -P, PYTHONSAFEPATH
            put_first(os.getcwd())
        sys.argv = ["-m", *self.job.args]  # as python has it while it looks for the module
        sys.orig_argv = [sys.executable, "-u", "-m", self.job.module, *self.job.args]
        run_program(_run_module, self.job.module)


class ProgramWorkload(Workload[ProgramJob]):
    """A program, executed as `torchrun --no-python program args` would.

    Nothing is preloaded: no import outlives the rank's process image.
    """

    def own_files(self) -> Sequence[Path]:
        return [Path(self.job.script)]

    def run(self, context: RankContext) -> None:
        """Become the program; its exit code, or the signal that ends it, says how the rank ended.

        Raises JobError where it cannot be executed.
        """
        path = self.job.script
        # A name is looked up again in a container, or on a node with other software.
        if not self.job.is_given_by_path and not os.path.exists(path):
            path = shutil.which(self.job.program) or path
        command = [path, *self.job.args]
        # The log shows what a program prints at once, as it does for other ranks.
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
        # Python ignores these at its start and a fresh program does not. The request for stacks
        # means nothing to a program, and must not end it.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        context.progress.finish()  # from now on only the program can say that it has failed
        try:
            os.execve(command[0], command, os.environ)  # noqa: S606 - it is what the user asked for
        except OSError as error:
            raise JobError(
                f"{self.job.program} cannot be executed: {error.strerror}",
                hint=f"look at {self.job.script}",
            ) from None


class FunctionWorkload(Workload[FunctionJob]):
    """A function that was submitted from Python; the call was pickled before its job was made."""

    def preload(self) -> list[str]:
        return self.job.modules

    def own_files(self) -> Sequence[Path]:
        source = self.job.source
        return read_function(self.job.function, source).files if source else []

    def run(self, context: RankContext) -> None:
        """Call the function, and keep what it returns or raises."""
        keep = functools.partial(write_outcome, context.run, context.rank, context.attempt)
        # Import as the submitting process did; what is there already keeps its place.
        sys.path[:0] = [folder for folder in self.job.python_path if folder not in sys.path]
        sys.argv = [self.job.source or self.job.function]  # without the arguments of the agent
        again = "raise SystemExit('a submitted function cannot be executed again')"
        sys.orig_argv = [sys.executable, "-c", again]
        try:
            function, args, kwargs = load_call(context.run.function_file)
            value = run_program(function, *args, **kwargs)
        except SystemExit as leaving:
            if leaving.code in {None, 0}:
                keep("returned", None)
            raise
        except Exception as error:
            with contextlib.suppress(OSError, MemoryError):  # the verdict and the log have it too
                keep("raised", error)
            raise
        keep("returned", value)


# The module `__main__` of a rank, which is forked from a process that has another one.


def put_first(folder: str) -> None:
    """Put a folder first on sys.path, as python does with that of a script.

    This process has imported much that the program has not: where the folder has modules by the
    same names, the program's imports must find these.
    """
    sys.path.insert(0, folder)
    imported = {name.partition(".")[0] for name in sys.modules} - _LOADED_AT_START
    hidden = set()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # it may be a zip file
        for entry in entries:
            name, _, suffix = entry.name.partition(".")
            if name in imported and (
                f".{suffix}" in all_suffixes()
                or os.path.exists(os.path.join(entry.path, "__init__.py"))
            ):
                hidden.add(name)
    for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
        del sys.modules[name]


def run_program(program: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the user's code, and record its last steps."""
    try:
        return the_program_is_above_and_hpcdist_below(program, *args, **kwargs)
    finally:
        own_loop.finish()


def the_program_is_above_and_hpcdist_below(
    program: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Dumps of the stack, as at a crash, show this name where the calls of the user's code end."""
    return program(*args, **kwargs)
