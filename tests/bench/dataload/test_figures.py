"""From what the ranks of a node measured to the figures of the node."""

import pytest

from hpcdist.bench.dataload.figures import Passes, Place, Setting, to_cell
from hpcdist.job.spec import Data


def passes(*times_s, batches=10, start_s=0.5, first_s=0.2, worker_bytes=None):
    return Passes(
        batches=[batches] * len(times_s),
        times_s=list(times_s),
        starts_s=[start_s],
        firsts_s=[first_s],
        first_files="cold",
        worker_bytes=worker_bytes,
    )


PLACE = Place(node=1, host="n1", cpus=4)
SETTING = Setting(batch_size=8, workers=2)


def test_the_slowest_rank_counts_and_rates_add_up():
    cell = to_cell(SETTING, Data(), PLACE, [passes(1.0, 3.0), passes(2.0, 2.0)], {"decode": 0.01})
    assert cell.mean_time_s == pytest.approx(0.25)  # of 2 and 3 s for 10 batches
    assert cell.sd_time_s == pytest.approx(0.0707, abs=1e-4)
    assert cell.min_time_s == pytest.approx(0.2)
    assert cell.images_per_s == pytest.approx(2 * 8 / 0.25)
    assert (cell.ranks, cell.repeats, cell.batches) == (2, 2, 10)


def test_turns_count_together_and_the_first_one_was_the_cold_one():
    both = Passes(
        batches=[10, 20],
        times_s=[1.0, 4.0],
        starts_s=[0.5, 1.5],
        firsts_s=[0.2, 0.1],
        first_files="cold",
        worker_bytes=7,
    )
    cell = to_cell(SETTING, Data(), PLACE, [both], {})
    assert cell.mean_time_s == pytest.approx(0.15)  # of 1 s for 10, 4 s for 20
    assert cell.start_time_s == pytest.approx(1.0)
    assert cell.first_time_s == pytest.approx(0.2)
    assert cell.worker_bytes == 7


@pytest.mark.parametrize(
    ("workers", "cpus", "at_once"), [(0, 4, 1), (2, 4, 2), (8, 4, 4)], ids=["none", "two", "many"]
)
def test_what_no_stage_explains_is_hand_over_and_waiting(workers, cpus, at_once):
    setting = Setting(batch_size=8, workers=workers)
    stages = {"read": 0.001, "decode": 0.002}
    place = Place(node=0, host="n0", cpus=cpus)
    cell = to_cell(setting, Data(), place, [passes(10.0)], stages)
    assert cell.parts_s["hand_over"] == pytest.approx(at_once * 1.0 / 8 - 0.003)


def test_one_pass_has_no_spread():
    assert to_cell(SETTING, Data(), PLACE, [passes(1.0)], {}).sd_time_s is None
