"""How much is measured in the time that there is."""

import pytest

from hpcdist.bench.dataload.measure import Effort, first_batches, fit
from hpcdist.bench.dataload.workload import turns


@pytest.mark.parametrize(("repeats", "expected"), [(1, [1]), (2, [1, 1]), (5, [3, 2])])
def test_passes_are_shared_out_to_two_turns(repeats, expected):
    assert turns(repeats) == expected


@pytest.mark.parametrize(
    ("time_s", "expected"),
    [
        (100.0, Effort(passes=3, batches=100)),
        (25.0, Effort(passes=2, batches=100)),
        (10.0, Effort(passes=2, batches=50)),
        (0.01, Effort(passes=2, batches=1)),
    ],
    ids=["all", "fewer-passes", "shorter-passes", "one-batch"],
)
def test_passes_are_given_up_before_batches(time_s, expected):
    assert fit(Effort(passes=3, batches=100), batch_time_s=0.1, time_s=time_s) == expected


def test_a_single_pass_stays_single():
    wanted = Effort(passes=1, batches=10)
    assert fit(wanted, batch_time_s=1.0, time_s=5.0) == Effort(passes=1, batches=5)


@pytest.mark.parametrize(
    ("distinct", "batch_time_s", "expected"),
    [(1000, 0.01, 100), (31, 0.01, 31), (1000, 0.5, 20), (1000, 60.0, 1)],
    ids=["all", "no-file-twice", "no-time-for-more", "at-least-one"],
)
def test_a_first_pass_reads_no_file_twice_and_ends_in_time(distinct, batch_time_s, expected):
    assert first_batches(100, distinct=distinct, batch_time_s=batch_time_s, time_s=10) == expected
