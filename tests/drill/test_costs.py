"""The costs of a drill's disturbances: what it has not seen is no loss of work."""

import pytest
from rank_ends import rank_end

from hpcdist.drill.drill import Course, judge
from hpcdist.job.spec import Resources, ScriptJob
from hpcdist.runs.verdict import Verdict

JOB = ScriptJob(
    name="train", script="train.py", resources=Resources(gpus=2, time_limit_min=24 * 60)
)
KILLED = Verdict(kind="signal", message="", first=rank_end(1, signal="SIGKILL"))
CANCELLED = Verdict(kind="cancelled", state="cancelled", message="")


def cost(name="kill-rank", verdict=KILLED, *, after=(), first=0, **asked):
    """`after`: the first and the last step that were seen after the disturbance."""
    last = None if first is None else 20
    after = Course(None, *after) if after else Course()
    courses = (Course(None, first, 30), Course(None, first, last), after)
    asked = {"num_saved": 1, "down_s": 2.0, "failure": None} | asked
    return judge(JOB, name, verdict, courses=courses, **asked)


def test_a_job_that_went_on_from_its_checkpoint_lost_the_steps_since():
    found = cost(after=(15, 30))
    assert (found.verdict, found.went_on, found.lost_steps) == ("signal", "step 15", 5)
    assert not found.is_work_lost


OVERWRITES = {"name": "damage", "down_s": None, "failure": "EOFError"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"after": (0, 9)}, "it saves checkpoints, but started from the beginning"),
        ({"after": (0, 9), "num_saved": 0}, "no checkpoint is saved: you would lose up to 24 h"),
        (
            {"name": "time-limit", "verdict": CANCELLED, "after": (15, 20)},
            "no checkpoint is saved on the warning: you would lose the work since the last one",
        ),
        (OVERWRITES, "its one checkpoint is gone, with up to 24 h"),
        # No work is lost.
        ({"down_s": None}, None),
        (OVERWRITES | {"num_saved": 2}, None),
    ],
    ids=[
        *("does not load", "never saves", "deaf to the warning", "overwrites"),
        *("not seen", "keeps two"),
    ],
)
def test_work_is_lost_or_not(asked, words):
    found = cost(**asked)
    assert found.is_work_lost == (words is not None)
    assert (words or "") in (found.advice or "")
