"""The costs of a drill's disturbances: what it has not seen is no loss of work."""

import pytest
from rank_ends import rank_end

from hpcdist.drill.drill import Course, judge
from hpcdist.job.spec import Resources, ScriptJob
from hpcdist.runs.verdict import Verdict

JOB = ScriptJob(
    name="train", script="train.py", resources=Resources(gpus=2, time_limit_min=24 * 60)
)
KILLED = Verdict(
    kind="signal",
    state="failed",
    message="",
    exit_code_of_run=1,
    first=rank_end(1, signal="SIGKILL"),
)
STOPPED = Verdict(
    kind="time_limit", state="preempted", message="", exit_code_of_run=75, exit_code=75
)
CANCELLED = Verdict(kind="cancelled", state="cancelled", message="", exit_code_of_run=130)


def course(first=None, last=None):
    return Course(first_step=first, last_step=last)


def cost(name="kill-rank", verdict=KILLED, *, after, saved=1, down_s=2.0, failure=None, first=0):
    undisturbed = course(first, 30)
    return judge(
        JOB,
        name,
        verdict,
        courses=(undisturbed, course(first, None if first is None else 20), after),
        num_saved=saved,
        down_s=down_s,
        failure=failure,
    )


def test_a_job_that_went_on_from_its_checkpoint_lost_the_steps_since():
    found = cost(after=course(15, 30))
    assert (found.verdict, found.went_on, found.lost_steps) == ("signal", "step 15", 5)
    assert not found.is_work_lost


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"after": course(0, 9)}, "it saves checkpoints, but started from the beginning"),
        ({"after": course(0, 9), "saved": 0}, "no checkpoint is saved: you would lose up to 24 h"),
        ({"after": course(), "first": None, "saved": 0}, "no checkpoint is saved: you would lose"),
        (
            {"name": "time-limit", "verdict": CANCELLED, "after": course(15, 20)},
            "no checkpoint is saved on the warning: you would lose the work since the last one",
        ),
        (
            {"name": "damage", "after": course(), "down_s": None, "failure": "EOFError"},
            "its one checkpoint is gone, with up to 24 h",
        ),
    ],
    ids=["does not load", "never saves", "records nothing", "deaf to the warning", "overwrites"],
)
def test_work_is_lost(asked, words):
    found = cost(**asked)
    assert found.is_work_lost
    assert words in found.advice


@pytest.mark.parametrize(
    "asked",
    [
        {"after": course(), "down_s": None},
        {"after": course(), "first": None},
        {"name": "time-limit", "verdict": STOPPED, "after": course(20, 22)},
        {"name": "damage", "after": course(), "down_s": None, "failure": "EOFError", "saved": 2},
    ],
    ids=["not seen", "no steps, but saves", "saves on the warning", "keeps two"],
)
def test_no_work_is_lost(asked):
    assert not cost(**asked).is_work_lost
