"""What bjobs, bqueues and bhosts say, read."""

import math
import time
from pathlib import Path

import pytest

from hpcdist.schedulers.lsf.jobs import (
    make_job,
    parse_hosts,
    parse_queues,
    parse_reservations,
    parse_room,
    parse_time,
    plain_reason,
    read_table,
    refused_hint,
)

RECORDED_FOLDER = Path(__file__).parent / "recorded"
RECORDED = {path.stem.upper(): path.read_text() for path in RECORDED_FOLDER.iterdir()}
FIELDS = RECORDED["BJOBS_FIELDS"].splitlines()[0].lower().split("|")


def unix_time(text):
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


def test_fields_are_read_line_by_line_and_a_strangers_name_may_hold_the_delimiter():
    rows = read_table(RECORDED["BJOBS_FIELDS"], FIELDS)
    done, limit, killed, later, running = map(make_job, rows)
    assert (done.id, done.name, done.word) == ("22005", "ddp-20261121-101010-abcd", "DONE")
    assert (done.nodes, done.task) == (["tbi-cn019", "tbi-cn020"], "")
    assert (done.elapsed_s, done.queue_wait_s, done.max_rss_bytes) == (3600, 12, 3 * 2**29)
    assert (limit.id, limit.name, limit.task) == ("22006[3]", "sweep-1", "2")
    assert (limit.nodes, limit.exit_code) == (["hostA", "hostB"], 140)
    assert killed.state == "cancelled"
    assert later.reason.startswith("it waits for the end of another job")
    assert (later.nodes, later.elapsed_s) == ([], None)
    assert (running.id, running.name, running.task) == ("764254593[2]", "ls -l", "1")
    assert read_table(RECORDED["BJOBS"], FIELDS) == []  # that is for people


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        ("Jan  2 03:04 L", "2026-12-31 23:00", "2027-01-02 03:04"),
        ("Dec 31 23:59", "2027-01-01 00:10", "2026-12-31 23:59"),
        ("Sat Nov 21 17:30 E", "2026-11-21 12:00", "2026-11-21 17:30"),
        ("-", "2026-11-21 12:00", None),
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
        ("USUSP", "running", "suspended with bstop"),
        ("UNKWN", "running", "cannot reach its first host"),
        ("NEW_IN_11", "running", ""),
        ("DONE", "done", "LSF says DONE"),
        ("EXIT - -", "failed", "LSF says EXIT"),
        ("EXIT 130 TERM_OWNER: job killed", "cancelled", "bkill (TERM_OWNER, exit code 130)"),
        ("EXIT - TERM_FORCE_ADMIN: job killed", "cancelled", "administrator"),
        ("EXIT - TERM_ORPHAN_SYSTEM: orphaned", "cancelled", "--after"),
        ("EXIT 137 TERM_MEMLIMIT: job killed", "failed", "resources.mem_gb"),
        ("EXIT 140 TERM_RUNLIMIT: job killed", "failed", "the run limit was reached"),
        ("EXIT 1 TERM_KUBE: job killed", "failed", "LSF says EXIT, exit code 1: TERM_KUBE"),
    ],
)
def test_a_job_says_how_it_is_and_why(stat, state, words):
    word, code, reason = [*stat.split(" ", 2), "", ""][:3]
    row = {"jobid": "7[2]", "stat": word, "exit_code": code, "exit_reason": reason}
    job = make_job(row | {"job_name": "x[2]"})
    assert job.state == state
    assert words in (job.reason or "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Job dependency condition not satisfied;", "waits for the end of another job"),
        ("Dependency condition invalid or never satisfied;", "will never start"),
        ("The job array has reached its running element limit;", "--max-parallel"),
        ("The user has reached his/her job slot limit;", "you use all slots"),
        ("There are no suitable hosts for the job;", "ask for less"),
        ("Resource (mem) limit defined cluster-wide has been reached;", "a limit is reached"),
        ("Job requirements for reserving resource (mem) not satisfied: 4 hosts;", "free memory"),
        ("Job's requirements for reserving resource (ngpus_physical) not satisfied;", "GPUs"),
    ],
)
def test_reasons_are_told_in_plain_words_with_those_of_lsf(text, words):
    said = plain_reason(text)
    assert words in said
    assert said.endswith(f"({text.rstrip(';')})")


def test_of_several_reasons_the_one_that_tells_most_is_told_and_an_unknown_one_as_it_is():
    text = "Not specified in job submission: 5 hosts; Not enough job slot(s): 3 hosts;"
    said = plain_reason(text)
    assert said == "it waits for hosts to become free (Not enough job slot(s): 3 hosts)"
    assert plain_reason(" The moon is full;") == "LSF says: The moon is full"


def test_queues_that_start_jobs_are_read_with_their_limits():
    # That of the first is one by the speed of a host model; a third starts no jobs now.
    assert parse_queues(RECORDED["BQUEUES_LONG"]) == {"normal": None, "gpuv100": 1440}


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("bsub: illegal option -- gpu\nUsage: bsub", "gpu_request"),
        ("GPU requirement cannot be satisfied by any host. Job not submitted.", "lsf.gpu"),
        ("Bad resource requirement syntax. Job not submitted.", "mem_gb, constraint"),
        ("nowhere: No such queue. Job not submitted.", "--partition"),
        ("RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.", "--time"),
        ("Too many processors requested. Job not submitted.", "cpus_per_gpu"),
        ("esub: jobs must say how long they run with -W. Request aborted by esub.", "with --time"),
        ("It is Monday. Job not submitted.", "hpcdist explain JOB"),
    ],
)
def test_the_hint_of_a_refusal_names_the_key(said, key):
    assert key in refused_hint(said, '#BSUB -R "rusage[mem=500MB]"\n')
    demands = "Please request memory: -R rusage[mem=...]. Request aborted by esub."
    assert "--set resources.mem_gb=GB" in refused_hint(demands, "#BSUB -n 4\n")


def test_the_hosts_that_are_up_are_read_with_their_slots():
    master = "master1            ok              -      0      0      0      0      0      0\n"
    unlimited = "hostD              ok              -      -      0      0      0      0      0\n"
    closed = "hostE              closed_Adm      -      8      0      0      0      0      0\n"
    text = RECORDED["BHOSTS"] + master + unlimited + closed
    assert parse_hosts(text) == {"hostA": 16, "hostB": 32, "hostD": 0, "hostE": 8}
    assert parse_room(text) == [16, math.inf]


def test_of_the_sites_own_reservations_the_begin_is_read():
    text = "system#0  sys  system  0/8  hostA:0/8  11/30/18/5-12/1/8/0\n"
    (begin_s,) = parse_reservations(text + text.replace("  sys  ", "  user  "))
    assert time.strftime("%m-%d %H:%M", time.localtime(begin_s)) == "11-30 18:05"
