"""Comparisons: losses with known answers, summed up to the whole, in words, tables and pictures."""

import io
import re

import pytest
from matplotlib import rc_context
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from msgspec import structs

from hpcdist.base import files
from hpcdist.summary import print_summary, summarize
from hpcdist.summary.figures.shares import SHARES as PARTS
from hpcdist.summary.report.pictures.speed import draw_bars
from hpcdist.summary.report.sentences import conclusions
from hpcdist.summary.report.text import make_console
from hpcdist.summary.values import Group

COMPARISON = "compare-20261121-100000-abcd"
BATCH = 32
STEPS = 20
ALONE = {"data_wait": 0.01, "forward_backward": 0.08, "optimizer": 0.01}


@pytest.fixture
def add_run(make_run, events):
    """Add a run of a variant whose ranks take the given seconds per step and phase."""
    count = iter(range(100))

    def add(variant, *ranks, job="ddp", batch=BATCH, device="cuda:0", gpus=None, **where):
        name, strategy = f"{COMPARISON}-{next(count):03d}", "ddp" if gpus is None else job
        run = make_run(name, job=job, gpus=gpus or len(ranks), strategy=strategy)
        spec = files.read_json(run.spec_file)
        sweep = {"id": COMPARISON, "variant": variant, "comparison": "compare"}
        files.write_json(run.spec_file, spec | {"sweep": sweep})
        for rank, phases in enumerate(ranks):
            step_s = sum(phases.values())
            named = {phase: [time] * STEPS for phase, time in phases.items() if phase != "other"}
            windows = [
                events.window(
                    step=STEPS * number,
                    times_s=[step_s] * STEPS,
                    samples=batch * STEPS,
                    phases_s=named,
                )
                for number in range(1, 11)
            ]
            start = events.start(rank, world_size=len(ranks), device=device, **where)
            events.write(run, rank, [start, *windows, events.end()])
        return run

    return add


def compared(*runs):
    (comparison,) = summarize(runs, {}).comparisons
    return comparison


def variant(comparison, name):
    return next(one for one in comparison.cells if one.name == name)


def told(one, baseline):
    variants = [baseline, one]
    return conclusions(
        Group(job="ddp", name=COMPARISON, runs=[], baseline=baseline.runs, cells=variants)
    )[0]


def drawn(comparison):
    return draw_bars(comparison.cells, [cell.name for cell in comparison.cells])


def assert_lost(one, **wanted):
    assert sum(one.lost.values()) == pytest.approx(1 - one.overall)
    for part in PARTS:
        assert one.lost[part] == pytest.approx(wanted.get(part, 0.0), abs=1e-9), part


