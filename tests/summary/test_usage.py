"""What runs used and cost, from samples of known content."""

import io

import msgspec
import pytest

from hpcdist.runs.run import Run
from hpcdist.runs.spec import Accounting
from hpcdist.runs.verdict import Beginning, Verdict
from hpcdist.summary import print_summary, summarize
from hpcdist.summary.figures.series import CPUS_BUSY, GPU_BUSY, MOST_NODES
from hpcdist.summary.report.pictures.catalogue import find_pictures
from hpcdist.summary.report.report import make_sections
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


def gpu(utilization, *, memory=GIB, power_w=100.0, energy_j=1000.0, throttled=0.0):
    return {
        "utilization": utilization,
        "memory_bytes": memory,
        "power_w": power_w,
        "throttled": throttled,
        "energy_j": energy_j,
    }


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
    assert (cost.held_s, cost.source, cost.num_gpus) == (720.0, "events", 2)
    assert cost.gpu_hours == pytest.approx(0.4)
    assert (cost.cpu_hours, cost.lost_s, cost.waiting_share) == (None, None, None)


def test_cpu_hours_stand_in_where_there_is_no_gpu(make_run, events):
    cost = summary_of(attempt_of(make_run, events, device="cpu", end_s=2800.0)).runs[0].cost
    assert (cost.gpu_hours, cost.num_cpus, cost.cpu_hours) == (None, 2, 1.0)


def test_the_schedulers_word_on_the_time_overrules(make_run, events):
    run = attempt_of(make_run, events)
    books = Accounting(job_id="1", state="COMPLETED", elapsed_s=3600.0, queue_wait_s=1200.0)
    cost = summary_of(run, accounting={run.id: books}).runs[0].cost
    assert (cost.held_s, cost.source, cost.gpu_hours) == (3600.0, "accounting", 2.0)
    assert cost.waiting_share == 0.25


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
    assert (cost.held_s, cost.lost_s) == (held_s, lost_s and pytest.approx(lost_s))
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
    assert found.cost.lost_s == found.lost_time_s
    assert 10 * found.parts_s["restarts"] == pytest.approx(found.lost_time_s)


def printed(summary):
    file = io.StringIO()
    print_summary(summary, make_console(file), details=True)
    return file.getvalue()


def test_the_table_has_the_columns_that_some_run_fills(make_run, events):
    run = attempt_of(make_run, events, end_s=1720.0)
    write(run, [begin(gpus=1), window(1010.0, gpus=[gpu(0.5, energy_j=7200.0)])])
    bare = make_run("bare", gpus=1)
    books = Accounting(job_id="1", state="COMPLETED", queue_wait_s=300.0, max_rss_bytes=3 * GIB)
    text = printed(summary_of(run, bare, accounting={run.id: books}))
    _, _, table = text.partition("Resources")
    rows = [line.split() for line in table.splitlines() if line.startswith(("1", "2"))]
    dashes, full = sorted(rows, key=lambda row: row[1] != "-")
    assert set(dashes[1:]) == {"-"}
    assert full[1:] == [
        *("5.0", "12.0", "0.400", "50", "1,024", "100", "2.00"),
        *("1.0", "of", "2", "3,072"),
    ]
    assert "restarts" not in table
    assert "Wh" in table


def test_the_picture_has_a_line_per_node_on_the_nodes_own_clock(make_run, series_of):
    run = make_run("far", nodes=2)
    for node, begin_s in enumerate((1000.0, 91_000.0)):
        windows = [window(begin_s + 10 * n, gpus=[gpu(0.5), gpu(0.7)]) for n in (1, 2)]
        write(run, [begin(node, begin_s=begin_s, gpus=2), *windows], node=node)
    write(run, [begin(0, begin_s=1050.0, gpus=2), window(1060.0, gpus=[gpu(0.1)])], attempt=1)
    found = series_of(run).usage
    for panel in (GPU_BUSY, CPUS_BUSY):
        assert [line.name for line in found.panels[panel]] == ["node 0", "node 1"]
    first, second = found.panels[GPU_BUSY]
    assert second.times_s == [5.0, 15.0]
    assert second.values == pytest.approx([60.0, 60.0])
    assert first.times_s[:2] + first.times_s[3:] == [5.0, 15.0, 55.0]
    assert first.values[2] != first.values[2]  # a gap


def test_a_node_that_came_in_later_is_drawn_from_then_on(make_run, series_of):
    run = make_run("lost", nodes=2)
    for attempt, begin_s in enumerate((1000.0, 1100.0)):
        write(run, [begin(0, begin_s=begin_s), window(begin_s + 10)], attempt=attempt)
    write(run, [begin(7, begin_s=500.0), window(510.0)], node=7, attempt=1)
    lines = {line.name: line for line in series_of(run).usage.panels[CPUS_BUSY]}
    assert lines["node 7"].times_s == [105.0]


@pytest.mark.parametrize("num_nodes", [1, 7, 70])
def test_of_many_nodes_the_picture_has_the_range(make_run, series_of, num_nodes):
    run = make_run("many", nodes=num_nodes)
    for node in range(num_nodes):
        windows = [window(1000.0 + 10 * n, cpus_busy=node, gpus=[gpu(0.5)]) for n in (1, 2)]
        write(run, [begin(node, gpus=1), *windows], node=node)
    lines = series_of(run).usage.panels[CPUS_BUSY]
    is_range = num_nodes > MOST_NODES
    ends = [0, num_nodes - 1] if is_range else range(num_nodes)
    assert [line.values for line in lines] == [[end, end] for end in ends]
    assert all(line.times_s == [5.0, 15.0] for line in lines)
    pictures = {one.name: one for _, one in find_pictures(make_sections(summary_of(run)))}
    figure = pictures["many-usage"].draw()
    assert len(figure.axes) == 3
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert len(names) == (1 if is_range else num_nodes if num_nodes > 1 else 0)
    assert len(figure.axes[-1].lines) == (0 if is_range else num_nodes)


def test_a_run_without_samples_has_no_picture_of_them(make_run, series_of):
    run = make_run("bare")
    assert series_of(run).usage is None
    assert list(find_pictures(make_sections(summary_of(run)))) == []
    assert Run(run.path).usage_files() == []


def test_a_failed_runs_time_ends_with_its_verdict(make_run, events):
    verdict = Verdict(kind="exit", state="failed", message="m", exit_code_of_run=1, time_s=1360.0)
    run = make_run("failed", verdict=verdict)
    events.write(run, 0, [events.start(0, world_size=1, device="cuda:0", time_s=1000.0)])
    assert summary_of(run).runs[0].cost.gpu_hours == pytest.approx(0.1)


def test_flops_and_energy_are_of_a_sample_and_held_against_all_devices(make_run, events):
    run = make_run("one", gpus=2)
    for rank in range(2):
        told = {"event": "flops", "per_sample": 3e9, "precision": "fp32"}
        start = events.start(rank, world_size=2)
        events.write(run, rank, [start, *events.steady([100.0] * 5), told])
    node = begin(gpus=1)
    node["gpus"][0]["name"] = "NVIDIA A100-SXM4-80GB"
    write(run, [node, window(1010.0, gpus=[gpu(0.5, energy_j=1000.0)])])
    (found,) = summary_of(run).runs
    assert found.flops.per_s == pytest.approx(200 * 3e9)
    assert found.flops.utilization == pytest.approx(200 * 3e9 / 19.5e12)
    assert found.energy_per_sample_j == pytest.approx(1000 / 10 / 200)
