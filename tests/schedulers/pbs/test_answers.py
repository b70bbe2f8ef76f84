"""PBS's answers, recorded from OpenPBS 23.06 with two hosts, as values and in plain words."""

from pathlib import Path

import pytest

from hpcdist.schedulers.pbs import pbs
from hpcdist.schedulers.pbs.pbs import parse_jobs, plain_reason, scheduler, with_successor

RECORDED = Path(__file__).parent / "recorded"


def jobs(name):
    return {job.id: job for job in parse_jobs((RECORDED / f"{name}.txt").read_text())}


@pytest.mark.parametrize(
    ("file", "job_id", "state", "words"),
    [
        ("active", "38", "running", ""),
        ("active", "39", "pending", "it waits for nodes to become free (Not Running: Not enough"),
        ("active", "41", "pending", "it is held; release it with: qrls 41"),
        ("active", "42", "pending", "it waits for the end of another job"),
        ("active", "43", "pending", "its start time has not come"),
        ("ended", "41", "cancelled", "it was deleted before it had started"),
        ("ended", "36", "done", "PBS says: Job run at"),
        ("ended", "31", "failed", "exit code 75"),
        ("ended", "33", "cancelled", "it was ended with qdel"),  # though its exit code is 0
        ("ended", "5", "cancelled", "what it was to follow did not end as --after requires"),
    ],
)
def test_a_job_says_why_it_waits_or_how_it_ended(file, job_id, state, words):
    job = jobs(file)[job_id]
    assert job.state == state
    assert (job.reason or "").startswith(words)


def test_the_books_on_a_job_are_read():
    books = jobs("ended")["36"].accounting()
    assert books.nodes == ["n1", "n2"]
    assert (books.exit_code, books.elapsed_s, books.queue_wait_s) == (0, 9.0, 0.0)


def test_lines_within_a_variable_change_nothing_that_was_said_before():
    text = (
        "Job Id: 7.pbs\n    Job_Name = long-na\n\tme\n    job_state = R\n"
        "    Variable_List = A=x\n    job_state = F\nword\n    Exit_status = 0\n"
    )
    (job,) = parse_jobs(text)
    assert (job.name, job.word, job.exit_code) == ("long-name", "R", None)


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("Not Running: Insufficient amount of resource: ngpus (R: 3 A: 2 T: 4)", "GPUs"),
        ("Not Running: the site's own words", "PBS says: Not Running: the site's own words"),
        ("", "the scheduler has not looked at it yet"),
    ],
)
def test_comments_are_told_in_plain_words_with_pbss_own(comment, words):
    assert words in plain_reason(comment)
    assert comment in plain_reason(comment)


def test_what_waits_for_a_job_waits_for_the_one_in_its_place():
    depend = "afterok:11.pbs@pbs:12.pbs@pbs,afterany:9.pbs@pbs"
    assert with_successor(depend, "12", "40") == "afterok:11:40,afterany:9"


def test_nodes_and_queues_are_read(monkeypatch):
    limited = "Queue: gpu\n    enabled = False\n"
    said = {
        "pbsnodes": (RECORDED / "nodes.txt").read_text(),
        "-Qf": (RECORDED / "queues.txt").read_text() + limited,
        "-Bf": "Server: login\n    default_queue = workq\n",
    }
    for name in ("ask", "try_to_ask"):
        monkeypatch.setattr(pbs, name, lambda *words: said[words[words[0] == "qstat"]])
    (queue,) = scheduler.detect_site().partitions
    assert (queue.name, queue.is_default) == ("workq", True)
    assert (queue.num_nodes, queue.cpus, queue.gpus) == (2, 4, 2)


@pytest.mark.parametrize(
    ("said", "is_here"), [("pbs_version = 23.06.06", True), ("Version: 6.1.2", False)]
)
def test_another_program_called_qsub_is_not_taken_for_pbs(tmp_path, monkeypatch, said, is_here):
    """Such as TORQUE's."""
    (tmp_path / "qsub").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "qsub").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert scheduler.answers() is is_here
