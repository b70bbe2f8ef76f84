"""Submitting to a real Slurm on this machine beside sbatch and submitit, and `status` of its runs.

From a command's start to its end. `hpcdist submit script.py` against a bare `sbatch`, by the
difference; against scripts that use submitit, by the ratio. A sweep of points in two sizes against
as many bare sbatch calls. `status` of runs that have no verdict, of which half are in the queue and
Slurm has never heard of the others, against one squeue and one sacct. The partition is down: no job
runs beside what is measured.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from made_runs import submitted_run
from sidebyside import HPCDIST, Measure, compare, parse_options, run_command, time_command

_SUBMIT = [HPCDIST, "submit", "script.py", "--set", "launch.device=cpu"]
_SUBMITIT_SCRIPT = """
import importlib, sys, submitit
for module in sys.argv[1:]:  # such as torch, in a script that holds the training it submits
    importlib.import_module(module)
executor = submitit.AutoExecutor(folder="submitit")
executor.update_parameters(timeout_min=10, nodes=1, tasks_per_node=1, slurm_partition="main")
executor.submit(print, "trained")
"""
_BATCH_SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=1\nsrun python script.py\n"
_UNKNOWN_ID = 40_000_000
"""No cluster that was booted a moment ago has come so far."""


@contextlib.contextmanager
def booted(folder: Path) -> Iterator[dict[str, str]]:
    """Boot the cluster of the tests, which starts no job; yields its users' variables. Ends the
    program, with success and a reason, where the machine has no Slurm."""
    tests = Path(__file__).parent.parent / "tests"
    sys.path[:0] = [str(tests / "slurm"), str(tests / "support")]
    from slurm_cluster.cluster import Cluster
    from slurm_cluster.config import missing_programs

    if lacking := missing_programs():
        print(f"skipped: {lacking}")
        sys.exit(0)
    cluster = Cluster(databases=str(folder))
    cluster.start()
    try:
        variables = {name: cluster.environment[name] for name in ("SLURM_CONF", "PATH")}
        variables["XDG_CONFIG_HOME"] = str(folder / "configuration")
        down = ["scontrol", "update", "PartitionName=main", "State=DOWN"]
        run_command(down, folder, variables)
        yield variables
    finally:
        cluster.stop()


def main() -> None:
    options = parse_options(__doc__, pairs=5, points=100, runs=1000)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, booted(Path(name)) as variables:
        folder = Path(name) / "work"
        folder.mkdir()
        (folder / "script.py").write_text("print('trained')\n")
        (folder / "script.sh").write_text(_BATCH_SCRIPT)
        (folder / "submitit_job.py").write_text(_SUBMITIT_SCRIPT)
        (folder / ".gitignore").write_text("runs/\nsubmitit/\n*.out\n")
        run = partial(run_command, folder=folder, variables=variables)
        run(["git", "init", "--quiet"])  # what is not ignored is copied, committed or not
        empty = ["scancel", f"--user={os.getuid()}"]

        def measure(measure: Measure, prepare: list[str], **commands: list[str]) -> None:
            sides = {
                side: partial(time_command, command, folder, variables, prepare)
                for side, command in commands.items()
            }
            compare(" and ".join(commands), [measure], sides, pairs=options.pairs, warms_up=True)

        over_sbatch = Measure(name="time", unit="s", at_most=0.35, by_difference=True)
        measure(over_sbatch, empty, submit=_SUBMIT, sbatch=["sbatch", "script.sh"])
        ratio = Measure(name="time", unit="s", at_most=1)
        submitit = [sys.executable, "submitit_job.py"]
        measure(ratio, empty, submit=_SUBMIT, submitit=submitit)
        measure(ratio, empty, submit=_SUBMIT, submitit_torch=[*submitit, "torch"])

        rates = ",".join(f"{index / 1000:g}" for index in range(1, options.points // 2 + 1))
        sweep = [HPCDIST, "submit", "ddp", "--sweep", f"nodes=1,2 train.lr={rates}"]
        loop = ["bash", "-c", f"for i in {{1..{options.points}}}; do sbatch script.sh; done"]
        measure(Measure(name="time", unit="s"), empty, sweep=sweep, sbatch_loop=loop)
        run(empty)

        array = f"--array=0-{options.runs // 2 - 1}"
        first = run(["sbatch", "--parsable", "--job-name=queued", array, "--wrap=true"]).strip()
        known = [f"{first}_{index}" for index in range(options.runs // 2)]
        unknown = [str(_UNKNOWN_ID + index) for index in range(options.runs - len(known))]
        for job_id in known + unknown:
            submission = {"scheduler": "slurm", "job_id": job_id, "job_name": "queued"}
            submitted_run(folder / "runs-on-slurm", 1, submission)
        status = [HPCDIST, "status", "--runs", "runs-on-slurm"]
        asked = f"squeue --array >squeue.out; sacct --jobs={','.join(unknown)} >sacct.out"
        over_slurm = Measure(name="time", unit="s", at_most=1, by_difference=True)
        measure(over_slurm, ["true"], status=status, squeue_sacct=["bash", "-c", asked])


if __name__ == "__main__":
    main()
