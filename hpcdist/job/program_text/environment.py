"""The environment of a program that is read: what is set in it, as far as that can be known."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdist.job.program_text.events import Change, Trace
from hpcdist.job.program_text.folding import UNKNOWN

OF_EACH_RANK = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("NODE_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("PL_TRAINER_DEVICES", "PL_TRAINER_NUM_NODES", "TORCHELASTIC_USE_AGENT_STORE"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        *("TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "HPCDIST_RUN_DIR"),
    )
)
"""Variables that a rank gets when it is forked: there in every rank, each with a value of its
own."""


class Environment:
    """os.environ of a program, on top of that of the process in which it begins."""

    def __init__(self, base: Mapping[str, str], trace: Trace) -> None:
        self._base = base
        self._trace = trace
        self._changed: dict[str, Any] = {}
        self._is_any_changed = False

    def has(self, name: Any) -> Any:
        """Whether a variable is set; UNKNOWN where that is."""
        if not isinstance(name, str) or self._is_any_changed:
            return UNKNOWN
        if name in self._changed:
            value = self._changed[name]
            return UNKNOWN if value is UNKNOWN else value is not None
        return name in OF_EACH_RANK or name in self._base

    def read(self, name: Any) -> Any:
        """The value of a variable; UNKNOWN where it has none, too."""
        if not isinstance(name, str) or self._is_any_changed:
            return UNKNOWN
        if name in self._changed:
            value = self._changed[name]
            return UNKNOWN if value is None else value
        if name in OF_EACH_RANK:
            return UNKNOWN
        try:
            return self._base[name]
        except KeyError:
            return UNKNOWN

    def update(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Set what dict.update would, given these."""
        for values in (*args, keywords):
            if isinstance(values, dict) and "**" not in values:
                for name, value in values.items():
                    self.set(name, value)
            elif isinstance(values, list | tuple) and all(
                isinstance(pair, list | tuple) and len(pair) == len("nv") for pair in values
            ):
                for name, value in values:
                    self.set(name, value)
            else:
                self.set_any()

    def set(self, name: Any, value: Any, *, is_hidden: bool = False) -> None:
        """Set a variable, or remove it (None), for what follows."""
        known = isinstance(value, str | None) and self._trace.is_certain
        if not isinstance(name, str):
            self._is_any_changed = True
            name, known = None, False
        elif not is_hidden:
            self._changed[name] = value if known else UNKNOWN
        shown = value if known else None
        self._trace.tell(
            Change(
                name=name,
                value=shown,
                is_known=known,
                place=self._trace.place(),
                is_hidden=is_hidden,
            )
        )

    def set_default(self, name: Any, value: Any) -> None:
        """Set a variable where it is not set yet."""
        is_there = self.has(name)
        if is_there is not True:
            self.set(name, value if is_there is False else UNKNOWN)

    def set_any(self) -> None:
        """Any variable may be set, to anything."""
        self.set(UNKNOWN, UNKNOWN)

    def load_file(self, path: Any, *, is_override: bool) -> None:
        """Set what a file for python-dotenv says."""
        values = _file_values(path)
        if values is None:
            self.set_any()
            return
        for name, value in values.items():
            if is_override:
                self.set(name, value)
            else:
                self.set_default(name, value)


def _file_values(path: Any) -> dict[str, Any] | None:
    """What a file for python-dotenv says; None where that is not known."""
    if not isinstance(path, str | Path):
        return None
    if not os.path.isfile(path):
        return {}
    try:
        from dotenv import dotenv_values

        values = dotenv_values(path, interpolate=False)
    except Exception:  # noqa: BLE001 - it is not installed, or cannot read the file
        return None
    return {
        name: UNKNOWN if "$" in value else value
        for name, value in values.items()
        if value is not None
    }
