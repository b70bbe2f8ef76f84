"""Every figure against values computed from the single steps, in another way, by its definition."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from expected_figures import (
    best_accuracy,
    expected_figures,
    expected_time_to_accuracy,
    expected_time_to_train_loss,
)
from expected_parts import PARTS, Against, expected_losses
from measured_steps import student
from sampled_nodes import expected_usage, sample_nodes, write_nodes
from step_histories import LONGEST_SKEW_S, Shape, make_history, write

from hpcdist.cli.main import main
from hpcdist.job.goal import Goal
from hpcdist.summary import summarize, to_json

PERCENTILES = ("step_time_s.p50", "step_time_s.p95")
RESTART = ((0, 100), (60, 150))
REQUEUES = ((0, 80), (50, 120), (100, 100), (100, 180))
OF_CLOCKS = ("lost_time_s", "waited_s", "parts_s.restarts", "cost.")
"""What is told by the clocks of hosts, before and after a restart."""
SHAPES = {
    "one rank with uneven samples and windows": Shape(uneven_samples=True, uneven_windows=True),
    "two nodes whose clocks differ": Shape(nodes=2, skew=True, uneven_windows=True),
    "four ranks that do not wait for each other": Shape(nodes=2, ranks_per_node=2, in_step=False),
    "six ranks on three nodes with lost windows": Shape(
        nodes=3, ranks_per_node=2, skew=True, num_lost=3, uneven_windows=True
    ),
    "a missing rank": Shape(nodes=2, ranks_per_node=2, missing_rank=2),
    "a straggler": Shape(nodes=2, ranks_per_node=2, slow=[3], skew=True),
    "a slow node": Shape(nodes=3, ranks_per_node=2, slow=[2, 3], skew=True, uneven_windows=True),
    "checkpoints in steps": Shape(ranks_per_node=3, saves="in steps", stretches=((0, 200),)),
    "checkpoints and a restart": Shape(
        nodes=2, ranks_per_node=2, saves="between steps", stretches=RESTART, skew=True
    ),
    "a rank that ended early": Shape(ranks_per_node=4, torn_rank=1, in_step=False),
    "steps without samples": Shape(ranks_per_node=2, no_samples=True),
    "a single window": Shape(ranks_per_node=2, single_window=True),
    "many windows": Shape(ranks_per_node=2, stretches=((0, 700),), in_step=False, evaluates=True),
    "evaluations": Shape(ranks_per_node=2, evaluates=True, uneven_windows=True),
    "no phases": Shape(ranks_per_node=2, phases=False),
    "a torn end": Shape(nodes=2, ranks_per_node=2, torn_rank=0, evaluates=True),
    "a restart on nodes whose clocks differ": Shape(
        nodes=3, ranks_per_node=2, stretches=RESTART, skew=True, uneven_windows=True
    ),
    "a restart after a hang that ended with a kill": Shape(
        nodes=2, ranks_per_node=2, stretches=RESTART, skew=True, hangs="until a kill"
    ),
    "requeues after hangs": Shape(stretches=REQUEUES, lives=(0, 1, 1, 2), hangs="until an error"),
    "a restart before the first step": Shape(ranks_per_node=2, stretches=((0, 0), (0, 90))),
    "an end before the first step": Shape(ranks_per_node=2, stretches=((0, 90), (0, 0))),
    "requeues": Shape(
        nodes=2, stretches=REQUEUES, lives=(0, 1, 1, 2), skew=True, uneven_samples=True
    ),
    "going on from another run": Shape(ranks_per_node=2, stretches=((200, 300), (260, 340))),
    "a long warm-up": Shape(ranks_per_node=2, stretches=((0, 200),), slow_windows=3),
}


@pytest.fixture
def summary_json(tmp_path, monkeypatch, capsys):
    """What `hpcdist summary --json` prints."""
    monkeypatch.setenv("HPCDIST_RUNS", str(tmp_path / "runs"))

    def read():
        assert main(["summary", "--json"]) == 0
        return {run["run"]: run for run in json.loads(capsys.readouterr().out)}

    return read


@pytest.fixture
def add_run(make_run):
    """Make a run directory from a history."""

    def add(name, history, **options):
        run = make_run(name, nodes=history.nodes, gpus=history.ranks_per_node, **options)
        write(history, run)
        return run

    return add


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_figures_are_those_of_the_single_steps(add_run, summary_json, shape):
    seeds = range(2 if shape.uneven_windows else 1)
    histories = [make_history(shape, seed=seed) for seed in seeds]
    for seed, history in enumerate(histories):
        add_run(f"run-{seed}", history)
    runs = summary_json()
    figures = list(map(expected_figures, histories))
    losses = losses_of_one_size(figures)
    for seed in seeds:
        expected = figures[seed] | losses
        assert_equal(flat(runs[f"run-{seed}"], expected), expected)


def losses_of_one_size(figures):
    """Repeats are averaged; what one rank has in communication is its own fixed cost."""
    if "samples_per_s.mean" not in figures[0]:
        return {"cell": None}
    parts = mean_parts(figures)
    lost = expected_losses(None, parts, None)
    return {
        "cell.overall": lost.pop("efficiency"),
        "cell.against": [],
        **{f"cell.lost.{part}": share for part, share in lost.items()},
        **{f"cell.shares.{part}": parts[part] / sum(parts.values()) for part in PARTS},
    }


def overall_rate(figures):
    """Samples/s over all the time that counts."""
    return statistics.fmean(
        rate_of(one) * one["step_time_s.mean"] / sum(one[f"parts_s.{part}"] for part in PARTS)
        for one in figures
    )


def mean_parts(figures):
    return {part: statistics.fmean(one[f"parts_s.{part}"] for one in figures) for part in PARTS}


GOALS = {"accuracy": (0.5, 0.999, 1.0, 1.001), "train_loss": (0.99, 1.001, 1.05, 1.5, 4.0)}
"""What is asked for, as multiples of the best."""


@pytest.mark.parametrize(
    ("goal", "name"),
    [
        *(("accuracy", name) for name, shape in SHAPES.items() if shape.evaluates),
        ("train_loss", "one rank with uneven samples and windows"),
        ("train_loss", "two nodes whose clocks differ"),
        ("train_loss", "evaluations"),
        ("train_loss", "a restart on nodes whose clocks differ"),
        ("train_loss", "requeues"),
    ],
)
def test_the_time_to_a_goal_is_that_of_the_single_steps(add_run, goal, name):
    history = make_history(SHAPES[name], seed=1)
    run = add_run("run", history)
    if goal == "accuracy":
        best, expect = best_accuracy(history), expected_time_to_accuracy
    else:
        best = expected_time_to_train_loss(history, 0.0)["time_to_accuracy.best"]
        expect = expected_time_to_train_loss
    for times in GOALS[goal]:
        expected = expect(history, times * best)
        found = to_json(summarize([run], {}, goal=Goal(goal, times * best)))[0]
        assert_equal({key: _value(found, key) for key in expected}, expected)


@pytest.mark.parametrize(
    ("nodes", "num_gpus", "stretches"),
    [
        pytest.param(1, 0, ((0, 120),), id="CPUs only"),
        pytest.param(3, 2, ((0, 120),), id="three nodes with GPUs"),
        pytest.param(2, 2, RESTART, id="a restart"),
    ],
)
def test_usage_is_that_of_the_single_samples(add_run, summary_json, nodes, num_gpus, stretches):
    shape = Shape(nodes=nodes, ranks_per_node=num_gpus or 1, stretches=stretches)
    run = add_run("run", make_history(shape, seed=1))
    attempts = len(stretches)
    sampled = sample_nodes(nodes=nodes, num_gpus=num_gpus, attempts=attempts, seed=1)
    write_nodes(sampled, run)
    runs = summary_json()
    found, expected = (
        {key: -1 if value is None else value for key, value in each.items()}
        for each in (runs["run"]["usage"], expected_usage(sampled))
    )
    assert found == pytest.approx(expected, rel=1e-5)  # files have six digits


def test_clocks_that_are_set_between_attempts_change_nothing_but_the_time_between(add_run):
    shape = Shape(nodes=2, ranks_per_node=2, stretches=RESTART, jumping_clocks=True)
    history = make_history(shape, seed=1)
    summary = summarize([add_run("run", history)], {})
    (run,), (value,) = summary.runs, to_json(summary)
    expected = expected_figures(history)
    kept = {key: expected[key] for key in expected if not key.startswith(OF_CLOCKS)}
    assert_equal(flat(value, kept), kept)
    again_s = expected["lost_steps"] * run.step_time_s.mean
    assert again_s <= run.lost_time_s < again_s + 60 + 2 * LONGEST_SKEW_S


def test_sizes_and_their_repeats_are_compared_by_the_means_of_the_runs(add_run, summary_json):
    figures = {}
    for nodes, ranks_per_node in ((1, 1), (1, 2), (2, 2)):
        for repeat, speed in enumerate((1.0, 1.03, 0.98, 1.01)[: 2 + nodes]):
            shape = Shape(nodes=nodes, ranks_per_node=ranks_per_node, speed=speed, skew=True)
            name = f"run-{nodes}x{ranks_per_node}-{repeat}"
            history = make_history(shape, seed=len(figures))
            add_run(name, history, train={"seed": repeat})
            by_size = figures.setdefault((nodes, ranks_per_node), {})
            by_size[name] = expected_figures(history)
    runs = summary_json()
    rates = {size: list(map(rate_of, found.values())) for size, found in figures.items()}
    first = statistics.mean(rates[1, 1])
    for (nodes, ranks_per_node), by_name in figures.items():
        gpus, own = nodes * ranks_per_node, rates[nodes, ranks_per_node]
        for name, found in by_name.items():
            run = runs[name]
            assert run["speedup"] == pytest.approx(rate_of(found) / first)
            assert run["efficiency"] == pytest.approx(rate_of(found) / first / gpus)
            assert sorted(run["compared_with"]) == sorted(figures[1, 1])
            others = [theirs for size, theirs in rates.items() if size != (1, 1)]
            assert_of_size(run["cell"], own, rates[1, 1], gpus, others)
            against = against_of(list(figures[1, 1].values()), gpus)
            assert_losses(run["cell"], list(by_name.values()), against if gpus > 1 else None)
    assert runs["run-1x1-0"]["cell"]["differs_from_baseline"] is None
    assert runs["run-2x2-0"]["cell"]["differs_from_baseline"] is True


def rate_of(figures):
    return figures["samples_per_s.mean"]


def against_of(figures, times_gpus):
    parts = mean_parts(figures)
    whole_s = sum(parts.values())
    shares = {part: parts[part] / whole_s for part in PARTS}
    return Against(overall_rate=overall_rate(figures), times_gpus=times_gpus, shares=shares)


def assert_losses(found, figures, against):
    """The smallest size lost nothing."""
    expected = dict.fromkeys(PARTS, 0.0) | {"efficiency": 1.0}
    if against:
        expected = expected_losses(overall_rate(figures), mean_parts(figures), against)
    assert found["overall"] == pytest.approx(expected.pop("efficiency"))
    assert found["lost"] == pytest.approx(expected, abs=1e-4)
    assert sum(found["lost"].values()) == pytest.approx(1 - found["overall"], abs=1e-9)


def assert_of_size(found, rates, first_rates, gpus, family):
    """Relative errors add up in squares; t by Welch and Satterthwaite, its level by Holm among the
    sizes of the family."""
    assert found["num_measured"] == len(rates)
    assert found["scaling"] == "weak"
    assert found["samples_per_step"] == pytest.approx(32 * gpus)
    assert_interval(found["samples_per_s"], *mean_interval(rates))
    assert found["samples_per_s"]["sd"] == pytest.approx(statistics.stdev(rates))
    if gpus == 1:
        return
    errors = [(relative_error(values), len(values)) for values in (rates, first_rates)]
    squared = math.fsum(error**2 for error, _ in errors)
    freedom = squared**2 / math.fsum(error**4 / (number - 1) for error, number in errors)
    times = statistics.mean(rates) / statistics.mean(first_rates)
    level = held_level([p_value(values, first_rates) for values in family], family.index(rates))
    factor = math.exp(student(1 - level, freedom) * math.sqrt(squared))
    sd = times * math.sqrt(math.fsum(error**2 * number for error, number in errors))
    assert_interval(found["speedup"], times, times / factor, times * factor)
    assert found["speedup"]["sd"] == pytest.approx(sd)
    assert found["efficiency"]["mean"] == pytest.approx(times / gpus)
    assert found["efficiency"]["interval"]["low"] == pytest.approx(times / factor / gpus)
    assert found["differs_from_baseline"] == (times / factor > 1 or times * factor < 1)


def p_value(rates, first_rates):
    """The level at which the interval of the ratio ends at 1, by halving."""
    errors = [(relative_error(values), len(values)) for values in (rates, first_rates)]
    squared = math.fsum(error**2 for error, _ in errors)
    freedom = squared**2 / math.fsum(error**4 / (number - 1) for error, number in errors)
    t = abs(math.log(statistics.mean(rates) / statistics.mean(first_rates))) / math.sqrt(squared)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if student(1 - middle, freedom) > t else (low, middle)
    return low


def held_level(values, place):
    """Each hypothesis falls at 5 % over the number of those that have not fallen before it."""
    order = sorted(range(len(values)), key=values.__getitem__)
    for num_fallen, index in enumerate(order):
        level = 0.05 / (len(values) - num_fallen)
        if index == place or values[index] >= level:
            break
    return level


def assert_interval(found, mean, low, high):
    assert found["over"] == "runs"
    assert found["mean"] == pytest.approx(mean)
    assert (found["interval"]["low"], found["interval"]["high"]) == pytest.approx((low, high), 1e-5)


def mean_interval(rates):
    mean = statistics.mean(rates)
    half = mean * student(0.95, len(rates) - 1) * relative_error(rates)
    return mean, mean - half, mean + half


def relative_error(rates):
    """Of the mean."""
    return statistics.stdev(rates) / statistics.mean(rates) / math.sqrt(len(rates))


def flat(run, wanted):
    """The figures of a run by the keys that are wanted."""
    attempts = [(one["life"], one["first_step"], one["last_step"]) for one in run["attempts"]]
    phases = {f"phase_s.{phase}" for phase in run["phase_s"] or {}}
    return {key: _value(run | {"attempts": attempts}, key) for key in wanted.keys() | phases}


def _value(run, key):
    value = run
    for part in key.split("."):
        value = None if value is None else value[part]
    return value


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if key in PERCENTILES:
            assert found[key] == pytest.approx(value, rel=0.01), key
        elif isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=1e-6, abs=2e-6), key
        else:
            assert found[key] == value, key
