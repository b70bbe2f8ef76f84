"""Run directories as real runs leave them, made in bulk: for what reads many of them."""

from __future__ import annotations

import math
import os
import random
import time
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.version import versions
from hpcdist.job.load import load_job
from hpcdist.job.spec import job_to_dict
from hpcdist.rank.recorder import StepRecorder
from hpcdist.runs.events import EventWriter, NodeBegin, UsageWindow
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict

_STEPS_PER_WINDOW = 80
_STEP_TIME_S = 0.003


def make_runs(runs: Path, *, num_runs: int, num_ranks: int, num_windows: int) -> None:
    """Finished runs of the job `ddp`.

    The event files of a rank number are one file with many names (hard links): the disk holds them
    once, and whoever reads all runs reads and decodes each anew.
    """
    runs.mkdir()
    events = [runs.parent / f"{runs.name}-rank-{rank}.jsonl" for rank in range(num_ranks)]
    for rank, path in enumerate(events):
        _write_events(path, rank=rank, num_ranks=num_ranks, num_windows=num_windows)
    usage = runs.parent / f"{runs.name}-node-0.jsonl"
    writer = EventWriter(usage)
    cpus = list(range(num_ranks))
    writer.write(NodeBegin(begin_s=0.0, node=0, host="host", cpus=cpus, num_cpus=num_ranks))
    for _ in range(100):  # what the agent of a node without GPUs samples in some minutes
        writer.write(UsageWindow(time_s=0.0, wall_s=2.0, cpus_busy=0.9 * num_ranks))
    writer.close()
    verdict = Verdict(
        kind="done", state="done", message="done", exit_code_of_run=0, time_s=time.time()
    )
    for _ in range(num_runs):
        run = submitted_run(runs, num_ranks, {"scheduler": "local", "job_id": "1"})
        for rank, path in enumerate(events):
            os.link(path, run.event_file(rank))
        os.link(usage, run.usage_file(0))
        run.claim_attempt()
        run.write_verdict(verdict)


def submitted_run(runs: Path, num_ranks: int, submission: dict[str, object]) -> Run:
    """A run of the job `ddp` that a scheduler has, or had."""
    run = Run.create(runs, "ddp")
    job = load_job("ddp", overrides=[f"resources.gpus={num_ranks}"]).job
    spec = {"id": run.id, "job": job_to_dict(job), "versions": versions()}
    spec |= {"scheduler": submission["scheduler"], "created_s": time.time()}
    files.write_json(run.spec_file, spec)
    files.write_json(run.submission_file, submission | {"submitted_s": time.time()})
    return run


def _write_events(path: Path, *, rank: int, num_ranks: int, num_windows: int) -> None:
    """What a rank of a training records, by the real recorder on a clock of its own."""
    drawing, now_s = random.Random(rank), 0.0
    events = EventWriter(path)
    place = {"rank": rank, "local_rank": rank, "node": 0, "num_nodes": 1, "host": "host", "pid": 1}
    sizes = {"world_size": num_ranks, "local_world_size": num_ranks, "num_cpus": num_ranks}
    life = {"attempt": 0, "restart_count": 0, "num_threads": 1}
    events.write({"event": "start", "device": "cpu", "backend": "gloo", **place, **sizes, **life})
    recorder = StepRecorder(events, window_s=math.inf, clock=lambda: now_s)
    for epoch in range(num_windows):
        recorder.epoch = epoch
        for _ in range(_STEPS_PER_WINDOW):
            for phase in ("data_wait", "forward_backward", "exposed_communication", "optimizer"):
                now_s += _STEP_TIME_S / 4 * drawing.uniform(0.8, 1.5)
                recorder.mark(phase)
            recorder.step(samples=64, loss=1.0 / (1 + epoch))
        recorder.finish()
    done = {"epoch": num_windows, "step": recorder.step_count, "loss": 0.1}
    events.write({"event": "epoch", **done, "epoch_time_s": now_s})
    events.write({"event": "evaluate", **done, "accuracy": 0.98, "samples": 360})
    end = {"event": "end", "status": "done", "exit_code": 0, "by": "rank"}
    events.write(end | {"max_rss_bytes": 300_000_000})
    events.close()
