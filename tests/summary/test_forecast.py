"""Forecasts: against runs that follow a known law, with and without noise."""

import io
import math
import random

import pytest

from hpcdist.base.statistics import Measure, quantile
from hpcdist.summary import print_summary, summarize, to_json
from hpcdist.summary.compare.forecast import make_forecast
from hpcdist.summary.report.text import make_console
from hpcdist.summary.values import RunSummary


def run_of(gpus, time_s, *, batch=64, is_strong=False, nodes=1, **fields):
    """A run whose steps take so long."""
    samples = batch if is_strong else batch * gpus
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


LAWS = {
    "work": (False, lambda _: 1.0),
    "ring": (False, lambda gpus: 1 + 0.3 * (gpus - 1) / gpus),
    "Amdahl": (True, lambda gpus: 1 / gpus + 0.05),
    "strong ring": (True, lambda gpus: 1 / gpus + 0.02 + 0.05 * (gpus - 1) / gpus),
}


@pytest.mark.parametrize("sizes", [(1, 2, 4), (1, 2, 4, 8), (2, 4, 8, 16)], ids=str)
@pytest.mark.parametrize("name", LAWS)
def test_with_little_noise_the_truth_is_within_a_narrow_forecast(name, sizes):
    is_strong, law = LAWS[name]
    rng = random.Random(3)
    times = [(gpus, law(gpus) * (1 + rng.gauss(0, 0.001))) for gpus in sizes for _ in range(3)]
    runs = [run_of(gpus, time_s, is_strong=is_strong) for gpus, time_s in times]
    found = make_forecast(runs, "strong" if is_strong else "weak")
    assert found.refused_because is None
    assert [size.gpus for size in found.sizes] == [2 * sizes[-1], 4 * sizes[-1]]
    for size in found.sizes:
        work = 1 if is_strong else size.gpus / sizes[0]
        truth = work * law(sizes[0]) / law(size.gpus)
        assert size.speedup.interval.low <= truth <= size.speedup.interval.high
        assert size.speedup.interval.high < 1.25 * size.speedup.interval.low
        ideal = size.gpus / sizes[0]
        assert size.speedup.interval.high <= 1.02 * ideal


@pytest.mark.parametrize("sizes", [(1, 2, 4), (1, 2, 4, 8), (2, 4, 8, 16)], ids=str)
def test_where_communication_grows_by_another_law_the_forecast_is_wide_or_refused(sizes):
    rng = random.Random(3)

    def law(gpus):
        return 1 + 0.08 * math.log2(gpus)

    times = [(gpus, law(gpus) * (1 + rng.gauss(0, 0.001))) for gpus in sizes for _ in range(3)]
    found = make_forecast([run_of(gpus, time_s) for gpus, time_s in times], "weak")
    assert found.sizes or "the measurements allow" in found.refused_because
    for size in found.sizes:
        truth = size.gpus / sizes[0] * law(sizes[0]) / law(size.gpus)
        assert size.speedup.interval.low <= truth <= size.speedup.interval.high


@pytest.mark.parametrize("name", LAWS)
def test_of_many_noisy_sweeps_at_least_93_in_100_forecasts_hold_the_truth(name):
    is_strong, law = LAWS[name]
    rng = random.Random(11)
    held = told = 0
    for _ in range(120):
        runs = [
            run_of(gpus, law(gpus) * (1 + rng.gauss(0, 0.01)), is_strong=is_strong)
            for gpus in (1, 2, 4, 8)
            for _ in range(3)
        ]
        found = make_forecast(runs, "strong" if is_strong else "weak")
        for size in found.sizes[:1]:
            told += 1
            baseline_s = sum(64 / run.samples_per_s.mean for run in runs[:3]) / 3
            truth = (1 if is_strong else size.gpus) * baseline_s / law(size.gpus)
            truth = min(truth, size.gpus)
            held += size.speedup.interval.low <= truth <= size.speedup.interval.high
    assert told > 100
    assert held >= 0.93 * told


@pytest.mark.parametrize(
    ("runs", "scaling", "reason"),
    [
        pytest.param(
            [run_of(1, 1.0), run_of(2, 1.1)],
            "weak",
            "it takes runs of 3 sizes, and there are 2",
            id="two sizes",
        ),
        pytest.param(
            [run_of(1, 1.0), run_of(1, 1.01), run_of(2, 1.1), run_of(2, 1.2)],
            "weak",
            "it takes runs of 3 sizes, and there are 2",
            id="repeats are no sizes",
        ),
        pytest.param(
            [run_of(gpus, 1.0) for gpus in (1, 2, 4)],
            None,
            "the number of samples per step is neither the same in all sizes nor for each GPU",
            id="neither strong nor weak",
        ),
        pytest.param(
            [run_of(gpus, 1.0 * gpus, num_cpus=2) for gpus in (1, 2, 4)],
            "weak",
            "the ranks share CPUs, so more ranks are not more hardware",
            id="shared CPUs",
        ),
        pytest.param(
            [run_of(1, 1.0), run_of(2, 1.1), run_of(4, 1.3, nodes=2)],
            "weak",
            "only one size is on several nodes: submit it with another --nodes",
            id="one size crosses nodes",
        ),
        pytest.param(
            [run_of(gpus, 1.0 / gpus + 0.1, is_strong=True, batch=4) for gpus in (1, 2, 4)],
            "strong",
            "a step has too few samples for more GPUs",
            id="no sample for each GPU",
        ),
    ],
)
def test_where_too_little_is_known_it_is_refused_and_said_why(runs, scaling, reason):
    found = make_forecast(runs, scaling)
    assert (found.refused_because, found.sizes) == (reason, [])


