"""Time limits as they are typed."""

import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.check import parse_minutes


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("0", 0),
        ("30:30", 30.5),
        ("1:30:00", 90),
        ("2-0", 2880),
        ("2-12:30", 3630),
        ("1-00:00:30", 1440.5),
        (" 5 ", 5),
    ],
)
def test_a_time_limit_is_read_as_sbatch_reads_it(text, minutes):
    assert parse_minutes(text, origin="--time") == minutes


@pytest.mark.parametrize("text", ["", "x", "-5", "1:", "1:2:3:4", "1-", "1-1:1:1:1", "2h", "1e3"])
def test_another_text_is_refused_with_examples(text):
    with pytest.raises(JobError, match=r"--time .*: must be a time limit in minutes") as caught:
        parse_minutes(text, origin="--time")
    assert "--time 1:30:00" in caught.value.hint
