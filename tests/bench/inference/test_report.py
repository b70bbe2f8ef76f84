"""The picture of inference: readable whatever the figures span."""

import pytest

from hpcdist.base.plotting import LINES
from hpcdist.bench.inference.figures import DATA_PARALLEL, PROCESS_PER_GPU, SINGLE, InferenceCell
from hpcdist.bench.inference.report import make_figure

STRATEGIES = (SINGLE, DATA_PARALLEL, PROCESS_PER_GPU)


def timed(strategy, batch_size, mean_time_s):
    return InferenceCell(
        strategy=strategy,
        devices=1,
        batch_size=batch_size,
        repeats=5,
        mean_time_s=mean_time_s,
        median_time_s=mean_time_s,
        sd_time_s=0.01 * mean_time_s,
        images_per_s=batch_size / mean_time_s,
    )


@pytest.mark.parametrize("growth", [1.02, 1.5, 4.0, 30.0, 5000.0])
def test_every_axis_has_numbers_to_read_its_lines_by(growth):
    cells = [
        timed(strategy, batch_size, 0.0032 * growth**power)
        for strategy in STRATEGIES
        for power, batch_size in enumerate((1, 512))
    ]
    for axes in make_figure(cells).axes:
        low, high = axes.get_ylim()
        labels = [
            tick.get_text()
            for tick in axes.get_yticklabels()
            if low <= tick.get_position()[1] <= high
        ]
        assert len(labels) >= 2
        assert all(float(label.replace(",", "")) for label in labels)


def test_strategies_differ_in_colours_all_can_tell_apart_and_in_dashes():
    axes, _ = make_figure([timed(strategy, 8, 0.1) for strategy in STRATEGIES]).axes
    lines = [line for line in axes.lines if line.get_marker() in {"o", "s", "^"}]
    drawn = [(line.get_color(), line.get_linestyle()) for line in lines]
    assert drawn == [(style["color"], style["linestyle"]) for style in LINES[:3]]


def test_lines_go_from_the_smallest_batch_to_the_largest_whatever_was_timed_first():
    cells = [timed(SINGLE, batch_size, 0.001 * batch_size) for batch_size in (64, 1, 8)]
    for axes in make_figure(cells).axes:
        (line,) = [line for line in axes.lines if line.get_marker() == "o"]
        assert list(line.get_xdata()) == [1, 8, 64]
