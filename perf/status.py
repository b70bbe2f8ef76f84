"""Time of `hpcdist status` and `hpcdist runs` with 1,000 runs on Slurm that have no verdict.

Half of them are in the queue, as an array that is held; Slurm has never heard of the others. The
commands that hpcdist asks Slurm with are recorded first, and counted; then they are called bare, in
turns with hpcdist: what is left of the time is hpcdist's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from commands import HPCDIST
from made_runs import make_submitted_runs
from sidebyside import Figures, Measure, compare, option_parser, print_machine
from testcluster import Site, booted

_COMMANDS = ("squeue", "sacct", "scontrol", "sinfo", "sbatch")
_OVER_SLURM = Measure(name="over Slurm's own", unit="s", at_most=1.0, by_difference=True)
_JOB = "queued"
_UNKNOWN_ID = 40_000_000
"""No cluster that was booted a moment ago has come so far."""


def queue_array(site: Site, number: int) -> list[str]:
    """The ids of as many jobs that wait."""
    words = ("--parsable", f"--job-name={_JOB}", f"--array=0-{number - 1}", "--wrap=true")
    first = site.run("sbatch", *words).strip()
    return [f"{first}_{index}" for index in range(number)]


def time_commands(site: Site, commands: Sequence[Sequence[str]]) -> Figures:
    return {_OVER_SLURM.name: sum(site.time(*command) for command in commands)}


def measure(site: Site, verb: str, *, pairs: int) -> None:
    """One command of hpcdist against what it asks Slurm with."""
    command = (HPCDIST, verb)
    recorded, calls = site.recording(_COMMANDS)
    recorded.run(*command)
    asked = [call.argv for call in calls()]
    sides = {"hpcdist": [command], "Slurm's own": asked}
    compare(
        f"hpcdist {verb}",
        [_OVER_SLURM],
        {side: partial(time_commands, site, commands) for side, commands in sides.items()},
        pairs=pairs,
        warms_up=True,
    )
    counts = Counter(argv[0] for argv in asked)
    shown = ", ".join(f"{name} {number}" for name, number in counts.items())
    met = counts["squeue"] == 1 and counts["sacct"] <= 1 and counts.keys() <= {"squeue", "sacct"}
    print(f"  calls: {shown}   squeue 1, sacct <= 1: {'yes' if met else 'NO'}")


def main() -> None:
    parser = option_parser(__doc__, pairs=5)
    parser.add_argument("--runs", type=int, default=1000, help="default: %(default)s")
    options = parser.parse_args()
    print_machine()
    with booted() as site:
        site.hold_jobs()
        queued = queue_array(site, options.runs // 2)
        unknown = [str(_UNKNOWN_ID + index) for index in range(options.runs - len(queued))]
        runs = site.folder / "runs"
        make_submitted_runs(runs, scheduler="slurm", jobs=[(_JOB, one) for one in queued + unknown])
        print(f"{options.runs} runs, {len(queued)} of them in the queue")
        for verb in ("status", "runs"):
            measure(site, verb, pairs=options.pairs)
        site.cancel_jobs()


if __name__ == "__main__":
    main()
