"""What bjobs, bqueues and bhosts say, read."""

import time
from pathlib import Path

import pytest

from hpcdist.schedulers.lsf.jobs import (
    make_job,
    parse_hosts,
    parse_queues,
    parse_seconds,
    parse_time,
    plain_reason,
    read_table,
    refused_hint,
)

RECORDED_FOLDER = Path(__file__).parent / "recorded"
RECORDED = {path.stem.upper(): path.read_text() for path in RECORDED_FOLDER.iterdir()}
FIELDS = RECORDED["BJOBS_FIELDS"].splitlines()[0].lower().split("|")


def read(text):
    return [job for row in read_table(text, FIELDS) if (job := make_job(row))]


def unix_time(text):
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


def test_fields_are_read_line_by_line_and_a_strangers_name_may_hold_the_delimiter():
    done, limit, killed, later, running = read(RECORDED["BJOBS_FIELDS"])
    assert (done.id, done.name, done.word) == ("22005", "ddp-20261121-101010-abcd", "DONE")
    assert (done.nodes, done.task) == (["tbi-cn019", "tbi-cn020"], "")
    assert (done.elapsed_s, done.queue_wait_s, done.max_rss_bytes) == (3600, 12, 3 * 2**29)
    assert (limit.id, limit.name, limit.task) == ("22006[3]", "sweep-1", "2")
    assert (limit.nodes, limit.exit_code) == (["hostA", "hostB"], 140)
    assert killed.state == "cancelled"
    assert later.reason.startswith("it waits for the end of another job")
    assert (later.nodes, later.elapsed_s) == ([], None)
    assert (running.id, running.name, running.task) == ("764254593[2]", "ls -l", "1")


@pytest.mark.parametrize("text", ["", "bjobs: illegal option -- o\n", RECORDED["BJOBS"]])
def test_nothing_else_is_taken_for_an_answer(text):
    assert read_table(text, FIELDS) == []


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        ("Nov 21 17:30", "2026-11-21 12:00", "2026-11-21 17:30"),
        ("Jan  2 03:04 L", "2026-12-31 23:00", "2027-01-02 03:04"),
        ("Dec 31 23:59", "2027-01-01 00:10", "2026-12-31 23:59"),
        ("Nov 21 17:30:00 L", "2026-11-21 12:00", "2026-11-21 17:30"),
        ("Sat Nov 21 17:30 E", "2026-11-21 12:00", "2026-11-21 17:30"),
        ("-", "2026-11-21 12:00", None),
        ("15.00% L", "2026-11-21 12:00", None),
    ],
)
def test_a_time_without_a_year_is_the_nearest(text, now, expected):
    found = parse_time(text, now_s=unix_time(now))
    assert found == (None if expected is None else unix_time(expected))


@pytest.mark.parametrize(
    ("stat", "state", "words"),
    [
        ("PEND", "pending", "LSF does not say why"),
        ("PSUSP", "pending", 'bresume "7[2]"'),
        ("PROV", "pending", "being started"),
        ("RUN", "running", None),
        ("USUSP", "running", "suspended with bstop"),
        ("SSUSP", "running", "LSF suspended it"),
        ("UNKWN", "running", "cannot reach its first host"),
        ("ZOMBI", "running", "cannot reach its first host"),
        ("DONE", "done", "LSF says DONE"),
        ("EXIT", "failed", "LSF says EXIT"),
        ("NEW_IN_11", "running", None),
    ],
)
def test_every_state_of_lsf_is_one_of_ours(stat, state, words):
    job = make_job({"jobid": "7[2]", "stat": stat, "job_name": "x[2]"})
    assert job.state == state
    assert job.reason is None if words is None else words in job.reason


