"""The picture: it is one, and what is compared is on it."""

import io

import pytest
from PIL import Image

from hpcdist.base.plotting import save
from hpcdist.bench.dataload.report import MOST_AXES, group_in_panels, make_figure


def colours(image):
    """Those of the picture without what blends into another."""
    counted = image.convert("RGB").getcolors(1 << 24)
    return {f"#{r:02X}{g:02X}{b:02X}" for number, (r, g, b) in counted if number > 100}


def test_each_transform_has_a_line_of_its_own_colour(cell):
    cells = [
        cell(workers, time_ms, transform=transform)
        for transform, time_ms in (("none", 30.0), ("light", 50.0))
        for workers in (0, 1, 2)
    ]
    with Image.open(io.BytesIO(save(make_figure(cells, "faces"), "png"))) as image:
        assert image.format == "PNG"
        assert {"#0072B2", "#D55E00"} <= colours(image)
        assert "#009E73" not in colours(image)


def test_what_else_is_compared_has_axes_of_its_own_but_not_too_many(cell):
    cells = [cell(2, 30.0, batch_size=size, prefetch_factor=2) for size in range(1, 20)]
    assert len(group_in_panels(cells)) == 19
    with Image.open(io.BytesIO(save(make_figure(cells, "many"), "png"))) as many:
        width, height = many.size
    with Image.open(io.BytesIO(save(make_figure(cells[:MOST_AXES], "most"), "png"))) as most:
        assert most.size == (width, height)


@pytest.mark.parametrize("workers", [(0,), (2,), (0, 2)], ids=["alone", "two", "both"])
def test_without_workers_belongs_to_every_prefetch_factor(cell, workers):
    cells = [
        cell(number, 30.0, prefetch_factor=factor)
        for number in workers
        for factor in ((2, 4) if number else (2,))
    ]
    assert len(group_in_panels(cells)) == (2 if 2 in workers else 1)
