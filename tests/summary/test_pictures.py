"""Which pictures a summary has, and that their figures are those of the events."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from hpcdist.base.plotting import render
from hpcdist.job.goal import Goal
from hpcdist.summary import summarize
from hpcdist.summary.report.pictures.catalogue import find_pictures
from hpcdist.summary.report.report import make_sections
from hpcdist.summary.writing import draw_pictures


@pytest.fixture
def make_ddp(record_run, events):
    """A run whose last rank never waits for the others, which wait for it."""

    def make(name, gpus, *, job="ddp"):
        ranks = []
        for rank in range(gpus):
            waits = {"exposed_communication": [0.2 if rank < gpus - 1 else 0.0] * 10}
            ranks.append(
                events.window(step=10 * n, times_s=[0.3] * 10, samples=100, phases_s=waits)
                | {"time_s": 1e9 + 3 * n, "loss": 1 / n}
                for n in range(1, 5)
            )
        test = {"event": "evaluate", "time_s": 1e9 + 12.5, "step": 40}
        test |= {"loss": 0.5, "accuracy": 0.9}
        return record_run(name, *([*made, test, events.end()] for made in ranks), job=job)

    return make


def pictures_of(*runs, **options):
    """The pictures of runs, by name."""
    sections = make_sections(summarize(list(runs), {}, **options))
    return {picture.name: picture for _, picture in find_pictures(sections)}


def test_repeats_learn_as_one_line_in_a_band_beside_the_goal(make_ddp):
    runs = [make_ddp(f"one-{repeat}", 1) for repeat in range(8)] + [make_ddp("two", 2)]
    picture = pictures_of(*runs, goal=Goal("accuracy", 0.8))["ddp-learning"]
    assert "Bands hold all repeats." in picture.description
    assert "Dotted is 80.0 % test accuracy." in picture.description
    axes, _, *others = picture.draw().axes
    for each in others:
        assert [80.0, 80.0] in [list(line.get_ydata()) for line in each.lines]
    names = [line.get_label() for line in axes.lines]
    assert names == [
        f"{name}: {what}" for name in ("1 x 1, 8 runs", "1 x 2") for what in ("training", "test")
    ]
    assert len(axes.collections) == 2


def test_the_scaling_picture_shows_what_more_gpus_would_bring(make_scaled):
    runs = make_scaled(2)
    summary, picture = summarize(runs, {}), pictures_of(*runs)["ddp-scaling"]
    assert picture.title == "ddp: speed against size (weak scaling)"
    assert "the dashed line is the forecast" in picture.description
    (axes,) = picture.draw().axes
    (forecast,) = [line for line in axes.lines if line.get_label() == "forecast"]
    assert list(forecast.get_xdata()) == [4, 8, 16]
    told = [size.speedup for size in summary.runs[-1].cell.forecast.sizes]
    assert list(forecast.get_ydata())[1:] == [one.mean for one in told]
    (band,) = axes.collections[-1:]
    low, high = told[-1].interval.low, told[-1].interval.high
    assert {tuple(point) for point in band.get_paths()[0].vertices} >= {(16, low), (16, high)}


def test_pictures_are_drawn_in_both_forms_whatever_the_names_are(make_ddp, tmp_path):
    job = r"_a $x$ <b>&\frac{"
    runs = [make_ddp(f"ddp-{gpus}", gpus, job=job) for gpus in (1, 2)]
    summary = summarize(runs, {})
    draw_pictures(list(make_sections(summary)), tmp_path / "a" / "b")
    written = [*(tmp_path / "a" / "b").iterdir()]
    assert sorted(path.name for path in written) == sorted(
        f"a-x-b-frac-{name}.png" for name in ("scaling", "losses", "learning")
    )
    for path in written:
        with Image.open(path) as image:
            assert len(image.convert("RGB").getcolors(1 << 24)) > 10
    for _, picture in find_pictures(list(make_sections(summary))):
        texts = "".join(ET.fromstring(render(picture, "svg")).itertext())
        assert job.strip("_")[:4] in texts or "ddp-" in texts
        assert "mathdefault" not in texts