def test_a_global_batch_that_is_split_shows_the_fixed_cost_of_a_step(add_run):
    # Half the samples per GPU: half the time for data and computing, the optimizer takes as long.
    half = {"data_wait": 0.005, "forward_backward": 0.04, "optimizer": 0.01}
    runs = [add_run("one", ALONE), add_run("two", half, half, batch=BATCH // 2)]
    two = variant(compared(*runs), "two")
    assert two.speedup.mean == pytest.approx(0.1 / 0.055)
    assert_lost(two, fixed=0.005 / 0.055)


def test_one_process_with_two_gpus_is_compared_by_gpu(add_run):
    slower = ALONE | {"forward_backward": 0.18}
    runs = [
        add_run("one", ALONE),
        add_run("dp", slower, job="data_parallel", batch=64, gpus=2, num_gpus=2),
    ]
    (dp,) = compared(*runs).cells[1:]
    assert (dp.num_gpus, dp.world_size, dp.ideal) == (2, 1, 2)
    assert dp.speedup.mean == pytest.approx(1.0)
    assert_lost(dp, computing=0.5)


def test_one_process_without_its_gpus_is_held_against_no_ideal(add_run):
    on_cpus = {"device": "cpu", "cpus": [0, 1]}
    data_parallel = {"job": "data_parallel", "batch": 64, "gpus": 2}
    runs = [add_run("one", ALONE, **on_cpus), add_run("dp", ALONE, **data_parallel, **on_cpus)]
    summary = summarize(runs, {})
    one, dp = summary.comparisons[0].cells
    assert (dp.speedup.mean, dp.efficiency, dp.lost) == (pytest.approx(2.0), None, None)
    assert [run.efficiency for run in summary.runs] == [pytest.approx(1.0), None]
    assert told(dp, one).endswith(
        ", without the GPUs that it is for, so this says nothing about it."
    )


def test_ranks_on_cpus_are_ranks_also_where_nothing_binds_them(add_run):
    free = {"device": "cpu", "cpus": [], "num_cpus": 3}
    runs = [add_run("one", ALONE, **free), add_run("two", ALONE, ALONE, **free)]
    comparison = compared(*runs)
    assert [one.num_cpus for one in comparison.cells] == [3, 3]
    assert " on 2 ranks; ideal is 2" in conclusions(comparison)[0]


def test_the_answer_names_what_costs_most_and_what_was_not_there(add_run):
    slow = ALONE | {"exposed_communication": 0.1}
    runs = [add_run("one", ALONE, device="cpu", cpus=[0, 1])]
    runs += [add_run("two", slow, slow, device="cpu", cpus=[0, 1])]
    text, once = conclusions(compared(*runs))
    assert "1.00 ± 0.00 times as fast as one on 2 ranks; ideal is 2" in text
    assert "50 % is lost: 50 % exposed communication. " in text
    assert "Exposed communication is 50 % of the time: train.accumulate=2 or" in text
    assert "There is no GPU here: it ran on 2 CPUs, and the baseline on 2 CPUs." in text
    assert once == "What was run once does not show how much runs differ: use --repeat 3."


def test_what_differs_in_something_else_than_size_is_not_held_against_an_ideal(add_run):
    fast = {phase: time / 2 for phase, time in ALONE.items()}
    slow = ALONE | {"forward_backward": 0.18}
    runs = [
        add_run(name, steps) for name, steps in zip("abcd", (ALONE, fast, ALONE, slow), strict=True)
    ]
    faster, same, slower, of_all = conclusions(compared(*runs))
    assert faster == "b: 2.00 ± 0.00 times as fast as a on as many GPUs."
    assert same.startswith("c: 1.00 ± 0.00 times as fast as a on as many GPUs. Which of the two is")
    assert slower.endswith("50 % slower computing.")
    assert of_all.startswith("What was run once does not show")
    doubted = conclusions(compared(runs[0], add_run("two", fast, fast)))
    assert "4.00 ± 0.00 times as fast as a on 2 GPUs; ideal is 2." in doubted[0]


def test_of_repeats_that_differ_much_what_is_certain_is_said_and_what_is_not(add_run):
    def at(speed, *ranks):
        return [{phase: time / speed for phase, time in ALONE.items()} for _ in ranks or [0]]

    runs = [add_run("one", *at(speed)) for speed in (0.8, 1.0, 1.2)]
    runs += [add_run("two", *at(speed, 0, 1)) for speed in (1.6, 1.8, 2.2)]
    unsure = [add_run("other", *at(speed, 0, 1)) for speed in (1.5, 2.0, 2.2)]
    said = " ".join(printed(runs + unsure).split())
    assert re.search(r": other is 3\.\d+ \(\d\.\d+ to \d\.\d+\) times as fast as one, where", said)
    assert "; which of other (3.80) and two (3.73) is the fastest is not certain." in said
    (alone,) = conclusions(compared(*runs))
    assert "not certain" not in alone
    same = conclusions(compared(*runs[:3], *(add_run("same", *at(speed)) for speed in (0.9, 1.1))))
    assert "Which of the two is faster is not certain." in same[0]


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (
            {"communication": 0.576, "computing": 0.145, "stragglers": 0.016},
            "74 % is lost: 58 % exposed communication, 14 % slower computing, 2 % all else.",
        ),
        (
            {"communication": 0.5, "computing": -0.1},
            "40 % is lost: 50 % exposed communication, minus 10 % gained elsewhere.",
        ),
    ],
    ids=["small losses", "won"],
)
def test_the_losses_that_are_told_add_up(add_run, lost, said):
    runs = [add_run("one", ALONE), add_run("two", ALONE, ALONE)]
    one, two = compared(*runs).cells
    lost = dict.fromkeys(PARTS, 0.0) | lost
    two = structs.replace(two, lost=lost, overall=1 - sum(lost.values()))
    assert said in told(two, one)


def test_the_slowest_rank_is_named_only_where_it_was_always_the_slowest(add_run):
    slow, waits = ALONE | {"forward_backward": 0.18}, ALONE | {"exposed_communication": 0.1}
    runs = [add_run("one", ALONE), add_run("two", waits, slow), add_run("two", waits, slow)]
    comparison = compared(*runs)
    two = comparison.cells[1]
    assert (two.straggler.rank, two.straggler.host) == (1, "host0")
    (text,) = conclusions(comparison)
    assert "50 % waiting for the slowest rank. The slowest is rank 1 (node 0, host host0)" in text
    turns = compared(*runs, add_run("two", slow, waits))
    assert turns.cells[1].straggler is None
    assert "rank 1" not in conclusions(turns)[0]


