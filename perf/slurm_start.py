"""Time from the submission to Slurm to the first all-reduce of all ranks, on several nodes.

The same script by `hpcdist submit`, and by `sbatch` of a script as the tutorials have it, in which
srun starts a torchrun per node. Measured from the start of the command, which for hpcdist contains
its own work before sbatch, and from the call of sbatch. The queue is empty.

The nodes are on one machine and share its CPUs: that each imports torch takes the longer for it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from commands import HPCDIST, LIMIT_S, TORCHRUN, BenchmarkError
from ranks import SCRIPT, Layout, free_port
from sidebyside import Figures, Measure, compare, option_parser, print_machine
from testcluster import Site, booted

_ASK_AFTER_S = 10.0
_POLL_S = 0.02

_MEASURES = (
    Measure(name="from the command", unit="s", at_most=1.0),
    Measure(name="from sbatch", unit="s", at_most=1.0),
)

_TORCHRUN_SCRIPT = """#!/bin/bash
#SBATCH --job-name=ddp
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={ranks}
#SBATCH --output=torchrun-%j.log

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun {torchrun} --nnodes {nodes} --nproc-per-node {ranks} --rdzv-id "$SLURM_JOB_ID" \\
    --rdzv-backend c10d --rdzv-endpoint "$head:{port}" {script} {folder}
"""


def hpcdist_command(layout: Layout, folder: Path, reports: Path) -> tuple[str, ...]:
    size = ("--nodes", str(layout.nodes), "--gpus", str(layout.ranks_per_node))
    runs = ("--runs", str(folder / "runs"))
    return (HPCDIST, "submit", SCRIPT, *size, *runs, "--", str(reports))


def torchrun_command(layout: Layout, folder: Path, reports: Path) -> tuple[str, ...]:
    script = folder / "torchrun.sh"
    text = _TORCHRUN_SCRIPT.format(
        nodes=layout.nodes,
        ranks=layout.ranks_per_node,
        torchrun=TORCHRUN,
        port=free_port(),
        script=SCRIPT,
        folder=reports,
    )
    script.write_text(text)
    return ("sbatch", str(script))


_COMMANDS: dict[str, Callable[[Layout, Path, Path], tuple[str, ...]]] = {
    "hpcdist": hpcdist_command,
    "torchrun": torchrun_command,
}


def measure(site: Site, side: str, layout: Layout) -> Figures:
    """One job, to its end."""
    reports = site.folder / "reports"
    reports.mkdir()
    command = _COMMANDS[side](layout, site.folder, reports)
    recorded, calls = site.recording(["sbatch"])
    since_boot_s = time.time() - time.monotonic()
    begin_s = time.monotonic()
    recorded.run(*command)
    paths = [reports / f"attempt-0-rank-{rank}.json" for rank in range(layout.world_size)]
    _wait_for_reports(site, paths)
    done_s = max(json.loads(path.read_text())["done_s"] for path in paths)
    (reports / "release").touch()
    site.wait_until_empty()
    shutil.rmtree(reports)
    submitted_s = calls()[-1].time_s - since_boot_s
    return {"from the command": done_s - begin_s, "from sbatch": done_s - submitted_s}


def _wait_for_reports(site: Site, paths: Sequence[Path]) -> None:
    """Slurm is asked seldom: its answers take of the CPUs with which the job starts."""
    deadline_s = time.monotonic() + LIMIT_S
    ask_s = time.monotonic() + _ASK_AFTER_S
    while not all(path.exists() for path in paths):
        if time.monotonic() > ask_s:
            if time.monotonic() > deadline_s or not site.queue():
                logs = [path.read_text(errors="replace") for path in site.folder.rglob("*.log")]
                raise BenchmarkError("no first all-reduce; the logs:\n" + "\n".join(logs))
            ask_s += _ASK_AFTER_S
        time.sleep(_POLL_S)


def main() -> None:
    parser = option_parser(__doc__, pairs=3)
    parser.add_argument("--nodes", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=2, help="per node; default: %(default)s")
    options = parser.parse_args()
    print_machine()
    layout = Layout(nodes=options.nodes, ranks_per_node=options.ranks)
    with booted() as site:
        compare(
            f"first all-reduce on Slurm, {layout.nodes} nodes x {layout.ranks_per_node} ranks",
            _MEASURES,
            {side: partial(measure, site, side, layout) for side in _COMMANDS},
            pairs=options.pairs,
            warms_up=True,  # files come into memory, modules are compiled
        )


if __name__ == "__main__":
    main()
