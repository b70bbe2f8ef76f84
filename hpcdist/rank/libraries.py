"""Gives libraries in a rank the state of a fresh process, and the run of their tracker.

The forkserver imports libraries once, so that all ranks of a node, in all attempts, begin with
copies of one state. What a fresh process would have of its own, a rank gets here: random states, a
key, a rank. Nothing is imported for it: what is not in sys.modules will be fresh when it is
imported.

By variables, a script's own wandb and MLflow go on in the same run after a restart. wandb knows a
run by the id that WANDB_RUN_ID gives it (docs.wandb.ai, environment variables). A script may log on
every rank, and two writers of one run would mix theirs: each rank has an id of its own, in one
group. MLflow gives ids itself, and refuses MLFLOW_RUN_ID where there is no such run. So runs that a
script makes get tags (MLFLOW_RUN_CONTEXT), by which a later attempt finds that of rank 0. What the
user has set stays.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import Any

from hpcdist.machine.command import python_command

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
"""Module whose function rank_zero_only remembers the rank of its process, and the variable."""

_FIND_LIMIT_S = 20.0
_RUN_TAG, _RANK_TAG = "hpcdist.script_of", "hpcdist.rank"
_FIND = f"""
import mlflow
query = "tags.`{_RUN_TAG}` = '%s' and tags.`{_RANK_TAG}` = '0'" % sys.argv[1]
newest = ["attributes.start_time DESC"]
for run in mlflow.search_runs(None, query, max_results=1, order_by=newest, output_format="list",
                              search_all_experiments=True):
    print(run.info.run_id)
"""
_QUICK = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


def renew_import_state() -> None:
    """Make a rank, just forked with its environment, like a fresh process in imported modules."""
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


def tracker_variables(
    run_id: str, group: str, rank: int, before: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a rank in every attempt; `group` is the id of the sweep, or run."""
    variables: dict[str, str] = {}
    if not before.keys() & {"WANDB_RUN_ID", "WANDB_RESUME"}:
        own = run_id if rank == 0 else f"{run_id}-rank{rank}"
        variables |= {"WANDB_RUN_ID": own, "WANDB_RESUME": "allow"}
    tags = json.dumps({_RUN_TAG: run_id, _RANK_TAG: str(rank)})
    wanted = {"WANDB_RUN_GROUP": group, "MLFLOW_RUN_CONTEXT": tags}
    return variables | {name: value for name, value in wanted.items() if name not in before}


def find_mlflow_run(run_id: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable by which rank 0 goes on in the run that it made in MLflow in an earlier
    attempt; nothing where there is none, or the server does not answer at once."""
    if "MLFLOW_TRACKING_URI" not in environment or "MLFLOW_RUN_ID" in environment:
        return {}
    try:
        found = subprocess.check_output(
            python_command(_FIND, run_id),
            env={**_QUICK, **environment},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_FIND_LIMIT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    ids = re.findall(r"^[0-9a-f]{32}$", found, re.MULTILINE)
    return {"MLFLOW_RUN_ID": ids[-1]} if ids else {}
