"""What runs used and cost, from samples of known content."""

import msgspec
import pytest

from hpcdist.runs.spec import Accounting
from hpcdist.summary import summarize


def summary_of(*runs, **options):
    return summarize(list(runs), {}, **options)


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
        gpu = {"uuid": f"GPU-{attempt}", "name": "NVIDIA A100-SXM4-80GB"}
        node = {"event": "node", "time_s": 1.0, "begin_s": 1.0, "node": 0, "gpus": [gpu]}
        run.usage_file(0, attempt).write_bytes(msgspec.json.encode(node) + b"\n")
    (found,) = summary_of(run).runs
    assert found.flops.per_s == pytest.approx(200 * 3e9)
    assert found.flops.utilization == pytest.approx(200 * 3e9 / 19.5e12)
