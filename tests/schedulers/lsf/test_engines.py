"""Asking bjobs and bkill of engines that know more or less, and of some that do not answer."""

import re
from pathlib import Path

import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError
from hpcdist.schedulers.lsf.jobs import ask_jobs, bkill

RECORDED = Path(__file__).parent / "recorded" / "bjobs_fields.txt"
HEADER = RECORDED.read_text().splitlines()[0]

WITH_LESS = r"""
for field in exit_code pend_reason; do
    [[ "$*" == *$field* ]] || continue
    echo "<${field^^}> in the format string is not a valid field name" >&2; exit 255
done
printf '%s|' JOBID STAT EXEC_HOST START_TIME FINISH_TIME RUN_TIME EXIT_REASON
printf '%s\n' 'MAX_MEM|PEND_TIME|JOB_NAME'
printf '%s\n' '7|EXIT|hostA|Feb  2 00:45|-|60 second(s)|-|-|-|a' '8|PEND|-|-|-|-|-|-|-|b'
"""


def test_an_engine_is_asked_once(commands):
    commands.say("bjobs", RECORDED.read_text())
    assert len(ask_jobs(["22005", "22006[3]", "22006[4]"])) == 5
    (call,) = commands.calls
    assert call.endswith("delimiter='|' 22005 22006")


def test_the_fields_that_an_engine_names_as_unknown_are_left_out_from_then_on(commands):
    commands.add("bjobs", WITH_LESS)
    jobs = ask_jobs()
    assert [(job.word, job.exit_code) for job in jobs] == [("EXIT", None), ("PEND", None)]
    assert jobs[0].elapsed_s == 60
    assert jobs[1].reason == "LSF does not say why"
    assert len(commands.calls) == 3
    ask_jobs(["764213236", "764220167"])
    assert commands.calls[3].endswith("' 764213236 764220167")


@pytest.mark.parametrize(
    ("out", "err", "code"),
    [
        ("", "System call failed: Network is unreachable\n", 255),
        ("", "System call failed: Network is unreachable\n", 0),
        (HEADER, "System call failed: Network is unreachable\n", 255),
        ("", "<STAT> in the format string is not a valid field name\n", 255),
        ("", "LSF is down. Please wait ...\n", 255),
        ("", "batch system daemon not responding ... still trying\n", 255),
        ("what?\n" * 100, "", 1),
        ("", "", 255),
    ],
)
def test_a_failure_does_not_mean_that_there_are_no_jobs(commands, out, err, code):
    commands.say("bjobs", out, err=err, code=code)
    with pytest.raises(CommandFailedError, match=r"bjobs -a -o") as raised:
        ask_jobs(["7"])
    assert err.strip() in raised.value.message
    assert raised.value.message.count("what?") < 10
    assert len(commands.calls) == 1


@pytest.mark.parametrize("code", [0, 254, 255])
@pytest.mark.parametrize(
    "said",
    [
        "No unfinished job found\n",
        "No job found\n",
        "Job <123> is not found\n",
        "Job <123[4]> is not found\nJob <9> is not found\n",
    ],
)
def test_jobs_that_lsf_does_not_know_are_no_error_whatever_the_exit_code(commands, said, code):
    commands.say("bjobs", err=said, code=code)
    assert ask_jobs(["123"]) == []
    assert len(commands.calls) == 1


def test_known_jobs_are_told_beside_unknown_ones_and_after_a_complaint(commands):
    commands.say("bjobs", RECORDED.read_text(), err="Job <123> is not found\n", code=255)
    assert len(ask_jobs(["22005", "123"])) == 5
    commands.say("bjobs", RECORDED.read_text(), err="LSF is down. Please wait ...\n")
    assert len(ask_jobs()) == 5


def test_ids_that_are_none_are_not_asked_for(commands):
    assert ask_jobs(["None", "", "0"]) == []
    assert commands.calls == []


def test_jobs_are_killed_in_one_call(commands):
    commands.say("bkill", "Job <7> is being terminated\nJob <8[2]> is being terminated\n")
    bkill(["8[2]", "7", "7"])
    bkill([])
    assert commands.calls == ["bkill 7 8[2]"]


@pytest.mark.parametrize(
    "said",
    [
        "Job <7>: Job has already finished\n",
        "Job <7>: No matching job found\n",
        "Job <7> is not found\n",
        "Job <7>: Operation is in progress\n",
    ],
)
def test_jobs_that_are_gone_need_no_kill(commands, said):
    commands.say("bkill", "Job <8> is being terminated\n", err=said, code=255)
    bkill(["7", "8"])


def test_a_kill_that_is_refused_is_an_error_with_the_reason_alone(commands):
    said = "Job <8> is being terminated\n"
    commands.say("bkill", said, err="Job <7>: User permission denied\n", code=255)
    with pytest.raises(CommandFailedError) as raised:
        bkill(["7", "8"])
    assert "permission denied" in raised.value.message
    assert "being terminated" not in raised.value.message


@pytest.mark.parametrize("job_id", ["0", "None", "", "7[0]", "-u"])
def test_nothing_that_is_no_id_is_killed(commands, job_id):
    commands.say("bkill")
    with pytest.raises(SchedulerError, match=re.escape(f"{job_id!r} is no id")):
        bkill(["7", job_id])
    assert commands.calls == []
