"""The ranks of scripts/all_reduces.py: starting them by hpcdist or by torchrun, hearing of them."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import HPCDIST, SCRIPTS, TORCHRUN, Commands, started

SCRIPT = str(SCRIPTS / "all_reduces.py")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many ranks, and where."""

    nodes: int
    ranks_per_node: int
    max_restarts: int = 0

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The ranks of a launch that is under way."""

    layout: Layout
    commands: Commands
    folder: Path

    def reports(self, attempt: int = 0) -> list[dict[str, Any]]:
        """Wait until every rank has done its first all-reduce; what each wrote."""
        paths = [
            self.folder / f"attempt-{attempt}-rank-{rank}.json"
            for rank in range(self.layout.world_size)
        ]
        self.commands.wait_for(paths)
        return [json.loads(path.read_text()) for path in paths]

    def release(self) -> None:
        """Let the ranks finish, and wait for the commands' end."""
        (self.folder / "release").touch()
        self.commands.wait()


def hpcdist_commands(layout: Layout, folder: Path) -> list[list[str]]:
    """One command, whatever the number of nodes."""
    options = ["--nodes", layout.nodes, "--gpus", layout.ranks_per_node]
    if layout.max_restarts:
        options += ["--max-restarts", layout.max_restarts]
    runs = folder / "runs"
    return [
        [
            *(HPCDIST, "submit", SCRIPT, *map(str, options), "--local"),
            *("--runs", str(runs), "--", str(folder)),
        ]
    ]


def torchrun_commands(layout: Layout, folder: Path) -> list[list[str]]:
    """One command per node, as on a cluster."""
    options = ["--nproc-per-node", layout.ranks_per_node, "--max-restarts", layout.max_restarts]
    if layout.nodes > 1:
        options += ["--nnodes", layout.nodes, "--master-addr", "127.0.0.1"]
        options += ["--master-port", free_port()]
    places: Sequence[list[Any]] = (
        [["--node-rank", node] for node in range(layout.nodes)] if layout.nodes > 1 else [[]]
    )
    return [[TORCHRUN, *map(str, options + place), SCRIPT, str(folder)] for place in places]


LAUNCHERS = {"hpcdist": hpcdist_commands, "torchrun": torchrun_commands}
"""Side -> the commands that start a layout."""

_VARIABLES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it torchrun's restarts never come up: the second attempt reads the first one's addresses
from the store that they share. Only torchrun reads it."""


@contextlib.contextmanager
def launched(side: str, layout: Layout) -> Iterator[Ranks]:
    """Start the ranks; what is left of them at the end is killed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        commands = LAUNCHERS[side](layout, folder)
        with started(commands, folder, _VARIABLES if layout.max_restarts else None) as running:
            yield Ranks(layout=layout, commands=running, folder=folder)


def warm_up(pairs: int, sides: Iterable[str] = tuple(LAUNCHERS)) -> None:
    """Start one rank on each side, so that files come into memory and modules are compiled; not for
    a trial, which has a single pair."""
    for side in sides if pairs > 1 else ():
        with launched(side, Layout(nodes=1, ranks_per_node=1)) as ranks:
            ranks.reports()
            ranks.release()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
