"""The time that a job waits between its lives is none that it computes in."""

import pytest

from hpcdist.runs.verdict import Beginning
from hpcdist.summary import summarize
from hpcdist.summary.report.remarks import remarks

DAY_S = 86_400.0


def test_a_day_in_the_queue_between_two_lives_is_no_lost_time_and_has_a_line(make_run, events):
    run = make_run("requeued")
    for life, begin_s in enumerate((1000.0, 1000.0 + DAY_S)):
        start = events.start(0, world_size=1) | {"time_s": begin_s}
        # It starts for 5 s, steps for 100 s, and ends 1 s later.
        window = events.window(
            step=100 * (life + 1), times_s=[1.0] * 100, samples=100, time_s=begin_s + 105
        )
        resume = [{"event": "resume", "step": 100}] if life else []
        end = events.end() | {"time_s": begin_s + 106}
        events.write(run, 0, [start, *resume, window, end], attempt=life)
        run.write_beginning(life, Beginning(life=life, time_s=begin_s))
    (found,) = summarize([run], {}).runs
    assert found.lost_time_s == pytest.approx(1 + 5)
    assert found.waited_s == pytest.approx(DAY_S - 106)
    assert found.cell.shares["restarts"] == pytest.approx(6 / 206)
    assert found.cost.lost_s == found.lost_time_s
    text = " ".join(remarks(found, is_alone=True))
    assert "6.0 s lost; 86,294.0 s in the queue between" in text
