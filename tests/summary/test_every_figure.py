"""Every figure against values computed from the single steps, in another way, by its definition."""

from __future__ import annotations

import json
import math
import re
import statistics

import pytest
from expected_figures import T_95, expected_figures, expected_losses, lost_steps
from step_histories import LONGEST_SKEW_S, Shape, make_history, write

from hpcdist import files
from hpcdist.cli.main import main
from hpcdist.summary import summarize, to_json

PERCENTILES = ("step_time_s.p50", "step_time_s.p95")
RESTART = ((0, 100), (60, 150))
REQUEUES = ((0, 80), (50, 120), (100, 100), (100, 180))
SHAPES = {
    "one rank": Shape(),
    "one rank with uneven samples and windows": Shape(uneven_samples=True, uneven_windows=True),
    "two ranks": Shape(ranks_per_node=2),
    "two nodes whose clocks differ": Shape(nodes=2, skew=True, uneven_windows=True),
    "four ranks that do not wait for each other": Shape(nodes=2, ranks_per_node=2, in_step=False),
    "seven uneven ranks": Shape(ranks_per_node=7, uneven_samples=True, uneven_windows=True),
    "six ranks on three nodes with lost windows": Shape(
        nodes=3, ranks_per_node=2, skew=True, num_lost=3, uneven_windows=True
    ),
    "even windows, some lost": Shape(ranks_per_node=4, num_lost=2),
    "a missing rank": Shape(nodes=2, ranks_per_node=2, missing_rank=2),
    "one of two ranks": Shape(ranks_per_node=2, missing_rank=1),
    "a straggler": Shape(nodes=2, ranks_per_node=2, straggler=3, skew=True),
    "a rank that ended early": Shape(ranks_per_node=4, early_rank=1, in_step=False),
    "steps without samples": Shape(ranks_per_node=2, no_samples=True),
    "a single window": Shape(ranks_per_node=2, single_window=True),
    "windows of the recorder's own": Shape(
        ranks_per_node=2, stretches=((0, 3000),), window_s=0.25, in_step=False, evaluates=True
    ),
    "evaluations": Shape(ranks_per_node=2, evaluates=True, uneven_windows=True),
    "no phases": Shape(ranks_per_node=2, phases=False),
    "a torn end": Shape(nodes=2, ranks_per_node=2, torn_rank=0, evaluates=True),
    "the only rank torn": Shape(torn_rank=0),
    "lines of others": Shape(ranks_per_node=2, lines_of_others=True),
    "a restart": Shape(ranks_per_node=2, stretches=RESTART, evaluates=True),
    "a restart on nodes whose clocks differ": Shape(
        nodes=3, ranks_per_node=2, stretches=RESTART, skew=True, uneven_windows=True
    ),
    "a restart after a node died": Shape(
        nodes=2, ranks_per_node=2, stretches=RESTART, skew=True, torn_rank=3
    ),
    "a restart from the beginning": Shape(ranks_per_node=2, stretches=((0, 70), (0, 90))),
    "a restart before the first step": Shape(ranks_per_node=2, stretches=((0, 0), (0, 90))),
    "an end before the first step": Shape(ranks_per_node=2, stretches=((0, 90), (0, 0))),
    "restarts with an evaluation within the first window": Shape(
        ranks_per_node=2, stretches=RESTART, single_window=True, evaluates=True
    ),
    "requeues": Shape(
        nodes=2, stretches=REQUEUES, lives=(0, 1, 1, 2), skew=True, uneven_samples=True
    ),
    "going on from another run": Shape(ranks_per_node=2, stretches=((200, 300), (260, 340))),
    "a long warm-up": Shape(ranks_per_node=2, stretches=((0, 200),), slow_windows=3),
}


@pytest.fixture
def summary_json(tmp_path, monkeypatch, capsys):
    """What `hpcdist summary --json` prints, and what it says on stderr."""
    monkeypatch.setenv("HPCDIST_RUNS", str(tmp_path / "runs"))

    def read():
        assert main(["summary", "--json", "--no-cache"]) == 0
        printed = capsys.readouterr()
        return {run["run"]: run for run in json.loads(printed.out)}, printed.err

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
    for seed in range(2):
        history = make_history(shape, seed=seed)
        add_run(f"run-{seed}", history)
    runs, _ = summary_json()
    for seed in range(2):
        expected = expected_figures(make_history(shape, seed=seed))
        assert_equal(flat(runs[f"run-{seed}"], expected), expected)


@pytest.mark.parametrize(("run_s", "num_windows"), [(25, 100), (1000, 470)])
def test_windows_grow_with_the_time_a_rank_has_run(run_s, num_windows):
    history = make_history(Shape(stretches=((0, run_s * 32),), window_s=0.25), seed=1)
    (rank,) = history.attempts[0].ranks
    assert sum(step.time_s for step in rank.steps) == pytest.approx(run_s, rel=0.1)
    assert len(rank.windows) == pytest.approx(num_windows, rel=0.1)


def test_what_was_skipped_is_said_and_nothing_where_all_is_well(add_run, summary_json):
    add_run("whole", make_history(Shape(nodes=2, skew=True, num_lost=2), seed=3))
    add_run("torn", make_history(SHAPES["a torn end"], seed=3))
    add_run("others", make_history(SHAPES["lines of others"], seed=3))
    _, said = summary_json()
    found = re.findall(r"(\S+)/events/(\S+): (.+)", said)
    assert {(path.rpartition("/")[2], name, text) for path, name, text in found} == {
        ("torn", "rank-00000.jsonl", "1 torn line skipped"),
        *(
            ("others", f"rank-0000{rank}.jsonl", text)
            for rank in range(2)
            for text in (
                "2 torn lines skipped",
                "1 event skipped, fields are missing or of the wrong type",
                "written by a newer hpcdist, only what this one knows was read",
            )
        ),
    }


