"""What runs used and cost, from samples of known content."""

import io

import msgspec
import pytest

from hpcdist.runs.spec import Accounting
from hpcdist.runs.verdict import Beginning, Verdict
from hpcdist.summary import print_summary, summarize
from hpcdist.summary.report.text import make_console

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


def test_without_samples_there_is_no_usage(make_run, events):
    run = make_run("bare")
    events.write(run, 0, [events.start(0, world_size=1), events.end()])
    write(run, [begin()], node=0)
    found = summary_of(run).runs[0]
    assert (found.usage, found.cost) == (None, None)


def attempt_of(make_run, events, *, device="cuda:0", end_s=1100.0):
    run = make_run("run", gpus=2, verdict=None)
    for rank in range(2):
        start = events.start(rank, world_size=2, device=device, time_s=1000.0, cpus=[rank])
        events.write(run, rank, [start, events.end(time_s=end_s + 10_000 * rank)])
    return run


def test_gpu_hours_are_the_gpus_times_the_time_by_one_nodes_clock(make_run, events):
    cost = summary_of(attempt_of(make_run, events, end_s=1720.0)).runs[0].cost
    assert cost.held_s == 720.0
    assert cost.gpu_hours == pytest.approx(0.4)
    assert (cost.cpu_hours, cost.lost_share) == (None, None)


def test_cpu_hours_stand_in_where_there_is_no_gpu(make_run, events):
    cost = summary_of(attempt_of(make_run, events, device="cpu", end_s=2800.0)).runs[0].cost
    assert (cost.gpu_hours, cost.cpu_hours) == (None, 1.0)


def test_the_schedulers_word_on_the_time_overrules(make_run, events):
    run = attempt_of(make_run, events)
    books = Accounting(job_id="1", state="COMPLETED", elapsed_s=3600.0, queue_wait_s=1200.0)
    cost = summary_of(run, accounting={run.id: books}).runs[0].cost
    assert (cost.held_s, cost.gpu_hours) == (3600.0, 2.0)


@pytest.mark.parametrize(
    ("spans", "held_s", "lost_s"),
    [
        pytest.param([(0, 0, 10, 100, 0)], 100, None, id="one"),
        # From the end to the next step.
        pytest.param([(0, 0, 10, 100, 0), (0, 105, 120, 200, 0)], 200, 20, id="restart"),
        # Between two lives nothing is held; the new one's begin to its first step is lost.
        pytest.param([(0, 0, 10, 100, 0), (1, 500, 515, 600, 0)], 200, 15, id="new life"),
        pytest.param(
            [(0, 0, 10, 50, 0), (0, 52, None, 60, 0), (0, 61, 65, 100, 0)], 100, 15, id="no step"
        ),
        pytest.param([(0, 0, None, 50, 0), (0, 52, None, 60, 0)], 60, None, id="never a step"),
        pytest.param([(0, 0, 10, 100, 30), (0, 105, 120, 200, 0)], 200, 50, id="noticed late"),
        pytest.param([(0, 0, 10, 100, 30), (1, 500, 515, 600, 0)], 200, 45, id="late, new life"),
    ],
)
def test_what_restarts_took_is_a_part_of_the_time_held(make_run, events, spans, held_s, lost_s):
    """Attempts: life, begin, first step, end, and how long before it the last step was."""
    run = make_run("run", verdict=None)
    step = 0
    for attempt, (life, *times) in enumerate(spans):
        begin_s, stepping_s, end_s = (None if at is None else 1000.0 + at for at in times[:3])
        made = [events.start(0, world_size=1, device="cuda:0", time_s=begin_s)]
        if stepping_s:
            worked_s = end_s - times[3]
            made.append({"event": "resume", "step": step})
            step += 10
            took_s = [(worked_s - stepping_s) / 10] * 10
            made.append(events.window(step=step, times_s=took_s, samples=1, time_s=worked_s))
        events.write(run, 0, [*made, events.end(time_s=end_s)], attempt=attempt)
        run.write_beginning(attempt, Beginning(life=life, time_s=begin_s))
    cost = summary_of(run).runs[0].cost
    lost_share = lost_s and pytest.approx(lost_s / held_s)
    assert (cost.held_s, cost.lost_share) == (held_s, lost_share)
    assert cost.gpu_hours == pytest.approx(held_s / 3600)


def test_the_time_until_a_lost_node_is_noticed_is_lost_by_all_accounts(make_run, events):
    run = make_run("lost", verdict=None)
    start = events.start(0, world_size=1)
    for attempt, begin_s in enumerate((1000.0, 2000.0)):
        steps = events.window(step=10, times_s=[1.0] * 10, samples=10, time_s=begin_s + 20)
        events.write(run, 0, [start, steps], attempt=attempt)
        run.write_beginning(attempt, Beginning(life=0, time_s=begin_s))
    lost = Verdict(
        kind="agent_lost", state="failed", message="m", exit_code_of_run=1, attempt=0, time_s=1990.0
    )
    run.write_attempt_verdict(lost)
    (found,) = summary_of(run).runs
    assert found.lost_time_s == (2010 - 1020) + 10
    assert found.cost.lost_share == found.lost_time_s / found.cost.held_s
    assert 10 * found.parts_s["restarts"] == pytest.approx(found.lost_time_s)


def printed(summary):
    file = io.StringIO()
    print_summary(summary, make_console(file))
    return file.getvalue()


def test_the_table_has_the_columns_that_some_run_fills(make_run, events):
    run = attempt_of(make_run, events, end_s=1720.0)
    write(run, [begin(gpus=1), window(1010.0, gpus=[gpu(0.5)])])
    bare = make_run("bare", gpus=1)
    books = Accounting(job_id="1", state="COMPLETED", queue_wait_s=300.0, max_rss_bytes=3 * GIB)
    text = printed(summary_of(run, bare, accounting={run.id: books}))
    _, _, table = text.partition("Resources")
    rows = [line.split() for line in table.splitlines() if line.startswith(("1", "2"))]
    dashes, full = sorted(rows, key=lambda row: row[1] != "-")
    assert set(dashes[1:]) == {"-"}
    assert full[1:] == [
        *("300.0", "12.0", "0.400", "50", "1,024"),
        *("1.0", "2"),
    ]
    assert "restarts" not in table


def test_a_failed_runs_time_ends_with_its_verdict(make_run, events):
    verdict = Verdict(kind="exit", state="failed", message="m", exit_code_of_run=1, time_s=1360.0)
    run = make_run("failed", verdict=verdict)
    events.write(run, 0, [events.start(0, world_size=1, device="cuda:0", time_s=1000.0)])
    assert summary_of(run).runs[0].cost.gpu_hours == pytest.approx(0.1)


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
