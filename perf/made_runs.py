"""Run directories as real runs leave them, made in bulk: for what reads many of them."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcdist.agent.node import NodeFacts
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
_SAMPLES_PER_STEP = 64
_SAMPLED_EVERY_S = 2.0
_SAMPLES = 100
_RANKS_THAT_DIFFER = 16


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
    _write_usage(usage, num_cpus=num_ranks)
    spec = _spec(num_ranks)
    verdict = _done()
    for _ in range(num_runs):
        run = Run.create(runs, "ddp")
        for rank, path in enumerate(events):
            os.link(path, run.event_file(rank))
        os.link(usage, run.usage_file(0))
        run.claim_attempt()
        files.write_json(run.spec_file, spec | {"id": run.id, "created_s": time.time()})
        files.write_json(run.submission_file, {"scheduler": "local", "job_id": "1"})
        run.write_verdict(verdict)


def make_large_run(runs: Path, *, num_nodes: int, ranks_per_node: int, num_windows: int) -> Run:
    """Make a finished run of the job `ddp` on many nodes, with each file that such a run leaves.

    Ranks differ in what they say of themselves, and share the steps of a few.
    """
    runs.mkdir(exist_ok=True)
    bodies = []
    for number in range(_RANKS_THAT_DIFFER):
        path = runs.parent / f"{runs.name}-body-{number}.jsonl"
        _write_steps(EventWriter(path), number, num_windows=num_windows)
        bodies.append(path.read_bytes())
    usage = runs.parent / f"{runs.name}-usage.jsonl"
    run = Run.create(runs, "ddp")
    for node in range(num_nodes):
        address = f"10.0.{node // 256}.{node % 256}"
        agent = NodeFacts(node=node, host=f"host{node}", device="cpu", address=address)
        agent = msgspec.structs.replace(agent, master_addr="10.0.0.0", interface="ib0")
        files.write_json(run.agent_file(node), msgspec.to_builtins(agent))
        usage.unlink(missing_ok=True)
        _write_usage(usage, num_cpus=ranks_per_node, node=node)
        os.link(usage, run.usage_file(node))
        for rank in range(node * ranks_per_node, (node + 1) * ranks_per_node):
            events = EventWriter(run.event_file(rank))
            _write_start(events, rank, ranks_per_node, num_nodes=num_nodes)
            events.close()
            with run.event_file(rank).open("ab") as file:
                file.write(bodies[rank * 7919 % _RANKS_THAT_DIFFER])
            run.log_file(rank).write_text(f"hello from rank {rank}\nbye\n")
    run.claim_attempt()
    spec = _spec(ranks_per_node, num_nodes=num_nodes)
    files.write_json(run.spec_file, spec | {"id": run.id, "created_s": time.time()})
    files.write_json(run.submission_file, {"scheduler": "local", "job_id": "1"})
    run.write_verdict(_done())
    return run


def make_submitted_runs(runs: Path, *, jobs: Sequence[tuple[str, str]], scheduler: str) -> None:
    """Runs of the job `ddp` that a scheduler has, or had, under these names and ids of its own."""
    spec = _spec(1) | {"scheduler": scheduler}
    for name, job_id in jobs:
        run = Run.create(runs, "ddp")
        files.write_json(run.spec_file, spec | {"id": run.id, "created_s": time.time()})
        submission = {"scheduler": scheduler, "job_id": job_id, "job_name": name}
        files.write_json(run.submission_file, submission | {"submitted_s": time.time()})


def _write_usage(path: Path, *, num_cpus: int, node: int = 0) -> None:
    """What the agent of a node without GPUs samples in some minutes."""
    drawing = random.Random(0)
    events = EventWriter(path)
    begin = NodeBegin(
        begin_s=0.0,
        node=node,
        host=f"host{node or ''}",
        cpus=list(range(num_cpus)),
        num_cpus=num_cpus,
    )
    events.write(begin)
    for _ in range(_SAMPLES):
        busy = num_cpus * drawing.uniform(0.8, 1)
        events.write(UsageWindow(time_s=0.0, wall_s=_SAMPLED_EVERY_S, cpus_busy=busy))
    events.close()


def _done() -> Verdict:
    return Verdict(
        kind="done", state="done", message="done", exit_code_of_run=0, time_s=time.time()
    )


def _spec(num_ranks: int, *, num_nodes: int = 1) -> dict[str, object]:
    job = load_job("ddp").job
    resources = msgspec.structs.replace(job.resources, nodes=num_nodes, gpus=num_ranks)
    return {
        "job": job_to_dict(msgspec.structs.replace(job, resources=resources)),
        "versions": versions(),
    }


def _write_events(path: Path, *, rank: int, num_ranks: int, num_windows: int) -> None:
    events = EventWriter(path)
    _write_start(events, rank, num_ranks)
    _write_steps(events, rank, num_windows=num_windows)


def _write_start(
    events: EventWriter, rank: int, ranks_per_node: int, *, num_nodes: int = 1
) -> None:
    """Write what a rank says of itself before its first step."""
    node, local_rank = divmod(rank, ranks_per_node)
    events.write(
        {
            "event": "start",
            "rank": rank,
            "local_rank": local_rank,
            "node": node,
            "world_size": num_nodes * ranks_per_node,
            "local_world_size": ranks_per_node,
            "num_nodes": num_nodes,
            "attempt": 0,
            "restart_count": 0,
            "host": f"host{node or ''}",
            "pid": 1,
            "device": "cpu",
            "backend": "gloo",
            "num_threads": 1,
            "num_cpus": ranks_per_node,
        }
    )


def _write_steps(events: EventWriter, seed: int, *, num_windows: int) -> None:
    """Write what a rank of a training records, by the real recorder on a clock of its own."""
    drawing = random.Random(seed)
    now_s = 0.0
    recorder = StepRecorder(events, window_s=math.inf, clock=lambda: now_s)
    for epoch in range(num_windows):
        recorder.epoch = epoch
        for _ in range(_STEPS_PER_WINDOW):
            for phase in ("data_wait", "forward_backward", "exposed_communication", "optimizer"):
                now_s += _STEP_TIME_S / 4 * drawing.uniform(0.8, 1.5)
                recorder.mark(phase)
            recorder.step(samples=_SAMPLES_PER_STEP, loss=1.0 / (1 + epoch))
        recorder.finish()
    done = {"epoch": num_windows, "step": recorder.step_count}
    events.write({"event": "epoch", **done, "loss": 0.1, "epoch_time_s": now_s})
    events.write(
        {
            "event": "evaluate",
            **done,
            "loss": 0.1,
            "accuracy": 0.98,
            "samples": 360,
        }
    )
    events.write(
        {
            "event": "end",
            "status": "done",
            "exit_code": 0,
            "max_rss_bytes": 300_000_000,
            "by": "rank",
        }
    )
    events.close()
