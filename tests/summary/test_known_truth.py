"""Summaries of runs whose truth is known: cases in which they once said something else."""

import random

import msgspec
import pytest
from step_histories import Shape, make_history, write
from summary_text import in_words, only_section

from hpcdist.base.statistics import Interval, Measure
from hpcdist.base.text import interval_text, spread_text
from hpcdist.job.goal import Goal
from hpcdist.runs.events import Evaluation, EventWriter, Start, Totals, Window
from hpcdist.runs.verdict import Beginning, Verdict
from hpcdist.summary import summarize
from hpcdist.summary.compare.advice import straggler_named
from hpcdist.summary.compare.cells import common_straggler
from hpcdist.summary.figures.timing import warm_up_length
from hpcdist.summary.measuring import measure
from hpcdist.summary.report.sentences import remarks
from hpcdist.summary.values import Straggler, UsageSummary

DAY_S = 86_400.0
STEP_S = 0.1


@pytest.fixture
def stepped(record_run, events):
    """A run of windows of ten steps; the ranks wait for each other, and a function says how long a
    rank needs for a step of a window itself."""

    def make(own_s, *, ranks=8, nodes=1, num=100, name="run"):
        made = [[] for _ in range(ranks)]
        for window in range(num):
            needed_s = [own_s(rank, window) for rank in range(ranks)]
            times_s = [max(needed_s)] * 10
            for rank, own in enumerate(needed_s):
                phases = {"forward_backward": 0.8 * STEP_S, "data_wait": own - 0.8 * STEP_S}
                phases["exposed_communication"] = max(needed_s) - own
                phases = {phase: [time_s] * 10 for phase, time_s in phases.items()}
                step = 10 * (window + 1)
                made[rank].append(
                    events.window(step=step, times_s=times_s, samples=320, phases_s=phases)
                )
        ranks_made = [[*windows, events.end()] for windows in made]
        start = {"num_nodes": nodes}
        return record_run(name, *ranks_made, start=start, nodes=nodes, gpus=ranks // nodes)

    return make


def noisy(slow=(), *, more=1.2, spread=0.02, seed=0):
    """Seconds of a step by rank and window, some ranks slower."""
    draw = random.Random(seed)
    drawn = {}

    def own_s(rank, window):
        if (rank, window) not in drawn:
            drawn[rank, window] = draw.gauss(more if rank in slow else 1.0, spread)
        return STEP_S * drawn[rank, window]

    return own_s


def summary_of(run):
    return summarize([run], {}).runs[0]


# Who holds the others up.


@pytest.mark.parametrize(
    ("slow", "nodes", "named"),
    [
        ({5}, 1, "rank 5 (node 0, host host0)"),
        ({1, 6}, 1, "ranks 1 and 6"),
        ({2, 3}, 4, "all ranks of node 1 (host host1)"),
        ({2, 3, 6, 7}, 4, "all ranks of nodes 1 and 3"),
    ],
)
def test_all_slow_ranks_and_nodes_are_named_with_what_they_cost_and_the_phase(
    stepped, slow, nodes, named
):
    straggler = summary_of(stepped(noisy(slow), nodes=nodes)).straggler
    assert straggler_named(straggler) == named
    assert straggler.longer_s == pytest.approx(0.2 * STEP_S, rel=0.1)
    assert straggler.slowest_in == straggler.stretches == 20
    assert straggler.phase == "data_wait"


def test_equal_ranks_are_named_in_less_than_one_of_twenty_runs(stepped):
    runs = [stepped(noisy(spread=0.1, seed=seed), num=40, name=f"run-{seed}") for seed in range(40)]
    assert sum(run.straggler is not None for run in summarize(runs, {}).runs) <= 2


def test_a_host_that_is_slow_at_other_node_numbers_is_named(make_run):
    measured = measure(make_run("run")).run

    def run(node):
        found = Straggler(
            rank=None, node=node, host="n17", longer_s=0.1, slowest_in=9, stretches=10
        )
        figures = msgspec.structs.replace(
            measured.figures, straggler=found, hosts=["a", "b", "c", "d"]
        )
        return msgspec.structs.replace(measured, figures=figures)

    straggler = common_straggler([run(node) for node in (0, 2, 3)])
    assert straggler_named(straggler) == "all ranks of host n17"
    assert straggler.slowest_in == 27


def test_a_rank_that_pauses_now_and_then_is_told_with_how_long_and_how_often(stepped):
    steady = noisy()
    run = stepped(lambda rank, w: steady(rank, w) + (0.2 if rank == 3 and w % 5 == 2 else 0))
    assert summary_of(run).notes == ["rank 3 pauses about 2 s every 50 steps (saving, or testing?)"]


@pytest.mark.parametrize(("times", "told"), [(1.5, True), (1.05, False)])
def test_a_slow_half_of_a_run_is_told_with_the_step_at_which_it_began(stepped, times, told):
    steady = noisy()
    run = stepped(lambda rank, window: steady(rank, window) * (times if window >= 60 else 1))
    notes = summary_of(run).notes
    assert bool(notes) == told
    assert not told or notes[0].startswith("from step 600 on, steps took 1.")


# Clocks.


def test_a_day_in_the_queue_between_two_lives_is_no_lost_time_and_has_a_line(make_run, events):
    run = make_run("requeued")
    for life, begin_s in enumerate((1000.0, 1000.0 + DAY_S)):
        start = events.start(0, world_size=1) | {"time_s": begin_s}
        # It starts for 5 s, steps for 100 s, and ends 1 s later.
        window = events.window(
            step=100 * (life + 1), times_s=[1.0] * 100, samples=100, time_s=begin_s + 105
        )
        resume = [{"event": "resume", "step": 100}] if life else []
        end = events.end() | {"time_s": begin_s + 106}
        events.write(run, 0, [start, *resume, window, end], attempt=life)
        run.write_beginning(life, Beginning(life=life, time_s=begin_s))
    found = summary_of(run)
    assert found.lost_time_s == pytest.approx(1 + 5)
    assert found.waited_s == pytest.approx(DAY_S - 106)
    assert found.cell.shares["restarts"] == pytest.approx(6 / 206)
    assert found.cost.lost_share == found.lost_time_s / found.cost.held_s
    assert "6.0 s lost; 86,294.0 s in the queue between" in " ".join(remarks(found, is_alone=True))


@pytest.mark.parametrize("set_by_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_moves_no_time_and_is_told(make_run, monkeypatch, set_by_s):
    """The real writer, by a clock that is set after 50 of 100 s; agents write by it, too."""
    passed_s, begun_s, ahead_s = 0.0, 1.7e9, 0.0
    monkeypatch.setattr("hpcdist.runs.events.time.time", lambda: begun_s + passed_s + ahead_s)
    monkeypatch.setattr("hpcdist.runs.events.now_s", lambda: begun_s + passed_s)
    run = make_run("run", verdict=None)
    run.claim_attempt()
    run.write_beginning(0, Beginning(life=0, time_s=begun_s))
    writer = EventWriter(run.event_file(0))
    writer.write(Start(rank=0, world_size=1, local_world_size=1, host="n1", device="cuda:0"))
    for number in range(10):
        passed_s += 10
        ahead_s = set_by_s if passed_s > 50 else 0.0
        times = Totals(sum=10.0, sumsq=10.0, min=1.0, max=1.0)
        step = 10 * (number + 1)
        writer.write(Window(step=step, steps=10, samples=10, wall_s=10.0, step_time_s=times))
        writer.write(Evaluation(step=step, accuracy=step / 100))
    end_s = begun_s + passed_s + ahead_s
    run.write_verdict(Verdict(kind="done", state="done", message="m", time_s=end_s))
    (found,) = summarize([run], {}, goal=Goal("accuracy", 0.8)).runs
    assert found.time_to_accuracy.time_s == pytest.approx(80)
    assert found.cost.held_s == pytest.approx(100)
    assert found.notes[0].startswith(f"the clock of n1 was set by {set_by_s:+,.0f} s while")


# What is not whole, or not sure.


@pytest.mark.parametrize(("correlation", "least_known"), [(0.0, 40), (0.9, 38), (0.999, 0)])
def test_the_interval_of_a_run_whose_steps_resemble_each_other_covers_the_truth_or_is_not_known(
    record_run, events, correlation, least_known
):
    known = covered = 0
    for seed in range(40):
        draw = random.Random(seed)
        deviation = draw.gauss(0, 1)
        times_s = []
        for _ in range(1000):
            fresh = draw.gauss(0, (1 - correlation**2) ** 0.5)
            deviation = correlation * deviation + fresh
            times_s.append(STEP_S * (1 + 0.02 * deviation))
        windows = [
            events.window(step=step + 10, times_s=times_s[step : step + 10], samples=10)
            for step in range(0, 1000, 10)
        ]
        run = record_run(f"run-{seed}", [*windows, events.end()])
        interval = measure(run).run.figures.samples_per_s.interval
        known += interval is not None
        covered += interval is not None and interval.low <= 1 / STEP_S <= interval.high
    assert known >= least_known
    assert covered >= 0.88 * known if least_known else known < 14


@pytest.mark.parametrize(
    ("warm_up", "steady"),
    [
        pytest.param([3.0] * 8, 60, id="a level, such as while kernels are tried"),
        pytest.param([40.0, 1.5, 1.5, 1.5], 16, id="compiled first, then slow caches"),
        pytest.param([9.0], 39, id="the first window"),
    ],
)
def test_a_warm_up_of_known_length_is_left_out_whole(warm_up, steady):
    for seed in range(20):
        draw = random.Random(seed)
        times_s = [time_s * draw.gauss(1, 0.02) for time_s in warm_up + [1.0] * steady]
        assert len(warm_up) <= warm_up_length(times_s) <= len(warm_up) + steady // 2
    assert [warm_up_length([9.0] * number) for number in range(3)] == [0, 0, 1]


def test_a_warm_up_that_fades_away_leaves_no_bias():
    means = []
    for seed in range(40):
        draw = random.Random(seed)
        times_s = [(1 + 0.8 ** (index / 2)) * (1 + draw.gauss(0, 0.02)) for index in range(100)]
        steady_s = times_s[warm_up_length(times_s) :]
        means.append(sum(steady_s) / len(steady_s))
    assert sum(means) / len(means) == pytest.approx(1, abs=0.002)


def test_an_interval_that_says_nothing_is_not_known():
    wide = Measure(mean=5.35, interval=Interval(low=-314_733.0, high=314_744.0))
    assert interval_text(wide, 2) == spread_text(wide, 2) == "5.35 (interval not known)"
    assert interval_text(Measure(mean=2.9, interval=Interval(low=1.7, high=4.8)), 1) == (
        "2.9 (1.7 to 4.8)"
    )


def test_samples_of_all_ranks_that_each_rank_counted_are_doubted(record_run, events):
    runs = []
    for gpus, rate in ((1, 100.0), (2, 118.0)):
        windows = events.steady([rate] * 5, samples=100 * gpus)
        runs.append(record_run(f"on-{gpus}", *[windows] * gpus, start={"device": "cuda:0"}))
    text = in_words(runs)
    assert "of the ideal speed-up (weak scaling). That cannot be: record.step(samples=" in text


def test_what_stands_in_two_tables_has_one_name_and_memory_one_unit(make_run):
    run = make_run("run", gpus=2)
    write(make_history(Shape(ranks_per_node=2, slow=[1], saves="in steps"), seed=3), run)
    usage = UsageSummary(sampled_s=60.0, max_gpu_memory_bytes=2**30)
    summary = summarize([run], {})
    found = msgspec.structs.replace(summary.runs[0], usage=usage, peak_rss_bytes=2**29)
    tables = only_section(msgspec.structs.replace(summary, runs=[found])).tables
    shares = [
        " ".join(column.header.split())
        for table in tables
        for column in table.columns
        if column.header != "#" and ("in %" in table.caption or column.unit == "%")
    ]
    assert len(shares) == len({*shares})
    units = {column.unit for table in tables for column in table.columns}
    assert units & {"GiB", "MiB"} == {"MiB"}
