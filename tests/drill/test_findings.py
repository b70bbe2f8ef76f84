"""What a drill says of a job: what it has not seen is no loss of work."""

import pytest

from hpcdist.drill.attempts import Attempt
from hpcdist.drill.findings import Evidence, judge, remarks
from hpcdist.job.spec import Launch, Resources, ScriptJob
from hpcdist.runs.drill import JournalEntry, SavedFile
from hpcdist.runs.verdict import Verdict

KILLED = Verdict(
    kind="signal", state="failed", message="", exit_code_of_run=1, signal="SIGKILL", rank=1
)
STOPPED = Verdict(
    kind="time_limit", state="preempted", message="", exit_code_of_run=75, exit_code=75
)
CANCELLED = Verdict(kind="cancelled", state="cancelled", message="", exit_code_of_run=130)
CRASHED = Verdict(kind="exception", state="failed", message="EOFError", exit_code_of_run=1)


def saved(*written_s, identity=0):
    return {
        f"/run/{number}.pt": SavedFile(
            written_s=time_s, read_s=time_s, size=9, identity=identity or round(time_s)
        )
        for number, time_s in enumerate(written_s)
    }


def evidence(*journal, attempts, steps=None, **fields):
    defaults = {"may_save": False, "may_stop": False, "troubles": []}
    return Evidence(
        job=ScriptJob(name="train", script="train.py", resources=Resources(time_limit_min=24 * 60)),
        undisturbed=Attempt(number=0, first_step=steps),
        attempts={one.number: one for one in attempts},
        journal=list(journal),
        undisturbed_run="a",
        disturbed_run="b",
        **defaults | fields,
    )


def killed(name="kill-rank", **fields):
    defaults = {"event": "disturb", "time_s": 100.0, "attempt": 0, "rank": 1}
    return JournalEntry(name=name, **defaults | fields)


def the_one(found, name="kill-rank"):
    (finding,) = judge(found, [name])
    return finding


FIRST = Attempt(number=0, verdict=KILLED)


def test_a_script_without_steps_went_on_from_the_checkpoint_that_it_opened():
    after = Attempt(number=1, opened=frozenset({"/run/1.pt"}), verdict=CANCELLED)
    found = the_one(evidence(killed(saved=saved(90.0, 98.0)), attempts=[FIRST, after]))
    assert (found.went_on, found.lost, found.is_work_lost) == ("its checkpoint", "2.0 s", False)
    assert found.is_verdict_right


@pytest.mark.parametrize(
    ("after", "steps"),
    [(None, None), (Attempt(number=1), None), (Attempt(number=1), 0)],
    ids=["not started", "saved nothing yet", "no step yet"],
)
def test_what_did_not_come_far_enough_has_not_begun_again(after, steps):
    attempts = [FIRST, *([after] if after else [])]
    found = the_one(evidence(killed(saved=saved(90.0)), attempts=attempts, steps=steps))
    assert (found.went_on, found.is_work_lost) == ("not known", False)
    assert "--for" in found.advice


def test_a_script_that_saves_and_does_not_load_loses_all():
    end = JournalEntry(event="life", time_s=120.0, attempt=1, saved=saved(90.0, 110.0))
    found = the_one(evidence(killed(saved=saved(90.0)), end, attempts=[FIRST, Attempt(number=1)]))
    assert found.is_work_lost
    assert (
        "it saves checkpoints, but started from the beginning: you would lose up to 24 h"
        in found.advice
    )


@pytest.mark.parametrize("may_save", [True, False], ids=["save in its text", "no such word"])
def test_a_job_that_has_saved_nothing_yet_counts_as_one_that_never_does_where_its_text_says_so(
    may_save,
):
    found = the_one(evidence(killed(), attempts=[FIRST, Attempt(number=1)], may_save=may_save))
    assert found.is_work_lost is not may_save


@pytest.mark.parametrize(
    ("ended", "later", "opens", "is_lost"),
    [
        (STOPPED, [101.0], True, False),
        (STOPPED, [101.0], False, True),
        (STOPPED, [], False, True),
        (CANCELLED, [], False, True),
    ],
    ids=["saves and loads", "saves and does not load", "stops only", "hears nothing"],
)
def test_the_warning(ended, later, opens, is_lost):
    entry = killed("warning", is_heeded=ended is STOPPED)
    end = JournalEntry(event="life", time_s=102.0, attempt=0, saved=saved(*later))
    more = JournalEntry(event="life", time_s=130.0, attempt=1, saved=saved(120.0))
    after = Attempt(number=1, opened=frozenset({"/run/0.pt"} if opens else ()))
    found = the_one(
        evidence(entry, end, more, attempts=[Attempt(number=0, verdict=ended), after]), "warning"
    )
    assert found.is_work_lost is is_lost


def test_a_warning_that_came_before_the_program_listens_is_no_finding():
    entry = killed("warning")
    first = Attempt(number=0, verdict=CANCELLED)
    found = the_one(evidence(entry, attempts=[first], may_stop=True, may_save=True), "warning")
    assert not found.is_work_lost
    assert found.is_verdict_right is None


@pytest.mark.parametrize(
    ("before", "now", "is_lost"),
    [
        (saved(80.0, identity=5), saved(90.0, identity=5), True),
        (saved(80.0, identity=5), saved(90.0, identity=6), False),
        (saved(80.0), saved(80.0, 90.0), False),
    ],
    ids=["written over", "replaced", "two are kept"],
)
def test_half_a_checkpoint_that_ends_all_starts_is_a_loss_where_a_crash_does_that(
    before, now, is_lost
):
    path = list(now)[-1]
    earlier = killed("slow-rank", time_s=85.0, saved=before)
    attempts = [FIRST, Attempt(number=1, verdict=CRASHED)]
    entry = killed("damage", saved=now, damaged=path)
    found = the_one(evidence(earlier, entry, attempts=attempts), "damage")
    assert (found.went_on, found.is_work_lost) == ("failed again", is_lost)
    assert "EOFError" in found.advice


def test_losses_are_compared_where_two_runs_have_the_same_before_any_disturbance():
    first = Attempt(number=0, verdict=KILLED, first_step=0, last_step=20, losses={10: 1.0})
    after = Attempt(number=1, first_step=15, last_step=30, losses={25: 0.5})
    for seen, expected in (
        ({10: 1.0, 25: 0.5}, "same"),
        ({10: 1.0, 25: 0.4}, "0.25 off"),
        ({10: 2.0, 25: 0.4}, "varies"),
        ({25: 0.5}, "-"),
    ):
        found = evidence(killed(step=20, saved=saved(90.0)), attempts=[first, after], steps=0)
        undisturbed = Attempt(number=0, first_step=0, losses=seen)
        found = Evidence(
            **{
                **{f: getattr(found, f) for f in found.__struct_fields__},
                "undisturbed": undisturbed,
            }
        )
        finding = the_one(found)
        assert (finding.loss, finding.went_on, finding.lost_steps) == (expected, "step 15", 5)


def test_a_job_that_is_never_started_again_is_told_how():
    told = evidence(killed(), attempts=[FIRST], steps=0)
    assert told.job.launch == Launch()
    assert any("--max-restarts" in one for one in remarks(told, judge(told, ["kill-rank"])))
