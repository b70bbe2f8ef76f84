"""What LSF's books add to a summary."""

import json

import pytest
from cluster_user import User
from lsf_site.config import IBM, STRICT
from trainings import CPU, TWO

from hpcdist.schedulers.lsf.bjobs import parse_seconds, parse_size

WAIT_FOR_ALL = """\
import os, time
from pathlib import Path
Path(f"there-{os.environ['RANK']}").touch()
while not all(Path(f"there-{rank}").exists() for rank in range(2)):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("engine", [IBM, STRICT])
def test_a_summary_has_what_the_engine_tells_of_a_job(lsf_like, tmp_path, engine):
    user = User(lsf_like(engine=engine), tmp_path)
    script = user.write("wait.py", WAIT_FOR_ALL)
    run = user.submit(script, *TWO, *CPU, "--scheduler", "lsf")
    assert user.verdict(run).kind == "done"

    def ended():
        (found,) = json.loads(user("summary", "--json").stdout)
        books = found["accounting"]
        return (found,) if books is None or books["end_s"] else None

    books = user.cluster.wait_for(ended)[0]["accounting"]
    assert (books["job_id"], books["state"]) == (run.read_job_id(), "DONE")
    assert (books["exit_code"], len(books["nodes"])) == (0, 2)
    assert books["elapsed_s"] >= 0
    assert books["end_s"] >= books["start_s"] >= books["submit_s"]
    assert (books["queue_wait_s"] is not None) == (engine == IBM)
    assert books["max_rss_bytes"] == (256 * 2**20 if engine == IBM else None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12 second(s)", 12), ("7", 7), ("01:00:02", 3602), ("-", None), ("", None)],
)
def test_lengths_of_time_come_in_several_forms(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("512 Mbytes", 2**29), ("1.5 Gbytes", 3 * 2**29), ("3K", 3072), ("2 MB", 2**21), ("-", None)],
)
def test_sizes_come_in_several_forms(text, size):
    assert parse_size(text) == size
