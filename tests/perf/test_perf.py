"""The runs that perf/ makes are whole, and ranks ask the file system few things."""

import shutil
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "perf"


def test_bulk_made_runs_are_whole_to_the_summary(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from made_runs import make_runs

    from hpcdist.monitor.states import run_states
    from hpcdist.runs.run import all_runs
    from hpcdist.summary import summarize

    make_runs(tmp_path / "runs", num_runs=3, num_ranks=2, num_windows=4)

    runs = all_runs(tmp_path / "runs")
    summary = summarize(runs, run_states(runs))
    assert summary.skipped == []
    assert [run.state for run in summary.runs] == ["done"] * 3
    assert all(run.world_size == 2 and run.samples_per_s.mean > 0 for run in summary.runs)


def test_a_rank_asks_the_file_system_few_things_and_other_agents_none_while_it_steps(
    missing, monkeypatch
):
    if shutil.which("strace") is None:
        missing("strace is not installed")
    monkeypatch.syspath_prepend(FOLDER)
    import metadata

    trace, _ = metadata.measure(nodes=2, ranks=2, length_s=2)

    whose = metadata.owners(trace)
    rank, _, other, *_ = metadata.OWNERS
    before, after = Counter(), Counter()
    for one in trace.operations:
        if one.time_s < trace.over_s:
            counts = before if one.time_s < trace.began_s else after
            counts[whose.get(one.pid), one.kind] += 1
    of_ranks = {kind: count for (owner, kind), count in before.items() if owner == rank}
    of_other = {kind: count for (owner, kind), count in before.items() if owner == other}
    assert of_ranks == {"create": 4 * 2, "fstat": 4 * 3}  # of its log and of its events
    assert 0 < sum(of_other.values()) - of_other["fstat"] - of_other["wait"] <= 35
    assert [key for key in after if key[0] in {rank, other}] == []
