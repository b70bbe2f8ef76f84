"""What runs used and cost, from samples of known content."""

import msgspec
import pytest

from hpcdist.runs.spec import Accounting
from hpcdist.summary import summarize

GIB = 2**30


def begin(node=0, *, begin_s=1000.0, host=None, cpus=(0, 1), gpus=0, **fields):
    facts = [
        {"uuid": f"GPU-{node}-{index}", "name": "H", "memory_bytes": 80 * GIB}
        for index in range(gpus)
    ]
    return {
        "event": "node",
        "time_s": begin_s,
        "begin_s": begin_s,
        "node": node,
        "host": host or f"host{node}",
        "cpus": list(cpus),
        "num_cpus": len(cpus),
        "gpus": facts,
        **fields,
    }


def window(end_s, *, wall_s=10.0, cpus_busy=1.0, gpus=()):
    return {
        "event": "usage",
        "time_s": end_s,
        "wall_s": wall_s,
        "cpus_busy": cpus_busy,
        "gpus": list(gpus),
    }


def gpu(utilization):
    return {"utilization": utilization, "memory_bytes": GIB}


def write(run, events, *, node=0, attempt=0, torn=b""):
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    run.usage_file(node, attempt).write_bytes(lines + torn)


def summary_of(*runs, **options):
    return summarize(list(runs), {}, **options)


def test_cpus_that_simulated_nodes_share_count_once(make_run):
    run = make_run("shared", nodes=2)
    for node in range(2):
        write(run, [begin(node, host="here", cpus=[0, 1]), window(1010.0)], node=node)
    assert summary_of(run).runs[0].usage.num_cpus == 2.0


def test_torn_and_odd_samples_are_left_out_and_told(make_run):
    run = make_run("odd")
    odd = window(1020.0) | {"wall_s": -1.0}
    write(run, [begin(), window(1010.0), odd], torn=b'{"event":"usa')
    found = summary_of(run)
    assert found.runs[0].usage.sampled_s == 10.0
    told = " ".join(found.skipped)
    assert "node-00000.jsonl: 1 torn line skipped" in told
    assert "1 event skipped" in told


def attempt_of(make_run, events, *, device="cuda:0", end_s=1100.0):
    run = make_run(device, gpus=2, verdict=None)
    for rank in range(2):
        start = events.start(rank, world_size=2, device=device, time_s=1000.0, cpus=[rank])
        events.write(run, rank, [start, events.end(time_s=end_s + 10_000 * rank)])
    return run


def test_hours_are_the_devices_times_the_time_by_one_nodes_clock_or_the_schedulers(
    make_run, events
):
    run = attempt_of(make_run, events, end_s=1720.0)
    cost = summary_of(run).runs[0].cost
    assert (cost.held_s, cost.cpu_hours, cost.lost_share) == (720.0, None, None)
    assert cost.gpu_hours == pytest.approx(0.4)
    books = Accounting(job_id="1", state="COMPLETED", elapsed_s=3600.0, queue_wait_s=1200.0)
    cost = summary_of(run, accounting={run.id: books}).runs[0].cost
    assert (cost.held_s, cost.gpu_hours) == (3600.0, 2.0)
    cost = summary_of(attempt_of(make_run, events, device="cpu", end_s=2800.0)).runs[0].cost
    assert (cost.gpu_hours, cost.cpu_hours) == (None, 1.0)


def test_flops_are_of_a_sample_and_held_against_all_devices_of_the_newest_attempt(make_run, events):
    run = make_run("one", gpus=2)
    for rank in range(2):
        told = {"event": "flops", "per_sample": 3e9, "precision": "fp32"}
        start = events.start(rank, world_size=2)
        events.write(run, rank, [start, *events.steady([100.0] * 5), told])
    for attempt in range(2):
        node = begin(gpus=1)
        node["gpus"][0] = {"uuid": f"GPU-{attempt}", "name": "NVIDIA A100-SXM4-80GB"}
        write(run, [node, window(1010.0, gpus=[gpu(0.5)])], attempt=attempt)
    (found,) = summary_of(run).runs
    assert found.flops.per_s == pytest.approx(200 * 3e9)
    assert found.flops.utilization == pytest.approx(200 * 3e9 / 19.5e12)
