"""Asking bjobs and bkill of engines that know more or less, and of some that do not answer."""

import re
from pathlib import Path

import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError, CommandTimeoutError
from hpcdist.schedulers.lsf.bjobs import ask_jobs
from hpcdist.schedulers.lsf.commands import bkill, call_lsf

RECORDED = Path(__file__).parent / "recorded"

WITH_LESS = """
[[ "$*" == *-json* ]] && { echo "bjobs: illegal option -- json" >&2; exit 255; }
cat RECORDED/bjobs_fields.txt
"""


def engine(commands, script):
    commands.add("bjobs", script.replace("RECORDED", str(RECORDED)))


def test_a_current_engine_is_asked_once(commands):
    engine(commands, "cat RECORDED/bjobs_json.json")
    assert len(ask_jobs(["22005", "22006[3]", "22006[4]"])) == 5
    (call,) = commands.calls
    assert call.endswith("-json 22005 22006")


@pytest.mark.parametrize(
    "said",
    ["bjobs: illegal option -- json", "<EXIT_CODE> in the format string is not a valid field name"],
)
def test_an_engine_that_knows_less_is_asked_once_more_and_then_in_its_way(commands, said):
    engine(commands, WITH_LESS.replace("bjobs: illegal option -- json", said))
    jobs = ask_jobs()
    assert [job.state for job in jobs] == ["EXIT", "PEND", "RUN"]
    assert jobs[1].condition().reason == "LSF does not say why"
    assert ["-json" in call for call in commands.calls] == [True, False]
    ask_jobs(["764213236", "764220167"])
    assert commands.calls[2].endswith("' 764213236 764220167")


def test_a_bjobs_that_fails_for_a_moment_is_not_asked_for_less_from_then_on(commands):
    commands.say("bjobs", err="System call failed: Network is unreachable\n", code=255)
    with pytest.raises(CommandFailedError, match="Network is unreachable"):
        ask_jobs(["7"])
    assert len(commands.calls) == 1


NO_RECORDS = '{"COMMAND":"bjobs","JOBS":0,"RECORDS":[]}'


@pytest.mark.parametrize(
    ("out", "err", "code"),
    [
        (NO_RECORDS, "System call failed: Network is unreachable\n", 255),
        (NO_RECORDS, "System call failed: Network is unreachable\n", 0),
        (NO_RECORDS, "", 255),
    ],
)
def test_an_empty_answer_that_comes_with_a_failure_does_not_mean_that_there_are_no_jobs(
    commands, out, err, code
):
    commands.say("bjobs", out, err=err, code=code)
    with pytest.raises(CommandFailedError):
        ask_jobs(["7"])


def test_an_empty_answer_of_a_bjobs_that_works_means_that_there_are_none(commands):
    commands.say("bjobs", NO_RECORDS)
    assert ask_jobs() == []
    unknown = '{"JOBS":1,"RECORDS":[{"JOBID":"7","ERROR":"Job <7> is not found"}]}'
    commands.say("bjobs", unknown, code=255)
    assert ask_jobs(["7"]) == []


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


def test_nothing_said_is_no_job_only_where_all_went_well(commands):
    commands.say("bjobs")
    assert ask_jobs() == []
    commands.say("bjobs", code=255)
    with pytest.raises(CommandFailedError, match="said: nothing"):
        ask_jobs()


def test_known_jobs_are_told_beside_unknown_ones(commands):
    commands.say("bjobs", (RECORDED / "bjobs_json.json").read_text(), code=255)
    assert len(ask_jobs(["22005", "123"])) == 5


def test_ids_that_are_none_are_not_asked_for(commands):
    commands.say("bjobs", (RECORDED / "bjobs_json.json").read_text())
    assert ask_jobs(["None", "", "0"]) == []
    assert commands.calls == []


def test_very_many_ids_are_asked_for_as_all_jobs_of_the_user(commands):
    commands.say("bjobs", (RECORDED / "bjobs_json.json").read_text())
    ask_jobs([str(number) for number in range(10**6, 10**6 + 20_000)])
    (call,) = commands.calls
    assert call.endswith("-json")


@pytest.mark.parametrize(
    "said",
    [
        "LSF is down. Please wait ...\n",
        "batch system daemon not responding ... still trying\n",
        "Cannot connect to LSF. Please wait ...\n",
        "lsid: ls_getclustername failed: LIM is down; try later\n",
    ],
)
def test_an_lsf_that_is_down_is_an_error_and_not_an_empty_list(commands, said):
    commands.say("bjobs", err=said, code=255)
    with pytest.raises(SchedulerError, match="LSF does not answer") as raised:
        ask_jobs(["123"])
    assert said.strip() in raised.value.message
    assert len(commands.calls) == 1


def test_an_lsf_that_was_down_for_a_moment_has_answered(commands):
    commands.say(
        "bjobs",
        (RECORDED / "bjobs_json.json").read_text(),
        err="LSF is down. Please wait ...\n",
    )
    assert len(ask_jobs()) == 5


def test_a_command_that_blocks_is_given_up(commands):
    commands.add("bjobs", 'echo "LSF is down. Please wait ..." >&2; exec sleep 60')
    with pytest.raises(CommandTimeoutError, match=r"bjobs did not answer within 0\.2 s"):
        call_lsf(["bjobs"], timeout_s=0.2)


def test_nonsense_is_an_error_with_what_was_said(commands):
    commands.say("bjobs", "what?\n" * 100, code=1)
    with pytest.raises(CommandFailedError, match=r"bjobs -a -o .*what\?") as raised:
        ask_jobs()
    assert raised.value.message.count("what?") < 10


def test_formats_that_people_have_set_are_not_asked_for(commands, monkeypatch):
    monkeypatch.setenv("LSB_BJOBS_FORMAT", "jobid:7 user:8")
    engine(commands, '[ -z "$LSB_BJOBS_FORMAT" ] && cat RECORDED/bjobs_json.json')
    assert len(ask_jobs()) == 5


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
    commands.say(
        "bkill",
        "Job <8> is being terminated\n",
        err="Job <7>: User permission denied\n",
        code=255,
    )
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
