"""Time of whole commands: those that only look beside `python -c pass`; `hpcdist summary`, with
targets in seconds for 1,000 runs on 2 CPUs; a script in the nodes that `hpcdist dev` holds.

Nothing kept: all events are read, out of the page cache, and figures kept. Warm: figures were kept
beside the runs at their end. The script in held nodes makes one step with torch; the peer is
`python script.py`. The first run is left out: what it imports is there from the second on.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from made_runs import make_runs
from sidebyside import HPCDIST, Measure, compare, parse_options, run_command, time_command

from hpcdist.entry import keep_figures
from hpcdist.runs.run import all_runs

_STEP = "import torch; torch.nn.Linear(8, 1)(torch.rand(4, 8)).sum().backward()\n"
_RENDER = "render ddp --scheduler local"
_SETTLE_S = 2.5  # what changed a moment ago is not kept


def main() -> None:
    options = parse_options(__doc__, pairs=9, runs=1000, ranks=8, windows=100)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder, runs = Path(name), Path(name) / "runs"
        make_runs(runs, num_runs=options.runs, num_ranks=options.ranks, num_windows=options.windows)
        peer = partial(time_command, [sys.executable, "-c", "pass"], folder)
        for words, at_most in (("--help", 10), ("status", 10), (_RENDER, 6)):
            compare(
                f"hpcdist {words}, {options.runs:,} runs",
                [Measure(name="time", unit="s", at_most=at_most)],
                {
                    "hpcdist": partial(time_command, [HPCDIST, *words.split()], folder),
                    "python -c pass": peer,
                },
                pairs=options.pairs,
                warms_up=True,
            )
        kept = all_runs(runs)[0].figures_file.name
        for kind, at_most, before in (
            ("nothing kept", 3, ["find", str(runs), "-name", kept, "-delete"]),
            ("warm", 0.5, ["true"]),
        ):
            for run in all_runs(runs) if kind == "warm" else ():
                keep_figures(run)
            time.sleep(_SETTLE_S)
            measures = [Measure(name="time", unit="s", at_most=at_most)]
            measures.append(Measure(name="CPU time", unit="s"))
            sides = {"hpcdist": partial(time_command, [HPCDIST, "summary"], folder, prepare=before)}
            title = f"hpcdist summary, {options.runs:,} runs, {kind}"
            compare(title, measures, sides, pairs=min(3, options.pairs))
        (folder / "script.py").write_text(_STEP)
        run_command([HPCDIST, "dev", "--local", "--set", "launch.device=cpu"], folder)
        held = [HPCDIST, "submit", "script.py", "--in", "dev"]
        commands = [("hpcdist --in dev", held), ("python", [sys.executable, "script.py"])]
        sides = {name: partial(time_command, one, folder) for name, one in commands}
        measure = Measure(name="time", unit="s", at_most=1)
        try:
            compare("a script in held nodes", [measure], sides, pairs=options.pairs, warms_up=True)
        finally:
            run_command([HPCDIST, "cancel", "dev"], folder)


if __name__ == "__main__":
    main()
