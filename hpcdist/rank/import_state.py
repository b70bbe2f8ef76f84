"""State that libraries set up when they are imported, renewed in each rank.

The forkserver imports libraries once, so that all ranks of a node, in all attempts, begin with
copies of one state. What a fresh process would have of its own, a rank gets here, in one place:
random states, keys, and what a library computed from the environment or the CPUs of its process.
Nothing is imported for it: what is not in sys.modules will be fresh when it is imported.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from operator import attrgetter
from typing import Any

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
