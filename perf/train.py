"""Training by `hpcdist submit` beside hand-written scripts under torchrun, and fsdp beside ddp.

ddp and lightning: the same model, data, batch, optimizer, schedule and threads on both sides, see
scripts/plain_ddp.py and scripts/plain_lightning.py. Each side gives the wall time of each epoch's
training steps on each rank, data included, evaluation and checkpoints not. The slowest rank's time
counts; the first epoch is left out. The throughput is that of the epoch in the middle, which bursts
of other load on the machine do not reach.

fsdp: memory and time of an MLP whose weights are most of what a rank holds, on ranks that share
this machine's CPUs: the times tell what cutting up costs where communication goes through memory.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping
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
    run_command,
)

from hpcdist.job.load import load_job
from hpcdist.job.spec import TrainJob
from hpcdist.machine.cpus import threads_per_rank, usable_cpus
from hpcdist.runs.events import read_events
from hpcdist.runs.run import all_runs


def run_job(job: str, ranks: int, settings: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Run a job to its end on one node; the events of each rank."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        command = [HPCDIST, "submit", job, "--gpus", str(ranks), "--local", "--runs", name]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        run_command(command, Path(name), {"PYTHONPATH": str(SCRIPTS)})
        (run,) = all_runs(Path(name))
        return [read_events(path) for _, _, path in run.event_files()]


def by_hpcdist(job: str, ranks: int, threads: int, epochs: int) -> Figures:
    """Train by `hpcdist submit JOB`."""
    recorded = run_job(job, ranks, {"train.epochs": epochs, "train.num_threads": threads})
    samples = sum(one["samples"] for rank in recorded for one in rank if one["event"] == "steps")
    times_s = [
        [one["epoch_time_s"] for one in rank if one["event"] == "epoch"] for rank in recorded
    ]
    return throughput(times_s, samples // epochs)


def by_script(script: str, ranks: int, threads: int, epochs: int) -> Figures:
    """Train by a script of scripts/ under torchrun, with the settings of the job `ddp`."""
    job = load_job("ddp").job
    assert isinstance(job, TrainJob)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        command = [TORCHRUN, "--nproc-per-node", str(ranks), str(SCRIPTS / script), name]
        command += ["--epochs", str(epochs), "--batch-size", str(job.train.batch_size)]
        command += ["--lr", str(job.train.lr)]
        command += ["--save-every", str(job.checkpoint.every_epochs or epochs)]
        try:
            run_command(command, Path(name), {"OMP_NUM_THREADS": str(threads)})
        except SystemExit:
            # With torch 2.15 a rank that is done now and then aborts while the interpreter ends
            # ("terminate called without an active exception"): its results are there and count.
            if len(list(Path(name).glob("rank-*.json"))) < ranks:
                raise
        results = [json.loads(path.read_text()) for path in Path(name).glob("rank-*.json")]
    return throughput([one["epoch_times_s"] for one in results], results[0]["train_samples"])


def throughput(times_s: list[list[float]], samples: int) -> Figures:
    """`times_s`: of each rank, of each epoch."""
    slowest_s = [max(times) for times in zip(*times_s, strict=True)]
    return {"throughput": samples / statistics.median(slowest_s[1:] or slowest_s)}


def by_strategy(strategy: str, ranks: int, width: int, steps: int) -> Figures:
    """Train the wide MLP by a strategy, and read what the ranks recorded."""
    model = {"model.name": "wide_mlp:WideMLP", "model.args": {"width": width}}
    length = {"train.max_steps": steps, "train.epochs": steps, "train.num_threads": 1}
    never = dict.fromkeys(("train.evaluate_every_epochs", "checkpoint.every_epochs"), 0)
    settings = {"strategy": strategy, **model, **length, **never, "record.window_s": 0.001}
    recorded = run_job("fsdp", ranks, settings)
    memory = [one for rank in recorded for one in rank if one["event"] == "memory"]
    windows = [[one for one in rank if one["event"] == "steps"][2:] for rank in recorded]
    steps_s = [[one["step_time_s"]["sum"] / one["steps"] for one in rank] for rank in windows]
    kinds = ("parameter", "gradient", "optimizer")
    states_mb = [sum(one[f"{kind}_bytes"] for kind in kinds) / 1e6 for one in memory]
    return {
        "model states, fullest rank": max(states_mb),
        "peak memory, fullest rank": max(rank[-1]["max_rss_bytes"] for rank in recorded) / 1e6,
        "median step, slowest rank": max(map(statistics.median, steps_s)) * 1e3,
    }


def main() -> None:
    jobs = ["ddp", "lightning", "fsdp"]
    options = parse_options(__doc__, pairs=3, jobs=jobs, epochs=40, ranks=4, width=4096, steps=8)
    cases = []
    for job, sizes, at_least in (("ddp", (1, 2, 4), 1.1), ("lightning", (2,), 1.0)):
        for ranks in sizes if job in options.jobs else ():
            # The rank's share of the CPUs, and 1.
            for threads in sorted({threads_per_rank(len(usable_cpus()), ranks), 1}):
                size = (ranks, threads, options.epochs)
                script = partial(by_script, f"plain_{job}.py", *size)
                sides = {"hpcdist": partial(by_hpcdist, job, *size), "script": script}
                measure = Measure(name="throughput", unit="samples/s", at_least=at_least)
                cases.append((f"{job}, {ranks} rank(s) of {threads} thread(s)", [measure], sides))
    if "fsdp" in options.jobs:
        size = (options.ranks, options.width, options.steps)
        sides = {strategy: partial(by_strategy, strategy, *size) for strategy in ("fsdp", "ddp")}
        measures = [
            Measure(name="model states, fullest rank", unit="MB", at_most=1.004 / options.ranks),
            Measure(name="peak memory, fullest rank", unit="MB"),
            Measure(name="median step, slowest rank", unit="ms"),
        ]
        cases.append((f"MLP of 4 x {options.width:,}, {options.ranks} ranks", measures, sides))
    for title, measures, sides in cases:
        compare(title, measures, sides, pairs=options.pairs, warms_up=True)


if __name__ == "__main__":
    main()
