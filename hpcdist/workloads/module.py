"""The user's own module, run in every rank as `python -m package.module args` would run it."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from hpcdist.job.imports import heavy_imports, notes_on_imports
from hpcdist.job.preload import Preload
from hpcdist.job.source import unpacked
from hpcdist.job.spec import JobSpec, ModuleJob
from hpcdist.rank.context import RankContext
from hpcdist.workloads.main_module import put_first, run_module


def check(job: JobSpec) -> None:
    """Nothing: the module was found and compiled when the job was loaded."""


def prepare(job: JobSpec) -> None:
    """Nothing: what a module needs is its own business."""


def notes(job: JobSpec) -> list[str]:
    """What keeps a heavy module from being imported once per node."""
    path = Path(_job(job).script)
    with unpacked(path) as (source, root):
        return notes_on_imports(source, first_on_path=root or Path.cwd())


def preload(job: JobSpec) -> Preload:
    """Heavy modules that the module imports, found without running it."""
    path = Path(_job(job).script)
    with unpacked(path) as (source, root):
        return heavy_imports(source, first_on_path=root or Path.cwd())


def run(context: RankContext) -> None:
    """Run the module as `__main__`; its packages are imported before, as python does."""
    job = _job(context.job)
    if not getattr(sys.flags, "safe_path", False):  # python -P, PYTHONSAFEPATH
        put_first(os.getcwd())
    sys.argv = ["-m", *job.args]  # as python has it while it looks for the module
    spec = _find(job.module)
    assert spec.origin is not None
    sys.argv[0] = spec.origin
    run_module(spec)


def _find(name: str) -> ModuleSpec:
    """Raises ImportError where the module is no longer there."""
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None:
        message = f"there is no module {name} in {os.getcwd()}, nor where Python looks for packages"
        raise ModuleNotFoundError(message, name=name)
    return spec


def _job(job: JobSpec) -> ModuleJob:
    assert isinstance(job, ModuleJob)
    return job
