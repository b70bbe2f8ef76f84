"""Time of submitting to Slurm, from the command's start to its end, beside what else submits.

`hpcdist submit script.py` against a bare `sbatch`, by the difference; against `torchx run -s slurm`
and scripts that use submitit, by the ratio. Then a sweep of 100 points in two sizes, against 100
bare sbatch calls, and the number of times that it calls sbatch.

The cluster is real, on this machine; jobs are held, so that none runs beside what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial

from commands import HPCDIST, SCRIPTS
from sidebyside import Figures, Measure, compare, option_parser, print_machine
from testcluster import Site, as_work_tree, booted
from torchx_peer import torchx_program, torchx_version

_SCRIPT = "print('trained')\n"
_BATCH_SCRIPT = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
srun python script.py
"""
_HPCDIST = (HPCDIST, "submit", "script.py", "--set", "launch.device=cpu")
_SIZES = (1, 2)
_AT_MOST_PER_SIZE = 2

_OVER_SBATCH = Measure(name="submit, over sbatch", unit="s", at_most=0.35, by_difference=True)
_SUBMIT = Measure(name="submit", unit="s", at_most=1.0)
_SWEEP = Measure(name="sweep", unit="s")


def submit(site: Site, name: str, command: Sequence[str]) -> Figures:
    """One submission."""
    figures = {name: site.time(*command)}
    site.cancel_jobs()
    return figures


def peers(names: Sequence[str]) -> dict[str, tuple[Measure, tuple[str, ...]]]:
    """What hpcdist is measured beside: the measure, and the command."""
    submitit_job = str(SCRIPTS / "submitit_job.py")
    known: dict[str, tuple[Measure, tuple[str, ...]]] = {
        "sbatch": (_OVER_SBATCH, ("sbatch", "script.sh")),
        "submitit": (_SUBMIT, (sys.executable, submitit_job)),
        "submitit+torch": (_SUBMIT, (sys.executable, submitit_job, "torch")),
    }
    if "torchx" in names and (program := torchx_program()) is not None:
        print(torchx_version(program))
        words = ("run", "-s", "slurm", "dist.ddp", "-j", "1x1", "--script", "script.py")
        known["torchx"] = (_SUBMIT, (program, *words))
    return {name: known[name] for name in names if name in known}


def compare_submissions(
    site: Site, found: Mapping[str, tuple[Measure, tuple[str, ...]]], *, pairs: int
) -> None:
    for name, (measure, command) in found.items():
        compare(
            f"hpcdist submit script.py, and {name}",
            [measure],
            {
                "hpcdist": partial(submit, site, measure.name, _HPCDIST),
                name: partial(submit, site, measure.name, command),
            },
            pairs=pairs,
            warms_up=True,
        )


def compare_sweeps(site: Site, points: int, *, pairs: int) -> None:
    """A sweep of as many learning rates as make `points` with two sizes, and a loop of sbatch."""
    rates = ",".join(f"{index / 1000:g}" for index in range(1, points // len(_SIZES) + 1))
    sizes = ",".join(map(str, _SIZES))
    sweep = (HPCDIST, "submit", "ddp", "--sweep", f"nodes={sizes} train.lr={rates}")
    loop = ("bash", "-c", f"for i in {{1..{points}}}; do sbatch script.sh; done")
    compare(
        f"hpcdist submit --sweep, {points} points in {len(_SIZES)} sizes, and as many sbatch calls",
        [_SWEEP],
        {
            "hpcdist": partial(submit, site, _SWEEP.name, sweep),
            "sbatch": partial(submit, site, _SWEEP.name, loop),
        },
        pairs=pairs,
    )
    recorded, calls = site.recording(["sbatch"])
    recorded.run(*sweep)
    submissions = [call for call in calls() if "--version" not in call.argv]
    site.cancel_jobs()
    at_most = _AT_MOST_PER_SIZE * len(_SIZES)
    met = "yes" if len(submissions) <= at_most else "NO"
    print(f"  sbatch calls of the sweep: {len(submissions)}   <= {at_most}: {met}")


def main() -> None:
    parser = option_parser(__doc__, pairs=5)
    names = ("sbatch", "torchx", "submitit", "submitit+torch")
    parser.add_argument("--peers", nargs="*", choices=names, default=names, help="default: all")
    parser.add_argument("--points", type=int, default=100, help="default: %(default)s")
    options = parser.parse_args()
    print_machine()
    found = peers(options.peers)
    with booted() as site:
        (site.folder / "script.py").write_text(_SCRIPT)
        (site.folder / "script.sh").write_text(_BATCH_SCRIPT)
        (site.folder / ".gitignore").write_text("runs/\nsubmitit/\n*.out\n")
        as_work_tree(site)
        site.hold_jobs()
        compare_submissions(site, found, pairs=options.pairs)
        compare_sweeps(site, options.points, pairs=options.pairs)


if __name__ == "__main__":
    main()
