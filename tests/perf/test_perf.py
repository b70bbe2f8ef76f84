"""The benchmarks run. Their figures need a quiet machine: nothing is asserted on time."""

import subprocess
import sys
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
