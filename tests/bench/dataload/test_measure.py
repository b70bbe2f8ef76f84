"""The plan for the time that there is, and the figures of a node from those of its ranks."""

import pytest

from hpcdist.bench.dataload.measure import Passes, fit
from hpcdist.bench.dataload.ways import Way
from hpcdist.bench.dataload.workload import to_cell


@pytest.mark.parametrize(
    ("time_s", "expected"),
    [(100.0, (3, 100)), (25.0, (2, 100)), (10.0, (2, 50)), (0.01, (2, 1))],
    ids=["all", "fewer-passes", "shorter-passes", "one-batch"],
)
def test_passes_are_given_up_before_batches(time_s, expected):
    assert fit(3, 100, batch_time_s=0.1, time_s=time_s) == expected
    assert fit(1, 10, batch_time_s=1.0, time_s=5.0) == (1, 5)  # a single pass stays single


def passes(*times_s, parts_s=None, **fields):
    fields = {"first_batches_s": [0.5], **fields}
    return Passes(times_s=list(times_s), parts_s=parts_s or {}, **fields)


WAY = Way("none", 8, 2)


def test_the_slowest_rank_counts_and_rates_add_up():
    cell = to_cell(WAY, [passes(0.1, 0.3), passes(0.2, 0.2)], 4)
    assert cell.keys == {"transform": "none", "batch_size": 8, "workers": 2}
    assert (cell.repeats, cell.mean_time_s) == (2, pytest.approx(0.25))
    assert cell.sd_time_s == pytest.approx(0.0707, abs=1e-4)
    assert cell.rate == pytest.approx(2 * 8 / 0.25)
    turns = to_cell(Way(None, 8, 2), [passes(0.1, 0.2, first_batches_s=[0.5, 1.5])], 4)
    assert turns.keys == {"batch_size": 8, "workers": 2}
    assert turns.more == {"first_batch_time_s": pytest.approx(1.0)}


@pytest.mark.parametrize("workers", [0, 2, 8])
@pytest.mark.parametrize("cpus", [1, 4])
@pytest.mark.parametrize("stage_s", [0.002, 1.0], ids=["fast-stages", "slow-alone"])
def test_parts_are_the_time_of_workers_and_compute_on_no_more_cpus_than_there_are(
    workers, cpus, stage_s
):
    parts_s = {"read": stage_s / 4, "decode": stage_s, "collate": stage_s / 2}
    cell = to_cell(Way("none", 8, workers), [passes(1.0, parts_s=parts_s)], cpus)
    assert cell.parts_s["decode"] == pytest.approx(2 * cell.parts_s["collate"])
    computing_s = cell.parts_s["decode"] + cell.parts_s["collate"]
    assert cell.rate * computing_s <= cpus * 1.0001
    if stage_s < 0.01:
        assert cell.parts_s["decode"] == pytest.approx(stage_s)
        assert sum(cell.parts_s.values()) == pytest.approx(max(1, workers) * 1.0 / 8)
