"""What makes figures doubtful is named beside them."""

import pytest

from hpcdist.base.statistics import Interval, Measure
from hpcdist.base.text import interval_text, spread_text
from hpcdist.summary import summarize
from hpcdist.summary.report.report import make_report


def test_an_interval_that_says_nothing_is_not_known():
    wide = Measure(mean=5.35, interval=Interval(low=-314_733.0, high=314_744.0))
    assert interval_text(wide, 2) == spread_text(wide, 2) == "5.35 (interval not known)"
    assert interval_text(Measure(mean=2.9, interval=Interval(low=1.7, high=4.8)), 1) == (
        "2.9 (1.7 to 4.8)"
    )


@pytest.mark.parametrize(
    ("most", "percent", "slower"), [(4, "400 %", 1), (2, "200 %", 1), (2, "118 %", 1.7)]
)
def test_samples_of_all_ranks_that_each_rank_counted_are_doubted(
    make_run, events, most, percent, slower
):
    said = f"{percent} of the ideal speed-up (weak scaling). That cannot be: record.step(samples="
    runs = []
    for gpus in (1, most):
        run = make_run(f"on-{gpus}", gpus=gpus)
        for rank in range(gpus):
            start = events.start(rank, world_size=gpus, device="cuda:0")
            own = 100 * gpus
            rate = own if gpus == 1 else own / slower
            events.write(run, rank, [start, *events.steady([rate] * 5, samples=own)])
        runs.append(run)
    (section,) = make_report(summarize(runs, {})).sections
    assert said in section.conclusions[0]


def test_a_rank_that_stopped_before_the_others_is_named(make_run, events):
    run = make_run("uneven", gpus=2)
    for rank, windows in ((0, 10), (1, 9)):
        start = events.start(rank, world_size=2)
        events.write(run, rank, [start, *events.steady([100.0] * windows), events.end()])
    (found,) = summarize([run], {}).runs
    assert found.notes == ["rank 1 recorded no step after step 90, and others went on to step 100"]