def test_clocks_that_are_set_between_attempts_change_nothing_but_the_time_between(add_run):
    shape = Shape(nodes=2, ranks_per_node=2, stretches=RESTART, jumping_clocks=True)
    for seed in range(3):
        history = make_history(shape, seed=seed)
        summary = summarize([add_run(f"run-{seed}", history)], {})
        (run,), (value,) = summary.runs, to_json(summary)
        expected = expected_figures(history)
        del expected["lost_time_s"]
        assert_equal(flat(value, expected), expected)
        again_s = lost_steps(history) * run.step_time_s.mean
        assert again_s <= run.lost_time_s < again_s + 60 + 2 * LONGEST_SKEW_S


def test_between_attempts_on_different_nodes_their_clocks_are_believed(make_run, events):
    run = make_run("moved")
    for attempt, (host, first_s) in enumerate((("a", 100.0), ("b", 140.0))):
        windows = events.steady([100.0] * 4)  # of 1 s each
        timed = [window | {"time_s": first_s + n} for n, window in enumerate(windows, 1)]
        start = events.start(0, world_size=1, host=host)
        events.write(run, 0, [start, *timed], attempt=attempt)
    (moved,) = summarize([run], {}).runs
    assert moved.lost_time_s == pytest.approx(140 - 104 + 40 * 0.1)


def test_the_first_windows_that_are_slower_are_left_out_and_no_others(add_run):
    history = make_history(SHAPES["a long warm-up"], seed=5)
    (run,) = summarize([add_run("run", history)], {}).runs
    times_s = [step.time_s for rank in history.attempts[0].ranks for step in rank.steps[30:]]
    assert run.step_time_s.mean == pytest.approx(statistics.mean(times_s))


def test_sizes_and_their_repeats_are_compared_by_the_means_of_the_runs(add_run, summary_json):
    rates = {}
    for nodes, ranks_per_node in ((1, 1), (1, 2), (2, 2)):
        for repeat, speed in enumerate((1.0, 1.03, 0.98, 1.01)[: 2 + nodes]):
            shape = Shape(nodes=nodes, ranks_per_node=ranks_per_node, speed=speed, skew=True)
            name = f"run-{nodes}x{ranks_per_node}-{repeat}"
            history = make_history(shape, seed=len(rates))
            add_run(name, history, train={"seed": repeat})
            by_size = rates.setdefault((nodes, ranks_per_node), {})
            by_size[name] = expected_figures(history)["samples_per_s.mean"]
    runs, _ = summary_json()
    first = statistics.mean(rates[1, 1].values())
    for (nodes, ranks_per_node), by_name in rates.items():
        for name, rate in by_name.items():
            run, gpus = runs[name], nodes * ranks_per_node
            assert run["speedup"] == pytest.approx(rate / first)
            assert run["efficiency"] == pytest.approx(rate / first / gpus)
            assert sorted(run["compared_with"]) == sorted(rates[1, 1])
            assert_repeats(run["repeats"], list(by_name.values()))
    assert runs["run-1x1-0"]["repeats"]["differs_from_baseline"] is None
    assert runs["run-2x2-0"]["repeats"]["differs_from_baseline"] is True


def assert_repeats(found, rates):
    mean, sd = statistics.mean(rates), statistics.stdev(rates)
    half = T_95[len(rates) - 1] * sd / math.sqrt(len(rates))
    assert found["num_runs"] == len(rates)
    assert found["mean"] == pytest.approx(mean)
    assert found["sd"] == pytest.approx(sd)
    interval = found["interval"]
    assert (interval["low"], interval["high"]) == pytest.approx((mean - half, mean + half), 1e-5)


def test_what_the_variants_of_a_comparison_lost_is_what_their_steps_took_longer(add_run):
    shapes = {
        "one": Shape(),
        "two": Shape(ranks_per_node=2),
        "straggler": Shape(nodes=2, ranks_per_node=2, straggler=1, skew=True),
        "seven": Shape(ranks_per_node=7, speed=0.7),
    }
    histories = {name: make_history(shape, seed=9) for name, shape in shapes.items()}
    made = [as_variant(add_run(name, history), name) for name, history in histories.items()]
    (comparison,) = summarize(made, {}).comparisons
    first = histories["one"]
    for variant in comparison.variants[1:]:
        history = histories[variant.name]
        rates = [expected_figures(one)["samples_per_s.mean"] for one in (history, first)]
        assert variant.speedup.mean == pytest.approx(rates[0] / rates[1])
        assert variant.efficiency == pytest.approx(rates[0] / rates[1] / history.world_size)
        assert sum(variant.lost.values()) == pytest.approx(1 - variant.efficiency)
        # Rates of ranks are of their own windows, so that a step of the mean is not quite that.
        assert variant.lost == pytest.approx(expected_losses(history, first), abs=1e-3)


def as_variant(run, name):
    sweep = {"id": "compare-20261121-100000-abcd", "variant": name, "comparison": "compare"}
    files.write_json(run.spec_file, run.read_spec() | {"sweep": sweep})
    return run


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
            assert found[key] == pytest.approx(value, rel=1e-6, abs=1e-5), key
        else:
            assert found[key] == value, key
