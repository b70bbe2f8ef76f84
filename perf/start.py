"""Time from the command to the first all-reduce of all ranks, and the memory they take.

The same script by `hpcdist submit --local` and by torchrun: 8 ranks on one node, and on 2 simulated
nodes with 4 ranks each (2 torchruns, started at the same instant). Memory is PSS, where a page that
n processes share counts 1/n for each. Then the time from SIGKILL of one of 8 ranks to the first
all-reduce of all ranks of the next attempt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from sidebyside import (
    HPCDIST,
    LIMIT_S,
    SCRIPTS,
    TORCHRUN,
    Figures,
    Measure,
    compare,
    parse_options,
    user_environment,
)

from hpcdist.machine.memory import proportional_bytes
from hpcdist.machine.ports import candidate_ports
from hpcdist.machine.process import descendants, send_signal

_SCRIPT = str(SCRIPTS / "all_reduces.py")
_VICTIM = 3  # neither rank 0, which may serve the store, nor the last
_STORE_APART = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it torchrun's restarts never come up: the second attempt reads the first one's addresses
from the store that they share. Only torchrun reads it."""


class Launch:
    """Ranks of scripts/all_reduces.py that are under way."""

    def __init__(self, side: str, folder: Path, nodes: int, ranks: int, *, restarts: int) -> None:
        """Start `ranks` per node by hpcdist, or by one torchrun per node."""
        self.folder, self.num_ranks = folder, nodes * ranks
        if side == "hpcdist":
            size = f"--nodes {nodes} --gpus {ranks} --max-restarts {restarts}"
            start = [HPCDIST, "submit", _SCRIPT, *size.split(), "--local", "--runs", "runs", "--"]
            commands = [[*start, str(folder)]]
        else:
            size = f"--nproc-per-node {ranks} --max-restarts {restarts}"
            if nodes > 1:
                size += f" --nnodes {nodes} --master-addr 127.0.0.1"
                size += f" --master-port {candidate_ports(None)[0]} --node-rank"
            places = [[str(node)] if nodes > 1 else [] for node in range(nodes)]
            commands = [[TORCHRUN, *size.split(), *one, _SCRIPT, str(folder)] for one in places]
        environment = user_environment() | (_STORE_APART if restarts else {})
        self.begin_s = time.monotonic()
        with (folder / "output.log").open("wb") as log:
            self.processes = [
                subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
                for command in commands
            ]

    def reports(self, attempt: int = 0) -> list[dict[str, Any]]:
        """Wait until every rank has done its first all-reduce; what each wrote."""
        names = [f"attempt-{attempt}-rank-{rank}.json" for rank in range(self.num_ranks)]
        paths = [self.folder / name for name in names]
        while not all(path.exists() for path in paths):
            is_late = time.monotonic() > self.begin_s + LIMIT_S
            if is_late or any(process.poll() for process in self.processes):
                log = (self.folder / "output.log").read_text(errors="replace")
                sys.exit(f"a command failed, or takes too long:\n{log[-3000:]}")
            time.sleep(0.01)
        return [json.loads(path.read_text()) for path in paths]

    def end(self) -> None:
        """Let the ranks finish; what is left of them is killed."""
        (self.folder / "release").touch()
        for process in self.processes:
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                for pid in [*descendants(process.pid), process.pid]:
                    send_signal(pid, 9)


def measure(side: str, nodes: int, ranks_per_node: int, *, kills: bool) -> Figures:
    """One launch."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        launch = Launch(side, Path(name), nodes, ranks_per_node, restarts=int(kills))
        try:
            reports, since_s = launch.reports(), launch.begin_s
            memory_bytes = sum(proportional_bytes(report["pid"]) for report in reports)
            if kills:
                since_s = time.monotonic()
                send_signal(reports[_VICTIM]["pid"], 9)
                reports = launch.reports(attempt=1)
        finally:
            launch.end()
    all_reduce_s = max(report["done_s"] for report in reports) - since_s
    return {"first all-reduce": all_reduce_s, "memory of the ranks": memory_bytes / 1e6}


def main() -> None:
    options = parse_options(__doc__, pairs=3, ranks=8)
    for nodes, most_memory, kills in ((1, 0.15, False), (2, 0.22, False), (1, None, True)):
        measures = [
            Measure(name="first all-reduce", unit="s", at_most=0.07 if kills else 0.24),
            Measure(name="memory of the ranks", unit="PSS, MB", at_most=most_memory),
        ]
        ranks = options.ranks // nodes
        sides = ("hpcdist", "torchrun")
        compare(
            f"{nodes} node(s) x {ranks} ranks" + (", after SIGKILL of a rank" if kills else ""),
            measures,
            {side: partial(measure, side, nodes, ranks, kills=kills) for side in sides},
            pairs=options.pairs,
            warms_up=True,  # files come into memory, modules are compiled
        )


if __name__ == "__main__":
    main()
