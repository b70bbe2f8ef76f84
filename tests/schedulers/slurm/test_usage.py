"""What sacct says of jobs, as values. The lines are those of Slurm 22.05.8 but for the names."""

from __future__ import annotations

import time

import pytest

from hpcdist.schedulers.slurm.nodes import expand_nodes
from hpcdist.schedulers.slurm.slurm import parse_books, parse_size


def stamp(second):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1.7e9 + second))


def line(job_id, name, *, times=(0, 0, 10, 70), nodes="n[1-2]", state="COMPLETED", **cells):
    submit, eligible, start, end = ("Unknown" if at is None else stamp(at) for at in times)
    elapsed = 0 if None in times[2:] else times[3] - times[2]
    values = {"code": "0:0", "rss": ""} | cells
    return "|".join(
        [
            *(
                job_id,
                state,
                "None",
                values["code"],
                submit,
                eligible,
                start,
                end,
                str(elapsed),
                nodes,
            ),
            *(values["rss"], name),
        ]
    )


def parsed(*lines):
    return {(job.id, job.name): job for job in parse_books("\n".join(lines) + "\n")}


def test_a_job_has_its_own_times_and_the_largest_memory_of_its_steps():
    known = parsed(
        line("7", "ddp|odd", times=(0, 30, 90, 190)),
        line("7.batch", "batch", rss="5000K", nodes="n1"),
        line("7.0", "python", rss="300.5M"),
        line("8", "other", rss="9G"),
    )
    job = known["7", "ddp|odd"]
    assert (job.queue_wait_s, job.elapsed_s) == (60, 100)
    assert job.max_rss_bytes == int(300.5 * 2**20)
    assert (job.word, job.exit_code) == ("COMPLETED", 0)
    assert job.nodes == ["n1", "n2"]


def test_the_lives_of_a_job_that_was_started_again_are_added_up():
    known = parsed(
        line("7", "ddp", times=(0, 0, 10, 70), state="REQUEUED", nodes="n1"),
        line("7.0", "python", rss="800K"),
        line("7", "ddp", times=(70, 190, 200, 300), state="CANCELLED by 1000", code="0:15"),
        line("7.0", "python", rss="200K"),
    )
    job = known["7", "ddp"]
    assert (job.queue_wait_s, job.elapsed_s) == (20, 160)
    assert job.max_rss_bytes == 800 * 2**10
    assert (job.word, job.exit_code) == ("CANCELLED", 0)
    assert job.nodes == ["n1", "n2"]


def test_of_a_job_that_waits_or_runs_nothing_is_told_that_is_not_known():
    known = parsed(
        line("7", "waits", times=(0, 0, None, None), nodes="None assigned", state="PENDING"),
        line("8_3", "runs", times=(0, 0, 10, None), state="RUNNING"),
    )
    waits, runs = known["7", "waits"], known["8_3", "runs"]
    assert (waits.queue_wait_s, waits.elapsed_s) == (None, None)
    assert (waits.nodes, waits.exit_code) == ([], None)
    assert (runs.queue_wait_s, runs.exit_code) == (10, None)


def test_an_id_that_was_used_again_is_another_job():
    known = parsed(line("7", "old", nodes="a1"), line("7.0", "x", rss="1K"), line("7", "new"))
    assert known["7", "new"].max_rss_bytes is None
    assert known["7", "old"].max_rss_bytes == 2**10


def test_lines_of_another_form_are_left_out():
    assert parsed("", "sacct: error: something", "7|COMPLETED") == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-11],m1", ["n08", "n09", "n10", "n11", "m1"]),
        ("127.0.1.[1-2]", ["127.0.1.1", "127.0.1.2"]),
        ("None assigned", []),
        ("", []),
    ],
)
def test_node_lists_are_expanded(text, names):
    assert expand_nodes(text) == names


def test_a_damaged_node_list_does_not_fill_the_memory():
    assert expand_nodes("n[1-9999999999]") == ["n1-9999999999"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("1234K", 1234 * 2**10), ("0", 0), ("1.5M", 3 * 2**19), ("", None), ("-", None)],
)
def test_sizes_have_units(text, size):
    assert parse_size(text) == size