def test_runs_that_scatter_widely_are_refused_with_what_they_would_allow():
    times = [(1, 1.0), (1, 1.4), (2, 1.6), (2, 1.0), (4, 1.1), (4, 2.0)]
    found = make_forecast([run_of(gpus, time_s) for gpus, time_s in times], "weak")
    assert found.refused_because.startswith("the measurements allow ")
    assert found.refused_because.endswith("or repeats (--repeat 3) would narrow this")


def test_ranks_with_cpus_of_their_own_are_more_hardware():
    runs = [run_of(gpus, 1 + 0.001 * gpus, num_cpus=8 * gpus, nodes=gpus) for gpus in (1, 2, 4, 8)]
    assert make_forecast(runs, "weak").refused_because is None


def test_the_slower_network_between_nodes_is_seen_in_several_sizes_that_cross_them():
    def law(gpus, nodes):
        return 1 + 0.05 * (gpus - 1) / gpus + 0.4 * (nodes - 1) / nodes

    rng = random.Random(2)
    shapes = [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)]
    runs = [
        run_of(gpus, law(gpus, nodes) * (1 + rng.gauss(0, 0.001)), nodes=nodes)
        for gpus, nodes in shapes
        for _ in range(3)
    ]
    found = make_forecast(runs, "weak")
    assert [size.gpus for size in found.sizes] == [32, 64]
    for size in found.sizes:
        truth = size.gpus * 1.0 / law(size.gpus, size.gpus // 4)
        assert size.speedup.interval.low <= truth <= size.speedup.interval.high


def test_the_summary_tells_the_forecast_in_words_and_in_json(make_scaled):
    runs = make_scaled(3)
    summary = summarize(runs, {})
    told = [run["cell"]["forecast"] for run in to_json(summary)]
    assert told[:6] == [None] * 6  # it stands with the largest size
    assert [size["gpus"] for size in told[-1]["sizes"]] == [8, 16]
    file = io.StringIO()
    print_summary(summary, make_console(file))
    text = " ".join(file.getvalue().split())
    assert "Forecast: 8 GPUs 7." in text
    assert "times as fast as 1, with 95 % confidence." in text


def of_numpy(times_s, *, over_nodes):
    """The speed-up and its interval on 4 times the largest size, by another program: least squares
    of relative errors, strong scaling, no noise within runs."""
    numpy = pytest.importorskip("numpy")

    def terms(gpus, nodes):
        members = nodes if over_nodes else gpus
        return numpy.array([1 / gpus, (members - 1) / members])

    rows = numpy.array([terms(*size) / time_s for size, time_s in times_s.items()])
    weights, squares, *_ = numpy.linalg.lstsq(rows, [1.0] * len(rows), rcond=None)
    gpus, nodes = (4 * number for number in [*times_s][-1])
    row = terms(gpus, nodes if over_nodes else 1)
    time_s = row @ weights
    of_fit = row @ numpy.linalg.inv(rows.T @ rows) @ row / time_s**2
    freedom = len(rows) - 2
    variance = max(squares[0] / freedom, 0.002**2)
    half = quantile(0.95, freedom) * math.sqrt(variance * (of_fit + 2))
    first_s = next(iter(times_s.values()))
    return [first_s / time_s * factor for factor in (1, math.exp(-half), math.exp(half))]


@pytest.mark.parametrize(
    ("times_s", "over_nodes"),
    [
        ({(1, 1): 1.0, (2, 1): 0.57, (4, 1): 0.36, (8, 1): 0.24}, False),
        ({(1, 1): 0.8, (2, 1): 0.45, (4, 1): 0.275, (8, 1): 0.1875}, False),
        ({(2, 1): 0.4, (4, 2): 0.25, (8, 4): 0.175, (16, 8): 0.1375}, True),
    ],
    ids=["with errors", "without", "over nodes"],
)
def test_the_fit_is_that_of_numpy(times_s, over_nodes):
    runs = [run_of(gpus, t, nodes=n, is_strong=True) for (gpus, n), t in times_s.items()]
    size = make_forecast(runs, "strong").sizes[-1]
    found = (size.speedup.mean, size.speedup.interval.low, size.speedup.interval.high)
    assert found == pytest.approx(of_numpy(times_s, over_nodes=over_nodes))


def test_communication_does_not_take_less_than_no_time():
    runs = [run_of(gpus, gpus**-1.02, is_strong=True) for gpus in (1, 2, 4)]
    size = make_forecast(runs, "strong").sizes[0]
    assert size.speedup.mean == size.speedup.interval.high == 8  # the ideal
