"""One training, by `hpcdist submit` or by a script under torchrun, and its figures.

Both sides give the wall time of each epoch's training steps on each rank, data included,
evaluation and checkpoints not. The slowest rank's time counts; the first epoch is left out. The
throughput is that of the epoch in the middle, which bursts of other load on the machine do not
reach; over all epochs it is given too.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

from commands import HPCDIST, SCRIPTS, TORCHRUN, BenchmarkError, started
from sidebyside import Figures

from hpcdist.job.load import load_job
from hpcdist.job.spec import TrainJob
from hpcdist.machine.cpus import threads_per_rank, usable_cpus
from hpcdist.runs.events import read_events
from hpcdist.runs.run import all_runs


def share_of_threads(ranks: int) -> int:
    """Threads per rank where all ranks share this machine's CPUs evenly."""
    return threads_per_rank(len(usable_cpus()), ranks)


def by_hpcdist(ranks: int, epochs: int, *, threads: int, job: str = "ddp") -> Figures:
    """Train by `hpcdist submit JOB` with `threads` per rank."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        runs = folder / "runs"
        command = [HPCDIST, "submit", job, "--gpus", str(ranks), "--local", "--runs", str(runs)]
        for setting in (f"train.epochs={epochs}", f"train.num_threads={threads}"):
            command += ["--set", setting]
        command_time_s = _run_to_end(command, folder)
        (run,) = all_runs(runs)
        events = [read_events(path) for _, _, path in run.event_files()]
    windows = [event for rank in events for event in rank if event["event"] == "steps"]
    samples = sum(window["samples"] for window in windows) // epochs
    times_s = [
        [event["epoch_time_s"] for event in rank if event["event"] == "epoch"] for rank in events
    ]
    return _figures(times_s, samples, command_time_s)


def by_script(
    ranks: int, epochs: int, *, threads: int, lean: bool = False, script: str = "plain_ddp.py"
) -> Figures:
    """Train by a script of scripts/ under torchrun, with the settings of the job `ddp`."""
    job = load_job("ddp").job
    assert isinstance(job, TrainJob)
    options = {
        "epochs": epochs,
        "batch-size": job.train.batch_size,
        "lr": job.train.lr,
        "save-every": job.checkpoint.every_epochs or epochs,
    }
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        command = [TORCHRUN, "--nproc-per-node", str(ranks), str(SCRIPTS / script), name]
        command += [text for key, value in options.items() for text in (f"--{key}", str(value))]
        command += ["--lean"] if lean else []
        begin_s = time.monotonic()
        try:
            command_time_s = _run_to_end(command, folder, {"OMP_NUM_THREADS": str(threads)})
        except BenchmarkError:
            # With torch 2.15 a rank that is done now and then aborts while the interpreter ends
            # ("terminate called without an active exception"): its results are there and count.
            if len(list(folder.glob("rank-*.json"))) < ranks:
                raise
            command_time_s = time.monotonic() - begin_s
        results = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    times_s = [result["epoch_times_s"] for result in results]
    return _figures(times_s, results[0]["train_samples"], command_time_s)


def _run_to_end(command: list[str], folder: Path, variables: dict[str, str] | None = None) -> float:
    with started([command], folder, variables) as running:
        running.wait()
        return time.monotonic() - running.begin_s


def _figures(times_s: list[list[float]], train_samples: int, command_time_s: float) -> Figures:
    """`times_s`: of each rank, of each epoch."""
    slowest_s = [max(times) for times in zip(*times_s, strict=True)][1:]
    return {
        "throughput": train_samples / statistics.median(slowest_s),
        "throughput, all epochs": len(slowest_s) * train_samples / sum(slowest_s),
        "whole command": command_time_s,
    }
