"""When a job would start: time limits against maintenances, and what LSF and PBS say is free."""

import math
import time

import pytest

from hpcdist.cluster.site import Partition
from hpcdist.planning.when import as_limit, round_limit, start_sentence, why_too_long
from hpcdist.schedulers.base import Start

NOW_S = time.mktime((2026, 11, 25, 10, 0, 0, 0, 0, -1))
HOUR_S = 3600


@pytest.mark.parametrize(
    ("minutes", "down", "up"), [(1438, 1410, 1440), (179, 175, 180), (1.5, 1, 2), (-10, 0, 0)]
)
def test_a_time_limit_is_round(minutes, down, up):
    assert (round_limit(minutes, math.floor), round_limit(minutes, math.ceil)) == (down, up)


def test_a_limit_is_written_as_the_option_takes_it():
    assert [as_limit(1441), as_limit(0.001)] == ["24:01:00", "0:00:01"]


@pytest.mark.parametrize(
    ("name", "limit_min", "problem"),
    [
        ("short", 61, "short allows --time 1:00:00 at most"),
        ("short", 60, None),
        (None, 121, "usual allows --time 2:00:00 at most"),
        ("unknown", 1e6, None),
    ],
)
def test_a_time_limit_beyond_that_of_the_partition_never_starts(name, limit_min, problem):
    partitions = [
        Partition(name=one, num_nodes=4, cpus=4, time_limit_min=most, is_default=one == "usual")
        for one, most in (("short", 60), ("usual", 120), ("long", None))
    ]
    assert why_too_long(partitions, name, limit_min) == problem


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (Start(time_s=NOW_S + 1), "at once, as things stand"),
        (
            Start(time_s=NOW_S + 44.5 * HOUR_S),
            "Friday 06:30, in 44:30:00, at the latest, as things stand",
        ),
        (Start(), ""),
    ],
)
def test_a_start_is_a_sentence(start, sentence):
    assert start_sentence(start, NOW_S) == sentence
