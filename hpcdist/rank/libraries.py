"""Changes to libraries in a rank: to the state that they set up when they were imported, and to
what they do.

The forkserver imports libraries once, so that all ranks of a node, in all attempts, begin with
copies of one state. What a fresh process would have of its own, a rank gets here: random states,
keys, and what a library computed from the environment or the CPUs of its process. Nothing is
imported for it: what is not in sys.modules will be fresh when it is imported.

Hydra's scripts get folders of their own: by default each rank writes to outputs/DATE/TIME below the
working directory. Ranks that start within one second share its files, others have folders of their
own, and on a cluster the working directory is the snapshot, which runs share. A folder that the
script, its configuration or its arguments name stays as it is.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]

_SEEDS = (
    ("random", "seed"),
    ("numpy.random", "seed"),
    # Of the CPU alone: torch seeds a device's generator when the device is first used, and
    # torch.seed() would leave an order to do so behind.
    ("torch", "default_generator.seed"),
    ("sympy.core.random", "rng.seed"),
    ("sympy.core.random", "_assumptions_rng.seed"),
    ("sympy.core.symbol", "Dummy._prng.seed"),
    ("trio._core._run", "_r.seed"),
)
"""Module and what in it takes a new seed from the operating system: generators that are seeded as
their module is imported. Generators with a constant seed stay as they are."""

_RANKS = (
    ("lightning_utilities.core.rank_zero", "RANK"),  # for lightning and pytorch_lightning, too
    ("torchmetrics.utilities.prints", "LOCAL_RANK"),
)
"""Module with a function rank_zero_only that remembers the rank of its process, and the variable
that it takes it from."""

_HYDRA = "hydra._internal.config_loader_impl"
_HYDRA_FOLDERS = {
    "run": "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}",
    "sweep": "multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}",
}
"""Section of Hydra's configuration -> the `dir` that it has by default, as hydra.conf says it."""


def renew_import_state() -> None:
    """Make the calling process, a rank just forked, like a fresh one as far as imported modules go.

    Its environment and its CPUs are already those of the rank.
    """
    for module, seed in _SEEDS:
        if module in sys.modules:
            with suppress(AttributeError):  # another release, or an import that failed half way
                attrgetter(seed)(sys.modules[module])()
    for module, variable in _RANKS:
        rank_zero_only: Any = getattr(sys.modules.get(module), "rank_zero_only", None)
        if hasattr(rank_zero_only, "rank"):  # else whoever sets it is still to be imported
            rank_zero_only.rank = int(os.environ[variable])
    config: Any = sys.modules.get("torch._inductor.config")
    if config is not None:  # torch.compile gets a thread per CPU that the rank may use
        with suppress(AttributeError, KeyError):  # another release
            threads = config._config["compile_threads"]  # noqa: SLF001
            threads.default = config.decide_compile_threads()
    main_thread: Any = threading.main_thread()
    with suppress(AttributeError):  # another release; those from 3.13 on do it by themselves
        main_thread._set_native_id()  # noqa: SLF001
    if multiprocessing := sys.modules.get("multiprocessing"):
        multiprocessing.current_process().authkey = os.urandom(32)
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # to be looked up again: TMPDIR may be the script's by then
    has_nanoseconds = sys.version_info >= (3, 13)
    now = time.time_ns() if has_nanoseconds else time.time()
    setattr(logging, "_startTime", now)  # noqa: B010 - what %(relativeCreated)d counts from


def on_import(name: str, change: Change) -> None:
    """Change the module of this name, as soon as it is imported."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder(MetaPathFinder):
    """Finds one module as the other finders do, and changes it as it is imported."""

    def __init__(self, name: str, change: Change) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the next finder returns, where it is that module."""
        if fullname != self._name:
            return None
        others = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader  # it keeps its type, which tools look at
            exec_module = loader.exec_module

            def exec_and_change(module: ModuleType) -> None:
                exec_module(module)
                self._change(module)

            loader.exec_module = exec_and_change
        return spec


def keep_hydra_folders_apart() -> None:
    """Give Hydra other default folders in this process: one per rank, in the run directory."""

    def change(module: ModuleType) -> None:
        loader = getattr(module, "ConfigLoaderImpl", None)
        if loader is None:  # another release
            return
        load = loader.load_configuration

        @functools.wraps(load)
        def load_configuration(self: Any, *args: Any, **kwargs: Any) -> Any:
            from omegaconf import OmegaConf, open_dict

            config = load(self, *args, **kwargs)
            run_folder, rank = os.environ.get("HPCDIST_RUN_DIR"), os.environ.get("RANK", "")
            hydra = config.get("hydra")
            if not run_folder or not rank.isdecimal() or hydra is None:
                return config
            for name, default in _HYDRA_FOLDERS.items():
                section = hydra.get(name)
                found = section is not None and OmegaConf.to_container(section, resolve=False)
                if isinstance(found, dict) and found.get("dir") == default:
                    with open_dict(section):
                        section["dir"] = f"{run_folder}/hydra/rank-{int(rank):05d}"
            return config

        loader.load_configuration = load_configuration

    on_import(_HYDRA, change)
