"""Which pictures a summary has, and that their figures are those of the events."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from hpcdist.base.errors import UserError
from hpcdist.base.plotting import render
from hpcdist.base.statistics import Interval, Measure, Ratio
from hpcdist.job.goal import Goal
from hpcdist.summary import summarize
from hpcdist.summary.report.pictures.catalogue import find_pictures
from hpcdist.summary.report.pictures.over_time import draw_learning
from hpcdist.summary.report.pictures.speed import draw_scaling
from hpcdist.summary.report.report import make_sections
from hpcdist.summary.values import Cell
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


def test_curves_show_what_was_done_again_once_and_time_goes_on(series_of, make_run, events):
    run = make_run("again")
    first = windows_of(events, times_s=[0.1] * 3, clock_s=100.0, loss=3.0)
    again = windows_of(events, times_s=[0.1] * 2, clock_s=110.0, first_step=10, loss=8.0)
    events.write(run, 0, [events.start(0, world_size=1), *first])
    resume = {"event": "resume", "time_s": 110.0, "step": 10}
    events.write(run, 0, [events.start(0, world_size=1), resume, *again], attempt=1)
    curve = series_of(run).train_loss
    assert curve.steps == [10, 20, 30]
    assert curve.values == pytest.approx([3.0, 8.0, 4.0])
    assert curve.times_s == pytest.approx([1.0, 11.0, 12.0])


def test_time_begins_with_the_first_step_also_where_the_first_window_has_a_pause(
    series_of, make_run, events
):
    run = make_run("paused")
    window = events.window(
        step=10, times_s=[0.4] * 10, samples=100, time_s=1e9 + 10, wall_s=4.0, pause_s=6.0
    )
    test = {"event": "evaluate", "time_s": 1e9 + 12, "step": 10, "loss": 1.0, "accuracy": 0.5}
    events.write(run, 0, [events.start(0, world_size=1), window, test, events.end()])
    curves = series_of(run)
    assert curves.train_loss.times_s == [10.0]
    assert curves.accuracy.times_s == [12.0]


def test_a_window_that_a_rank_wrote_after_it_hung_is_where_its_steps_were(
    series_of, make_run, events
):
    run = make_run("hung")
    first, last = windows_of(events, times_s=[0.1] * 2, clock_s=100.0)
    late = last | {"time_s": last["time_s"] + 600.0, "after_s": 600.0}
    events.write(run, 0, [events.start(0, world_size=1), first, late])
    assert series_of(run).train_loss.times_s == pytest.approx([1.0, 2.0])


def test_nothing_is_drawn_of_one_point(make_run, events):
    run = make_run("short")
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([50.0]), events.end()])
    assert pictures_of(run) == {}


def test_losses_that_are_no_numbers_and_old_evaluations_are_left_out(series_of, make_run, events):
    run = make_run("nan")
    windows = windows_of(events, times_s=[0.1] * 2, clock_s=0.0)
    windows[0]["loss"] = None
    evaluation = {"event": "evaluate", "time_s": 5.0, "loss": 0.5, "accuracy": 0.5}
    events.write(run, 0, [events.start(0, world_size=1), *windows, evaluation])
    found = series_of(run)
    assert found.train_loss.steps == [20]
    assert found.test_loss.steps == []


def test_damaged_figures_draw_what_is_left(series_of, make_ddp, make_run, events, tmp_path):
    run = make_run("odd", gpus=2, job="odd")
    for rank in range(2):
        windows = windows_of(events, times_s=[0.1] * 4, clock_s=5.0)
        windows[0] |= {"loss": 1e308}
        windows[1] |= {"step": 10**30, "time_s": 1e12}
        windows[2] |= {"wall_s": 0.0, "time_s": None}
        events.write(run, rank, [events.start(rank, world_size=2), *windows])
    still = make_run("still", gpus=2)
    for rank in range(2):
        (window,) = windows_of(events, times_s=[0.1], clock_s=0.0)
        still_window = window | {"wall_s": 0.0, "time_s": 0.0}
        events.write(still, rank, [events.start(rank, world_size=2), still_window])
    written = write_pictures(summarize([run, still, make_ddp("good", 2)], {}), tmp_path / "out")
    assert {path.name for path in written} >= {"odd-learning.png", "ddp-learning.png"}


def write_pictures(summary, folder):
    """Those of a summary; returns what the folder holds then."""
    draw_pictures(list(make_sections(summary)), folder)
    return sorted(folder.iterdir())


def pictures_of(*runs, **options):
    """The pictures of runs, by name."""
    sections = make_sections(summarize(list(runs), {}, **options))
    return {picture.name: picture for _, picture in find_pictures(sections)}


def run_of(gpus, mean, *, against=100.0, nodes=1, half=None):
    """`half`: half the width of the interval of the mean."""
    ends = half and Interval(low=mean - half, high=mean + half)
    of_speedup = half and Interval(low=ends.low / against, high=ends.high / against)
    speedup = Ratio(mean=mean / against, interval=of_speedup)
    return Cell(
        job="ddp",
        runs=[f"r{nodes}-{gpus}"],
        num_measured=1,
        nodes=nodes,
        gpus_per_node=gpus,
        world_size=gpus,
        samples_per_s=Measure(mean=mean, interval=ends),
        speedup=speedup,
        efficiency=Measure(mean=1.0),
    )


def test_the_scaling_picture_draws_the_speed_ups_of_the_table_of_sizes():
    (axes,) = draw_scaling([run_of(1, 100.0, half=5.0), run_of(2, 150.0, half=15.0)]).axes
    (_, _, (bars,)) = axes.containers[0]
    drawn = [tuple(segment[:, 1]) for segment in bars.get_segments()]
    assert drawn == [pytest.approx((1, 1)), pytest.approx((1.35, 1.65))]


def test_labels_of_what_is_far_below_the_ideal_stay_above_the_axis():
    sizes = [(1, 5100.0, 1), (2, 1700.0, 1), (4, 2600.0, 1), (2, 4700.0, 2), (8, 3600.0, 1)]
    runs = [run_of(gpus, mean, nodes=nodes, against=5100.0) for gpus, mean, nodes in sizes]
    figure = draw_scaling(runs)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert len(axes.texts) == 5
        assert all(text.get_window_extent().y0 > axes.bbox.y0 for text in axes.texts)
        lower, upper = sorted(text.xy[1] for text in axes.texts if text.xy[0] == 4)
        places = {text.xy: text.get_window_extent().y0 for text in axes.texts}
        assert places[4, upper] > places[4, lower]


def test_repeats_learn_as_one_line_in_a_band(make_ddp):
    runs = [make_ddp(f"one-{repeat}", 1) for repeat in range(8)] + [make_ddp("two", 2)]
    picture = pictures_of(*runs)["ddp-learning"]
    assert "Bands hold all repeats." in picture.description
    axes, *_ = picture.draw().axes
    names = [line.get_label() for line in axes.lines]
    assert names == [
        f"{name}: {what}" for name in ("1 x 1, 8 runs", "1 x 2") for what in ("training", "test")
    ]
    assert len(axes.collections) == 2


def test_a_legend_of_long_names_is_whole(series_of, make_ddp):
    learning = series_of(make_ddp("one", 1))
    figure = draw_learning({f"{'long name ' * 4}{number}": [learning] for number in range(3)})
    figure.draw_without_rendering()
    (legend,) = figure.legends
    ends = legend.get_window_extent()
    assert 0 <= ends.x0 < ends.x1 <= figure.bbox.x1


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


def test_the_learning_picture_has_the_target_of_the_time_to_accuracy(make_ddp):
    picture = pictures_of(make_ddp("ddp-2", 2), goal=Goal("accuracy", 0.8))["ddp-learning"]
    assert "Dotted is 80.0 % test accuracy." in picture.description
    for axes in picture.draw().axes[2:]:
        assert [80.0, 80.0] in [list(line.get_ydata()) for line in axes.lines]


def test_pictures_are_drawn_in_both_forms_whatever_the_names_are(make_ddp, tmp_path):
    job = r"_a $x$ <b>&\frac{"
    runs = [make_ddp(f"ddp-{gpus}", gpus, job=job) for gpus in (1, 2, 4)]
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


def test_there_are_no_pictures_of_runs_without_figures(make_run, tmp_path):
    assert write_pictures(summarize([make_run("bare", verdict=None)], {}), tmp_path / "out") == []


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(make_ddp, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="pictures cannot be written: ") as raised:
        write_pictures(summarize([make_ddp("ddp-1", 1)], {}), tmp_path / "file" / "below")
    assert raised.value.hint
