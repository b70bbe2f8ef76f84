"""Time from SIGKILL of one of 4 nodes of 2 ranks to the next step of the others, and the samples of
the epoch that count twice or never: those of steps that a checkpoint has, or that came after it.

`hpcdist submit` with launch.min_nodes=1 against `torchrun --nnodes=1:4`, both on this machine.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from sidebyside import (
    HPCDIST,
    SCRIPTS,
    TORCHRUN,
    Figures,
    Measure,
    compare,
    parse_options,
    user_environment,
)

from hpcdist.machine.process import descendants, send_signal

_LIMIT_S, _KILLED = 240.0, 3


def start(side: str, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start 4 nodes, for which torchrun has a process each, in a folder with the script alone."""
    shutil.copy(SCRIPTS / "elastic_steps.py", folder / "steps.py")
    environment = user_environment() | {
        "HPCDIST_RUNS": str(folder / "runs"),
        "OMP_NUM_THREADS": "1",
    }
    environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = [HPCDIST, "submit", "steps.py", "--local", "--wait", "--nodes=4", "--gpus=2"]
    each = [[*words, "--set=launch.min_nodes=1", "--", "."]]
    if side == "torchrun":
        with socket.create_server(("127.0.0.1", 0)) as free:
            at = f"--rdzv-endpoint=127.0.0.1:{free.getsockname()[1]}"
        words = [TORCHRUN, "--rdzv-backend=c10d", "--nnodes=1:4", at]
        words += ["--nproc-per-node=2", "--max-restarts=3"]
        hosts = [f"--rdzv-conf=is_host={int(node == 0)}" for node in range(4)]
        each = [[*words, host, "steps.py", "."] for host in hosts]
    with (folder / "output").open("wb") as output:
        to: dict[str, Any] = {"stdout": output, "stderr": output, "cwd": folder, "env": environment}
        return [subprocess.Popen(one, **to) for one in each]


def lines(folder: Path, *sizes: int) -> list[dict[str, Any]]:
    """Return what all ranks of worlds of these sizes have written, one line per step."""
    paths = [path for size in sizes for path in folder.glob(f"steps-{size}-*.jsonl")]
    texts = [path.read_text().rpartition("\n")[0] for path in paths]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def wait(folder: Path, size: int, *, num_lines: int) -> float | None:
    """Return when a rank of a world of this size took its first step; None: not in time."""
    deadline = time.monotonic() + _LIMIT_S
    while len(found := lines(folder, size)) < num_lines:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    return float(min(one["time_s"] for one in found))


def measure(side: str) -> Figures:
    """Lose one node, and count the samples of the whole epoch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nodes = start(side, folder)
        wait(folder, 8, num_lines=8 * 12)
        pid = nodes[_KILLED % len(nodes)].pid
        for file in folder.glob(f"runs/*/launch/agent-*{_KILLED}.json"):
            pid = json.loads(file.read_text())["process"]["pid"]
        killed_s = time.time()
        for one in [pid, *descendants(pid)]:
            send_signal(one, signal.SIGKILL)
        stepped_s = wait(folder, 6, num_lines=1)
        for node in nodes:
            with suppress(subprocess.TimeoutExpired):
                node.wait(180 if stepped_s else 1)
            for one in [node.pid, *descendants(node.pid)]:
                send_signal(one, signal.SIGKILL)
            node.wait()
        begin = max((one["from"] for one in lines(folder, 6)), default=0)
        kept = [*lines(folder, 6), *(one for one in lines(folder, 8) if one["step"] < begin)]
        counts = Counter(sample for one in kept for sample in one["samples"])
        twice, time_s = sum(n > 1 for n in counts.values()), (stepped_s or math.inf) - killed_s
        return {"to the next step": time_s, "twice": twice, "never": 12800 - len(counts)}


if __name__ == "__main__":
    pairs = parse_options(__doc__, pairs=3).pairs
    names = ("to the next step", "twice", "never")
    measures = [Measure(name=name, unit="s or samples", by_difference=True) for name in names]
    sides = {side: partial(measure, side) for side in ("hpcdist", "torchrun")}
    compare("4 nodes x 2 ranks, node 3 killed", measures, sides, pairs=pairs)
