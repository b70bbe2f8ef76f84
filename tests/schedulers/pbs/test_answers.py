"""PBS's answers, recorded from OpenPBS 23.06 with two hosts, as values and in plain words."""

from pathlib import Path

import pytest

from hpcdist.schedulers.pbs.qstat import parse_jobs, plain_reason
from hpcdist.schedulers.pbs.requeue import with_successor
from hpcdist.schedulers.pbs.site import parse_nodes, parse_queues

RECORDED = Path(__file__).parent / "recorded"


def jobs(name):
    return {job.job_id: job for job in parse_jobs((RECORDED / f"{name}.txt").read_text())}


@pytest.mark.parametrize(
    ("job_id", "state", "words"),
    [
        ("38", "running", None),
        ("39", "pending", "it waits for nodes to become free (Not Running: Not enough free nodes"),
        ("40", "pending", "it asks for more than the cluster has: it will never start (Can Never"),
        ("41", "pending", "it is held; release it with: qrls 41"),
        ("42", "pending", "it waits for the end of another job"),
        ("43", "pending", "its start time has not come"),
        ("45[1]", "pending", "the scheduler has not looked at it yet"),
    ],
)
def test_a_job_that_has_not_ended_says_why_it_waits(job_id, state, words):
    condition = jobs("active")[job_id].condition()
    assert condition.state == state
    assert (condition.reason or "").startswith(words or "")


@pytest.mark.parametrize(
    ("job_id", "state", "words"),
    [
        ("38", "cancelled", "it was ended with qdel"),
        ("41", "cancelled", "it was deleted before it had started"),
        ("36", "done", "PBS says: Job run at"),
        ("27[0]", "failed", "exit code 75"),
        ("27[1]", "done", "PBS says"),
        ("31", "failed", "exit code 75"),
        ("33", "cancelled", "it was ended with qdel"),  # though its exit code is 0
        ("5", "cancelled", "what it was to follow did not end as --after requires"),
    ],
)
def test_a_job_that_has_ended_says_how(job_id, state, words):
    condition = jobs("ended")[job_id].condition()
    assert condition.state == state
    assert condition.reason.startswith(words)


def test_an_array_is_not_among_its_jobs_and_its_jobs_know_their_places():
    assert "27[]" not in jobs("ended")
    assert jobs("ended")["27[1]"].task == "1"
    assert jobs("ended")["36"].task == ""


def test_the_books_of_a_job_are_read():
    books = jobs("ended")["36"].accounting()
    assert books.nodes == ["n1", "n2"]
    assert (books.exit_code, books.elapsed_s, books.queue_wait_s) == (0, 9.0, 0.0)


def test_a_queued_job_of_an_array_has_no_exit_code_though_qstat_shows_the_arrays():
    text = "Job Id: 30[2].pbs\n    Job_Name = a\n    job_state = Q\n    Exit_status = 1\n"
    assert parse_jobs(text)[0].exit_code is None


def test_lines_within_a_variable_change_nothing_that_was_said_before():
    text = (
        "Job Id: 7.pbs\n    Job_Name = long-na\n\tme\n    job_state = R\n"
        "    Variable_List = A=x\n    job_state = F\n    Exit_status = 0\n"
    )
    (job,) = parse_jobs(text)
    assert (job.name, job.state, job.exit_code) == ("long-name", "R", None)


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("Not Running: Insufficient amount of resource: ngpus (R: 3 A: 2 T: 4)", "GPUs"),
        ("Not Running: Queue not started.", "starts no jobs at present"),
        (
            "Not Running: User has reached queue lim running job limit.",
            "you have reached your limit",
        ),
        ("Not Running: the site's own words", "PBS says: Not Running: the site's own words"),
        ("", "the scheduler has not looked at it yet"),
    ],
)
def test_comments_are_told_in_plain_words_with_pbss_own(comment, words):
    assert words in plain_reason(comment)
    assert comment in plain_reason(comment)


@pytest.mark.parametrize(
    ("depend", "own", "told"),
    [
        ("afterok:12.pbs@pbs", "12", "afterok:40"),
        ("afterok:11.pbs@pbs:12.pbs@pbs,afterany:9.pbs@pbs", "12", "afterok:11:40,afterany:9"),
        ("afterany:12[].pbs@pbs", "12[]", "afterany:12[]:40"),
        ("afterany:12[].pbs@pbs:39.pbs@pbs", "12[]", "afterany:12[]:39:40"),
    ],
)
def test_what_waits_for_a_job_waits_for_the_one_in_its_place(depend, own, told):
    assert with_successor(depend, own, "40") == told


def test_nodes_and_queues_are_read():
    nodes = parse_nodes((RECORDED / "nodes.txt").read_text())
    assert [(one.name, one.cpus, one.gpus, one.is_up) for one in nodes] == [
        ("n1", 4, 2, True),
        ("n2", 4, 2, True),
    ]
    (queue,) = parse_queues((RECORDED / "queues.txt").read_text())
    assert (queue.name, queue.is_enabled, queue.is_started) == ("workq", True, True)
    limited = "Queue: gpu\n    enabled = False\n    resources_max.walltime = 24:00:00\n"
    (queue,) = parse_queues(limited)
    assert (queue.is_enabled, queue.limit_min) == (False, 1440)
