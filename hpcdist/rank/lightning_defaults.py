"""Defaults of Lightning's Trainer() and Fabric() in a rank.

Without arguments both mean one node, and on CPUs one process: under torchrun each rank would then
train for itself, or fail. Here they mean the run's ranks. What the caller says stays as it is, and
so does what the user has set by Lightning's own variables. No variable is set for it, since these
would hold for every Trainer, for Fabric even against its arguments, and for child processes.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from hpcdist.rank.on_import import on_import

_CLASSES = {
    "pytorch_lightning.trainer.trainer": "Trainer",
    "lightning.pytorch.trainer.trainer": "Trainer",
    "lightning_fabric.fabric": "Fabric",
    "lightning.fabric.fabric": "Fabric",
}
"""Module -> its class that is created with `devices` and `num_nodes`."""

_ARGUMENTS = ("strategy", "devices", "num_nodes")
_AUTOMATIC = ("auto", -1, "-1")
_OWN_PROCESSES = ("spawn", "fork", "notebook")
"""In the name of a strategy that starts processes by itself, in each rank."""


def fill_in_defaults() -> None:
    """Let Trainer() and Fabric() mean the run's ranks in this process, whether their modules are
    imported already or will be."""
    on_import(dict.fromkeys(_CLASSES, _wrap_class))


def added_arguments(
    given: Mapping[str, Any], *, local_world_size: int, num_nodes: int
) -> dict[str, int]:
    """Return the devices and num_nodes to add to what a Trainer or a Fabric is given.

    LightningCLI gives every argument: a num_nodes of 1 beside automatic devices is its default.
    """
    devices = given.get("devices", "auto")
    strategy = given.get("strategy", "auto")
    # Others run on one device, or start processes by themselves.
    if isinstance(strategy, str):
        name = strategy.lower()
        uses_ranks = name != "dp" and not any(word in name for word in _OWN_PROCESSES)
    else:
        is_parallel = hasattr(strategy, "parallel_devices")
        uses_ranks = is_parallel and getattr(strategy, "_start_method", None) in {None, "popen"}
    if not uses_ranks:
        return {}
    if isinstance(devices, int | str) and devices in _AUTOMATIC:
        is_open = given.get("num_nodes", 1) in {1, "1"}
        return {"devices": local_world_size} | ({"num_nodes": num_nodes} if is_open else {})
    if "num_nodes" not in given and _count(devices) == local_world_size > 1:
        return {"num_nodes": num_nodes}
    return {}


def _count(devices: object) -> int | None:
    """Return the number of devices that a number, a list or a text names."""
    if isinstance(devices, str):
        if "," in devices:
            return len([index for index in devices.split(",") if index.strip()])
        return int(devices) if devices.strip().isdecimal() else None
    if isinstance(devices, Sequence):
        return len(devices)
    return devices if isinstance(devices, int) else None


def _wrap_class(module: ModuleType) -> None:
    kind = getattr(module, _CLASSES[module.__name__], None)
    if kind is None:  # another release
        return
    create = kind.__init__
    complete = {"Trainer": _complete_trainer, "Fabric": _complete_fabric}[kind.__name__]

    @functools.wraps(create)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - tracebacks name it
        args, kwargs = complete(type(self), args, kwargs)
        create(self, *args, **kwargs)

    kind.__init__ = __init__


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _complete_trainer(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """Return a Trainer's arguments: it takes them by position, too, and what is missing from
    PL_TRAINER_* (of a subclass: by its name)."""
    given = dict(zip(inspect.signature(kind).parameters, args, strict=False)) | kwargs
    named = {name: os.environ.get(f"PL_{kind.__name__}_{name}".upper()) for name in _ARGUMENTS}
    of_user = {name: value for name, value in named.items() if value}
    return (), given | _added(of_user | given)


def _complete_fabric(_: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """Return a Fabric's arguments: LT_* come before them."""
    named = {name: os.environ.get(f"LT_{name}".upper()) for name in _ARGUMENTS}
    of_user = {name: value for name, value in named.items() if value is not None}
    added = _added(kwargs | of_user)
    return args, kwargs if of_user.keys() & added else kwargs | added


def _added(given: Mapping[str, Any]) -> dict[str, int]:
    """Return nothing where a script has taken its process out of the run."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return {}
    sizes = [os.environ.get(name, "") for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")]
    if not all(size.isdecimal() for size in sizes):
        return {}
    return added_arguments(given, local_world_size=int(sizes[0]), num_nodes=int(sizes[1]))
