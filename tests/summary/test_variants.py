"""Comparisons: losses with known answers, summed up to the whole, in words, tables and pictures."""

import re

import pytest
from summary_text import in_words, printed

from hpcdist.summary import summarize
from hpcdist.summary.report.pictures.speed import draw_bars
from hpcdist.summary.report.sentences import conclusions

COMPARISON = "compare-20261121-100000-abcd"
BATCH = 32
ALONE = {"data_wait": 0.01, "forward_backward": 0.08, "optimizer": 0.01}


@pytest.fixture
def add_run(record_run, events):
    """Add a run whose ranks take the given seconds per step and phase."""
    count = iter(range(100))

    def add(*ranks, batch=BATCH, device="cuda:0", start=(), **options):
        made = [events.phased(phases, samples=10 * batch) for phases in ranks]
        start = {"device": device, **dict(start)}
        return record_run(f"run-{next(count):03d}", *made, start=start, **options)

    return add


@pytest.fixture
def add(add_run):
    """Add a run of a variant."""

    def add(variant, *ranks, cpus=None, num_cpus=None, num_gpus=None, **options):
        sweep = {"id": COMPARISON, "variant": variant, "comparison": "compare"}
        start = {"cpus": cpus, "num_gpus": num_gpus}
        return add_run(*ranks, spec={"sweep": sweep}, start=start, **options)

    return add


def compared(*runs):
    (comparison,) = summarize(runs, {}).comparisons
    return comparison


def test_computing_that_nothing_tells_from_communication_is_called_both(add_run):
    fsdp = {"strategy": "fsdp"}
    slow = ALONE | {"forward_backward": 0.18}
    text = in_words([add_run(ALONE, **fsdp), add_run(slow, slow, **fsdp)])
    assert "50 % slower computing and communication together" in text
    watched = ALONE | {"exposed_communication": 0.01}
    assert "is not computing" in in_words([add_run(watched, watched, **fsdp)])


def test_one_process_with_two_gpus_is_compared_by_gpu(add):
    slower = ALONE | {"forward_backward": 0.18}
    runs = [
        add("one", ALONE),
        add("dp", slower, strategy="data_parallel", batch=64, gpus=2, num_gpus=2),
    ]
    (dp,) = compared(*runs).cells[1:]
    assert (dp.num_gpus, dp.world_size, dp.ideal) == (2, 1, 2)
    assert dp.speedup.mean == pytest.approx(1.0)
    assert dp.lost["computing"] == sum(dp.lost.values()) == pytest.approx(0.5)


def test_one_process_without_its_gpus_is_held_against_no_ideal(add):
    on_cpus = {"device": "cpu", "cpus": [0, 1]}
    runs = [add("one", ALONE, **on_cpus)]
    runs += [add("dp", ALONE, strategy="data_parallel", batch=64, gpus=2, **on_cpus)]
    comparison = compared(*runs)
    dp = comparison.cells[1]
    assert (dp.speedup.mean, dp.efficiency, dp.lost) == (pytest.approx(2.0), None, None)
    assert "without the GPUs that it is for, so this says nothing" in conclusions(comparison)[0]


def test_the_answer_names_what_costs_most_and_what_was_not_there(add):
    slow = ALONE | {"exposed_communication": 0.1}
    runs = [add("one", ALONE, device="cpu", cpus=[0, 1])]
    runs += [add("two", slow, slow, device="cpu", cpus=[0, 1])]
    text, once = conclusions(compared(*runs))
    assert "1.00 ± 0.00 times as fast as one on 2 ranks; ideal is 2" in text
    assert "50 % is lost: 50 % exposed communication. " in text
    assert "Exposed communication is 50 % of the time: train.accumulate=2 or" in text
    assert "There is no GPU here: it ran on 2 CPUs, and the baseline on 2 CPUs." in text
    assert once == "What was run once does not show how much runs differ: use --repeat 3."


def test_what_differs_in_something_else_than_size_is_not_held_against_an_ideal(add):
    fast = {phase: time / 2 for phase, time in ALONE.items()}
    faster, same, _ = conclusions(compared(add("a", ALONE), add("b", fast), add("c", ALONE)))
    assert faster == "b: 2.00 ± 0.00 times as fast as a on as many GPUs."
    assert same.startswith("c: 1.00 ± 0.00 times as fast as a on as many GPUs. Which of the two is")


def test_of_repeats_that_differ_much_what_is_certain_is_said_and_what_is_not(add):
    def at(speed, *ranks):
        return [{phase: time / speed for phase, time in ALONE.items()} for _ in ranks or [0]]

    runs = [add("one", *at(speed)) for speed in (0.8, 1.0, 1.2)]
    runs += [add("two", *at(speed, 0, 1)) for speed in (1.6, 1.8, 2.2)]
    unsure = [add("other", *at(speed, 0, 1)) for speed in (1.5, 2.0, 2.2)]
    said = in_words(runs + unsure)
    assert re.search(r": other is 3\.\d+ \(\d\.\d+ to \d\.\d+\) times as fast as one, where", said)
    assert "; which of other (3.80) and two (3.73) is the fastest is not certain." in said
    (alone,) = conclusions(compared(*runs))
    assert "not certain" not in alone


def test_failed_runs_do_not_count_and_a_missing_baseline_is_told(add):
    bad = add("one", ALONE)
    bad.verdict_file.unlink()
    runs = [bad, add("two", ALONE, ALONE)]
    comparison = compared(*runs)
    assert conclusions(comparison) == ["There is nothing to compare with: no run of one is done."]
    assert "lost against the ideal" not in in_words(runs)


def test_a_comparison_is_printed_apart_from_runs_of_the_same_job(add, make_run):
    slow = ALONE | {"exposed_communication": 0.2}
    one, two = add("one", ALONE), add("two", ALONE, ALONE)
    text = printed([one, two, add("other", slow, slow), make_run("ddp-alone")])
    first = f"comparison {COMPARISON}"
    assert f"{first}: two is the fastest: 2.00 times as fast as one, where 2 is ideal." in text
    assert "ddp: 1 run done, but no speed is known" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "two 1 x 2 1 640 ± 0 100.0 2.00 ± 0.00 100 yes" in lines
    assert "not compared" not in text
    assert printed([one]).splitlines()[0] == first
    slower = printed([one, add("slow", slow, slow)])
    assert slower.startswith(f"{first}: No variant is faster than one.\n")


def test_the_picture_of_a_comparison_draws_what_its_table_says_and_gains_left_of_zero(add):
    quick = ALONE | {"forward_backward": 0.02, "exposed_communication": 0.05}
    comparison = compared(add("one", ALONE), add("two", quick, quick))
    two = comparison.cells[1]
    assert two.lost["computing"] < -0.5
    speed, step = draw_bars(comparison.cells, ["one", "two"]).axes
    widths = [bar.get_width() for bar in speed.patches]
    assert two.speedup.mean in [pytest.approx(width) for width in widths]
    bars = {
        container.get_label(): sorted((bar.get_x(), bar.get_x() + bar.get_width()))
        for container in step.containers
        for bar in container.patches
        if round(bar.get_y() + bar.get_height() / 2) == 1
    }
    kept, lost = 100 * two.overall, {name: 100 * share for name, share in two.lost.items()}
    assert bars["not lost"] == pytest.approx([0, kept])
    assert bars["exposed communication"] == pytest.approx([kept, kept + lost["communication"]])
    assert bars["slower computing"] == pytest.approx([lost["computing"], 0])