def test_failed_runs_do_not_count_and_a_missing_baseline_is_told(add_run):
    bad = add_run("one", ALONE)
    bad.verdict_file.unlink()
    runs = [bad, add_run("two", ALONE, ALONE)]
    comparison = compared(*runs)
    assert [one.num_measured for one in comparison.cells] == [0, 1]
    assert conclusions(comparison) == ["There is nothing to compare with: no run of one is done."]
    text = printed(runs)
    assert "There is nothing to compare with" in text
    nothing = compared(add_run("one", ALONE), *[bad])
    assert nothing.cells[0].num_measured == 1


def printed(runs):
    text = io.StringIO()
    print_summary(summarize(runs, {}), make_console(text))
    return text.getvalue()


def test_a_comparison_is_printed_apart_from_runs_of_the_same_job(add_run, make_run):
    runs = [add_run("one", ALONE), add_run("two", ALONE, ALONE), make_run("ddp-alone")]
    text = printed(runs)
    assert f"comparison {COMPARISON}" in text
    assert "ddp: 1 run done, but no speed is known" in text
    lines = [line.split() for line in text.splitlines()]
    assert [
        "two",
        "1",
        "x",
        "2",
        "1",
        "640",
        "±",
        "0",
        "100",
        "2.00",
        "±",
        "0.00",
        "100",
        "yes",
    ] in lines
    assert "not compared" not in text


def test_without_its_baseline_a_comparison_says_nothing_of_what_was_lost(add_run):
    bare = {"other": 0.1}
    runs = [add_run("one", bare), add_run("two", ALONE, ALONE)]
    runs[0].verdict_file.unlink()
    text = " ".join(printed(runs).split())
    assert "There is nothing to compare with" in text
    assert "lost against the ideal" not in text


def test_the_picture_of_a_comparison_draws_what_its_table_says_and_gains_left_of_zero(add_run):
    quick = ALONE | {"forward_backward": 0.02, "exposed_communication": 0.05}
    found = compared(add_run("one", ALONE), add_run("two", quick, quick))
    two = variant(found, "two")
    assert two.lost["computing"] < -0.5
    assert two.lost["communication"] > 0.5
    _, step = drawn(found).axes
    bars = {}
    for container in step.containers:
        for bar in container.patches:
            if round(bar.get_y() + bar.get_height() / 2) == 1:
                bars[container.get_label()] = (bar.get_x(), bar.get_x() + bar.get_width())
    ends = {name: sorted(ends) for name, ends in bars.items()}
    kept, lost = 100 * two.overall, {name: 100 * share for name, share in two.lost.items()}
    assert ends["not lost"] == pytest.approx([0, kept])
    communication = [kept, kept + lost["communication"]]
    assert ends["exposed communication"] == pytest.approx(communication)
    assert ends["slower computing"] == pytest.approx([lost["computing"], 0])
    assert step.get_xlim()[0] < lost["computing"]
    assert step.get_xlim()[1] > communication[1]


def test_variants_of_one_size_are_not_taken_for_repeats_of_each_other(add_run):
    runs = [add_run("one", ALONE), add_run("ddp", ALONE, ALONE), add_run("other", ALONE, ALONE)]
    assert [run.cell.name for run in summarize(runs, {}).runs] == ["one", "ddp", "other"]


def test_the_first_line_of_a_comparison_says_which_variant_is_the_fastest(add_run):
    one = add_run("one", ALONE)
    slow = ALONE | {"exposed_communication": 0.2}
    first = f"comparison {COMPARISON}"
    assert printed([one]).splitlines()[0] == first
    slower = printed([one, add_run("slow", slow, slow)])
    assert slower.startswith(f"{first}: No variant is faster than one.\n")
    faster = printed([one, add_run("two", ALONE, ALONE)])
    assert f"{first}: two is the fastest: 2.00 times as fast as one, where 2 is ideal." in faster


def test_tables_and_pictures_of_a_comparison_show_the_same_interval(add_run):
    runs = [add_run("one", ALONE), add_run("one", ALONE | {"optimizer": 0.02})]
    runs += [add_run("two", *[ALONE] * 2), add_run("two", *[ALONE | {"optimizer": 0.02}] * 2)]
    comparison = compared(*runs)
    ends = comparison.cells[1].speedup.interval
    with rc_context({"text.color": "#eeeeee"}):  # a dark page
        speedups, _ = drawn(comparison).axes
    (bar,) = (each for each in speedups.collections if isinstance(each, LineCollection))
    assert {tuple(colour) for colour in bar.get_colors()} == {to_rgba("#eeeeee")}
    ((low, _), (high, _)) = bar.get_segments()[0]
    assert (low, high) == pytest.approx((ends.low, ends.high))
    said = " ".join(printed(runs).split())
    assert f"({ends.low:.2f} to {ends.high:.2f})" in said
