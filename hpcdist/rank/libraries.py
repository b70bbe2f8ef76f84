"""The state that libraries set up when they were imported, renewed in a rank.

The forkserver imports libraries once, so that all ranks of a node, in all attempts, begin with
copies of one state. What a fresh process would have of its own, a rank gets here: random states, a
key, a rank. Nothing is imported for it: what is not in sys.modules will be fresh when it is
imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import Any

_SEEDS = (
    ("random", "seed"),
    ("numpy.random", "seed"),
    # Of the CPU alone: torch seeds a device's generator when the device is first used, and
    # torch.seed() would leave an order to do so behind.
    ("torch", "default_generator.seed"),
)
"""Module and what in it takes a new seed from the operating system: generators that are seeded as
their module is imported. Generators with a constant seed stay as they are."""

_RANKS = (
    ("lightning_utilities.core.rank_zero", "RANK"),  # for lightning and pytorch_lightning, too
    ("torchmetrics.utilities.prints", "LOCAL_RANK"),
)
"""Module with a function rank_zero_only that remembers the rank of its process, and the variable
that it takes it from."""


def renew_import_state() -> None:
    """Make the calling process, a rank just forked with its own environment, like a fresh one as
    far as imported modules go."""
    for module, seed in _SEEDS:
        if module in sys.modules:
            attrgetter(seed)(sys.modules[module])()
    for module, variable in _RANKS:
        rank_zero_only: Any = getattr(sys.modules.get(module), "rank_zero_only", None)
        if hasattr(rank_zero_only, "rank"):  # else whoever sets it is still to be imported
            rank_zero_only.rank = int(os.environ[variable])
    main_thread: Any = threading.main_thread()
    with suppress(AttributeError):  # Python from 3.13 on does it by itself
        main_thread._set_native_id()  # noqa: SLF001
    if multiprocessing := sys.modules.get("multiprocessing"):
        multiprocessing.current_process().authkey = os.urandom(32)
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # to be looked up again: TMPDIR may be the script's by then


def on_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Change the module of this name: now if it is there, else as it is imported."""
    if name in sys.modules:
        change(sys.modules[name])
        return

    def find_spec(fullname: str, *_: Any) -> ModuleSpec | None:
        """Return the spec that the other finders give, where it is that module."""
        if fullname != name:
            return None
        sys.meta_path.remove(finder)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader  # it keeps its type, which tools look at
            exec_module = loader.exec_module

            def exec_and_change(module: ModuleType) -> None:
                exec_module(module)
                change(module)

            loader.exec_module = exec_and_change
        return spec

    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)
