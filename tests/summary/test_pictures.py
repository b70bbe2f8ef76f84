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


def windows_of(events, *, times_s, clock_s, first_step=0, loss=1.0, waits_s=None):
    """One window of ten steps per time, on a clock of its own."""
    made, now_s = [], clock_s
    for index, time_s in enumerate(times_s, 1):
        now_s += 10 * time_s
        phases = {"exposed_communication": [waits_s[index - 1]] * 10} if waits_s else {}
        made.append(
            events.window(
                step=first_step + 10 * index,
                times_s=[time_s] * 10,
                samples=100,
                phases_s=phases,
                time_s=now_s,
                loss=loss / index,
            )
        )
    return made


@pytest.fixture
def make_ddp(make_run, events):
    """A run whose last rank computes three times as long as others, which wait for it; each rank
    has a clock of its own, minutes apart."""

    def make(name, gpus, *, job="ddp", time_s=0.3):
        run = make_run(name, gpus=gpus, job=job)
        for rank in range(gpus):
            is_slow = rank == gpus - 1 and gpus > 1
            waits_s = None if is_slow else [time_s * 2 / 3 if gpus > 1 else 0.0] * 4
            clock_s = 1e9 + 200.0 * rank
            windows = windows_of(events, times_s=[time_s] * 4, clock_s=clock_s, waits_s=waits_s)
            evaluation = {
                "event": "evaluate",
                "time_s": clock_s + 12.5,
                "step": 40,
                "loss": 0.5,
                "accuracy": 0.9,
            }
            written = [events.start(rank, world_size=gpus), *windows, evaluation, events.end()]
            events.write(run, rank, written)
        return run

    return make


def test_damaged_figures_draw_what_is_left_and_one_point_nothing(series_of, make_run, events):
    run = make_run("odd")
    first, second, third, whole = windows_of(events, times_s=[0.1] * 4, clock_s=5.0)
    first |= {"loss": None}
    second |= {"loss": 1e308, "step": 10**30, "time_s": 1e12}
    third |= {"wall_s": 0.0, "time_s": None}
    old = {"event": "evaluate", "time_s": 5.0, "loss": 0.5, "accuracy": 0.5}
    made = [events.start(0, world_size=1), first, second, third, whole, old]
    events.write(run, 0, made)
    found = series_of(run)
    assert 40 in found.train_loss.steps
    assert 10 not in found.train_loss.steps
    assert found.test_loss.steps == []
    assert [picture.draw() for picture in pictures_of(run).values()]
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([50.0]), events.end()])
    assert pictures_of(run) == {}


def write_pictures(summary, folder):
    """Those of a summary; returns what the folder holds then."""
    draw_pictures(list(make_sections(summary)), folder)
    return sorted(folder.iterdir())


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
    (_, _, (bars,)) = axes.containers[0]
    drawn = [tuple(segment[:, 1]) for segment in bars.get_segments()]
    cells = [summary.runs[place].cell.speedup for place in (2, 4)]
    ends = [(one.interval.low, one.interval.high) for one in cells]
    assert drawn == [pytest.approx(each) for each in [(1, 1), *ends]]
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
    written = write_pictures(summary, tmp_path / "a" / "b")
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
