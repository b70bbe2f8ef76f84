"""Forecasts: against runs that follow a known law, with and without noise."""

import math
import random

import pytest
from summary_text import in_words

from hpcdist.base.statistics import Measure, quantile
from hpcdist.summary import summarize, to_json
from hpcdist.summary.compare.forecast import make_forecast
from hpcdist.summary.values import RunSummary


def run_of(gpus, time_s, *, is_strong=False, nodes=1, **fields):
    """A run whose steps take so long."""
    samples = 64 if is_strong else 64 * gpus
    return RunSummary(
        run=f"run-{gpus}-{nodes}-{time_s}",
        job="ddp",
        nodes=nodes,
        gpus_per_node=gpus // nodes,
        world_size=gpus,
        samples_per_s=Measure(mean=samples / time_s),
        samples_per_step=samples,
        **fields,
    )


@pytest.mark.parametrize("is_strong", [False, True], ids=["weak", "strong"])
def test_with_little_noise_the_truth_is_within_a_narrow_forecast(is_strong):
    def law(gpus):
        return (1 / gpus if is_strong else 1) + 0.1 * (gpus - 1) / gpus

    rng = random.Random(3)
    times = [(gpus, law(gpus) * rng.gauss(1, 0.001)) for gpus in (2, 4, 8, 16) for _ in range(3)]
    runs = [run_of(gpus, time_s, is_strong=is_strong) for gpus, time_s in times]
    found = make_forecast(runs, "strong" if is_strong else "weak")
    assert [size.gpus for size in found.sizes] == [32, 64]
    for size in found.sizes:
        truth = (1 if is_strong else size.gpus / 2) * law(2) / law(size.gpus)
        assert size.speedup.interval.low <= truth <= size.speedup.interval.high
        assert size.speedup.interval.high < 1.25 * size.speedup.interval.low


REFUSED = {
    None: (
        [run_of(n, 1 + 0.001 * n, num_cpus=8 * n, nodes=n) for n in (1, 2, 4, 8)],
        "weak",
    ),
    "it takes runs of 3 sizes, and there are 2": (
        [run_of(1, 1.0), run_of(1, 1.01), run_of(2, 1.1), run_of(2, 1.2)],
        "weak",
    ),
    "the ranks share CPUs, so more ranks are not more hardware": (
        [run_of(gpus, 1.0 * gpus, num_cpus=2) for gpus in (1, 2, 4)],
        "weak",
    ),
    "only one size is on several nodes: submit it with another --nodes": (
        [run_of(1, 1.0), run_of(2, 1.1), run_of(4, 1.3, nodes=2)],
        "weak",
    ),
}


@pytest.mark.parametrize(("reason", "case"), REFUSED.items())
def test_where_too_little_is_known_it_is_refused_and_said_why(reason, case):
    found = make_forecast(*case)
    assert (found.refused_because, bool(found.sizes)) == (reason, reason is None)


def test_the_summary_tells_the_forecast_in_words_and_in_json(make_scaled):
    runs = make_scaled(3)
    summary = summarize(runs, {})
    told = [run["cell"]["forecast"] for run in to_json(summary)]
    assert told[:6] == [None] * 6  # it stands with the largest size
    assert [size["gpus"] for size in told[-1]["sizes"]] == [8, 16]
    text = in_words(summary)
    assert "Forecast: 8 GPUs 7." in text
    assert "times as fast as 1, with 95 % confidence." in text


def of_numpy(times_s):
    """The speed-up and its interval on 4 times the largest size, by another program: least squares
    of relative errors, strong scaling, no noise within runs."""
    numpy = pytest.importorskip("numpy")

    def terms(gpus):
        return numpy.array([1 / gpus, (gpus - 1) / gpus])

    rows = numpy.array([terms(gpus) / time_s for gpus, time_s in times_s.items()])
    weights, squares, *_ = numpy.linalg.lstsq(rows, [1.0] * len(rows), rcond=None)
    row = terms(4 * max(times_s))
    time_s = row @ weights
    of_fit = row @ numpy.linalg.inv(rows.T @ rows) @ row / time_s**2
    freedom = len(rows) - 2
    variance = max(squares[0] / freedom, 0.002**2)
    half = quantile(0.95, freedom) * math.sqrt(variance * (of_fit + 2))
    first_s = next(iter(times_s.values()))
    return [first_s / time_s * factor for factor in (1, math.exp(-half), math.exp(half))]


def test_the_fit_is_that_of_numpy():
    times_s = {1: 1.0, 2: 0.57, 4: 0.36, 8: 0.24}
    runs = [run_of(gpus, time_s, is_strong=True) for gpus, time_s in times_s.items()]
    size = make_forecast(runs, "strong").sizes[-1]
    found = (size.speedup.mean, size.speedup.interval.low, size.speedup.interval.high)
    assert found == pytest.approx(of_numpy(times_s))


def test_runs_that_scatter_widely_are_refused_with_what_they_would_allow():
    times = [(1, 1.0), (1, 1.4), (2, 1.6), (2, 1.0), (4, 1.1), (4, 2.0)]
    found = make_forecast([run_of(gpus, time_s) for gpus, time_s in times], "weak")
    assert found.refused_because.startswith("the measurements allow ")
    assert found.refused_because.endswith("or repeats (--repeat 3) would narrow this")
    runs = [run_of(gpus, gpus**-1.02, is_strong=True) for gpus in (1, 2, 4)]
    size = make_forecast(runs, "strong").sizes[0]  # communication takes no less than no time
    assert size.speedup.mean == size.speedup.interval.high == 8
