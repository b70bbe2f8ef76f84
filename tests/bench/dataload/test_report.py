"""The picture: it is one, and what is compared is on it."""

import pytest
from msgspec import structs

from hpcdist.bench.dataload.report import MOST_AXES, group_in_panels, make_figure


def test_each_transform_has_a_panel_of_its_own_with_the_same_scale(cell):
    cells = [
        cell(workers, time_ms, transform=transform)
        for transform, time_ms in (("none", 30.0), ("light", 50.0))
        for workers in (0, 1, 2)
    ]
    none, light = make_figure(cells).axes
    assert (none.get_title(), light.get_title()) == ("transform none", "transform light")
    assert none.get_ylim() == light.get_ylim()
    assert none.get_ylim()[0] == 0
    for axes, time_ms in ((none, 30.0), (light, 50.0)):
        (line,) = [line for line in axes.lines if line.get_marker() == "o"]
        assert list(line.get_xdata()) == [0, 1, 2]
        assert list(line.get_ydata()) == pytest.approx([time_ms] * 3)


def test_times_that_span_decades_have_a_log_axis_and_bars_are_quartiles(cell):
    quartiles = {"p25_time_s": 0.02, "median_time_s": 0.03, "p75_time_s": 0.08}
    slow = cell(0, 3000.0, transform="light")
    wide = structs.replace(cell(0, 40.0, transform="none"), sd_time_s=0.1, **quartiles)
    axes, _ = make_figure([wide, slow]).axes
    assert axes.get_yscale() == "log"
    (_, _, (bars,)) = axes.containers[0]
    assert bars.get_segments()[0][:, 1] == pytest.approx([20, 80])
    figure = make_figure([wide])
    assert "median and quartiles" in figure.axes[0].get_ylabel()


def test_what_else_is_compared_has_axes_of_its_own_but_not_too_many(cell):
    cells = [cell(2, 30.0, batch_size=size) for size in range(1, 20)]
    assert len(group_in_panels(cells)) == 19
    many, most = make_figure(cells), make_figure(cells[:MOST_AXES])
    assert tuple(many.get_size_inches()) == tuple(most.get_size_inches())
    assert len(many.axes) == MOST_AXES
