"""The benchmarks run. Their figures need a quiet machine: nothing is asserted on time."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from slurm_cluster.needs import missing_programs

FOLDER = Path(__file__).parents[2] / "perf"


def run_benchmark(name, *arguments):
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", "--pairs", "1", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        pytest.param(
            "cli", ["--runs", "6"], "hpcdist render ddp --scheduler local, pairs: 1", id="cli"
        ),
        pytest.param("recording", ["--epochs", "1"], "recording on and off", id="recording"),
        pytest.param(
            "summary",
            ["--runs", "3", "--ranks", "2", "--windows", "4"],
            "| warm |",
            id="summary",
        ),
        pytest.param(
            "fsdp",
            ["--ranks", "2", "--width", "64", "--steps", "3"],
            "model states, fullest rank",
            id="fsdp",
        ),
        pytest.param(
            "scale",
            ["--nodes", "2", "5", "--ranks", "1", "--rest", "0.1"],
            "failure known everywhere (s)",
            id="scale",
        ),
    ],
)
@pytest.mark.timeout(300)
def test_a_benchmark_runs_and_names_machine_and_versions(name, arguments, expected):
    printed = run_benchmark(name, *arguments)

    machine, *figures = printed.splitlines()
    assert "CPUs" in machine
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in machine
    assert "torch " in machine
    assert expected in "\n".join(figures)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        pytest.param(
            "submit",
            ["--peers", "sbatch", "submitit", "--points", "4"],
            [
                "hpcdist submit script.py, and sbatch, pairs: 1",
                "hpcdist submit script.py, and submitit, pairs: 1",
                "sbatch calls of the sweep: 2   <= 4: yes",
            ],
            id="submit",
        ),
        pytest.param(
            "status",
            ["--runs", "6"],
            ["6 runs, 3 of them in the queue", "calls: squeue 1, sacct 1 "],
            id="status",
        ),
        pytest.param(
            "slurm_start",
            ["--nodes", "1", "--ranks", "1"],
            ["first all-reduce on Slurm, 1 nodes x 1 ranks"],
            id="start",
        ),
    ],
)
@pytest.mark.timeout(300)
def test_a_benchmark_on_slurm_boots_its_own_and_leaves_nothing(name, arguments, expected, missing):
    if lacking := missing_programs():
        missing(lacking)

    printed = run_benchmark(name, *arguments)

    for text in expected:
        assert text in printed


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