@pytest.mark.parametrize(
    ("reason", "code", "state", "words"),
    [
        ("TERM_OWNER: job killed by owner", 130, "cancelled", "bkill (TERM_OWNER, exit code 130)"),
        ("TERM_FORCE_ADMIN: job killed", None, "cancelled", "administrator"),
        ("TERM_ORPHAN_SYSTEM: orphaned", None, "cancelled", "--after"),
        ("TERM_PREEMPT: job killed", None, "preempted", "priority"),
        ("TERM_MEMLIMIT: job killed after reaching", 137, "failed", "resources.mem_gb"),
        ("TERM_KUBE: job killed", 1, "failed", "LSF says EXIT, exit code 1: TERM_KUBE"),
        ("", 3, "failed", "LSF says EXIT, exit code 3"),
        ("-", None, "failed", "LSF says EXIT"),
    ],
)
def test_a_bad_end_is_told_with_its_reason(reason, code, state, words):
    code = "" if code is None else str(code)
    job = make_job({"jobid": "7", "stat": "EXIT", "exit_code": code, "exit_reason": reason})
    assert job.state == state
    assert words in job.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("New job is waiting for scheduling;", "has not looked at it yet"),
        ("Job dependency condition not satisfied;", "waits for the end of another job"),
        ("Dependency condition invalid or never satisfied;", "will never start"),
        ("The job array has reached its running element limit;", "--max-parallel"),
        ("The job was suspended by the user while pending;", "bresume"),
        ("The user has reached his/her job slot limit;", "you use all slots"),
        ("The queue has not enough job slots for the parallel job;", "slots of the queue"),
        ("There are no suitable hosts for the job;", "ask for less"),
        ("Not enough job slot(s): 4 hosts;", "hosts to become free"),
        ("Job slot limit reached: 4 hosts;", "hosts to become free"),
        ("Resource (mem) limit defined cluster-wide has been reached;", "a limit is reached"),
        ("Job requirements for reserving resource (mem) not satisfied: 4 hosts;", "free memory"),
        ("Job's requirements for reserving resource (ngpus_physical) not satisfied;", "GPUs"),
        ("Requeued job is waiting for rescheduling;", "requeued"),
    ],
)
def test_reasons_are_told_in_plain_words_with_those_of_lsf(text, words):
    said = plain_reason(text)
    assert words in said
    assert said.endswith(f"({text.rstrip(';')})")


def test_an_unknown_reason_is_told_as_it_is():
    assert plain_reason(" The moon is full;") == "LSF says: The moon is full"
    others = "Not specified in job submission: 5 hosts;"
    assert plain_reason(others) == "LSF says: Not specified in job submission: 5 hosts"


def test_of_several_reasons_the_one_that_tells_most_is_told():
    text = (
        "Non-candidate host pending reasons (9 of 9 hosts): Not specified in job submission: 5 "
        "hosts; Load information unavailable: 1 host; Not enough job slot(s): 3 hosts;"
    )
    assert (
        plain_reason(text) == "it waits for hosts to become free (Not enough job slot(s): 3 hosts)"
    )


def test_queues_that_start_jobs_are_read_with_their_limits():
    # That of the first is one by the speed of a host model; a third starts no jobs now.
    assert parse_queues(RECORDED["BQUEUES_LONG"]) == {"normal": None, "gpuv100": 1440}


SCRIPT = '#BSUB -R "rusage[mem=500MB]"\n'


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("bsub: illegal option -- gpu\nUsage: bsub", "gpu_request"),
        ("GPU requirement cannot be satisfied by any host. Job not submitted.", "lsf.gpu"),
        ("Bad resource requirement syntax. Job not submitted.", "mem_gb, constraint"),
        ("mem=500MB: the unit is not supported. Job not submitted.", "mem_gb, constraint"),
        ("nowhere: No such queue. Job not submitted.", "--partition"),
        ("RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.", "--time"),
        ("Too many processors requested. Job not submitted.", "cpus_per_gpu"),
        ("esub: jobs must say how long they run with -W. Request aborted by esub.", "with --time"),
        ("A run limit (-W) is required here. Request aborted by esub.", "with --time"),
        ("The memory asked for is above 10GB. Request aborted by esub.", "lsf.mem_per"),
        ("A run limit is required by this site. Request aborted by esub.", "with --time"),
        ("It is Monday. Job not submitted.", "hpcdist explain JOB"),
    ],
)
def test_the_hint_of_a_refusal_names_the_key(said, key):
    assert key in refused_hint(said, SCRIPT)


def test_memory_that_a_site_demands_is_the_key_of_the_job():
    said = "Please request memory: -R rusage[mem=...]. Request aborted by esub."
    assert "--set resources.mem_gb=GB" in refused_hint(said, "#BSUB -n 4\n")


def test_the_hosts_that_are_up_are_read_with_their_slots():
    master = "master1            ok              -      0      0      0      0      0      0\n"
    unlimited = "hostD              ok              -      -      0      0      0      0      0\n"
    text = RECORDED["BHOSTS"] + master + unlimited
    assert parse_hosts(text) == {"hostA": 16, "hostB": 32, "hostD": 0}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12 second(s)", 12), ("7", 7), ("01:00:02", 3602), ("-", None), ("", None)],
)
def test_lengths_of_time_come_in_several_forms(text, seconds):
    assert parse_seconds(text) == seconds
