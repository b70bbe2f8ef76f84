"""What follows the end of a job that could go on: another life, or the final verdict."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import pytest
from msgspec.structs import replace

from hpcdist.agent.outcome import lives
from hpcdist.agent.outcome.lives import note_lost_attempt
from hpcdist.base.errors import SchedulerError
from hpcdist.job.spec import Launch, ScriptJob, TrainJob
from hpcdist.runs.events import EventWriter
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.lsf.lsf import scheduler as lsf
from hpcdist.schedulers.requeue import Decision, RequeueUnclearError

TRAINING = TrainJob(name="t")
SCRIPT = ScriptJob(name="s", script="s.py")
STOPPED = Verdict(
    kind="preempted",
    state="preempted",
    message="stopped at step 5 by SIGTERM",
    exit_code_of_run=75,
    exit_code=75,
    signal="SIGTERM",
    step=5,
)
WARNED = replace(STOPPED, kind="time_limit", signal="SIGUSR2")
ENDED = replace(STOPPED, exit_code=None, message="ended by SIGTERM")
OVERDUE = replace(ENDED, kind="time_limit", state="failed", exit_code_of_run=1, step=None)
LOST = Verdict(kind="agent_lost", message="node 0 was lost", node=0)
FAILED = Verdict(kind="exception", message="no")
UNSTARTED = Verdict(kind="launch", message="no agent", try_elsewhere=True)


@dataclass
class Scheduler:
    """A scheduler that answers as it is told to; before, it is silent `silent` times, and `deaf`
    times it says nothing although it has heard."""

    decision: str | None = "requeue"
    error: Exception | None = None
    number: int = 0
    cause: str = "nothing"
    silent: int = 0
    deaf: int = 0
    patience_s: float = 100.0
    kill_wait_s: float = 30.0
    requeued: int = 0
    on_decide: Callable[[], object] = bool

    def life(self):
        return self.number

    def decide(self, _verdict):
        self.on_decide()
        if self.decision is None or self._is_silent():
            raise SchedulerError("squeue does not answer")
        sequel = "leave" if self.requeued else self.decision
        return Decision(sequel=sequel, cause=self.cause)

    def requeue(self, _run):
        if self.error or self._is_silent():
            raise self.error or SchedulerError("it does not answer")
        self.requeued += 1
        if self.deaf:
            self.deaf -= 1
            raise SchedulerError("it does not answer")

    def _is_silent(self):
        self.silent -= 1
        return self.silent >= 0


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    time = staticmethod(time.time)


def begin_attempt(run, job, *, life):
    return lives.Attempts(run, job, Scheduler(number=life)).claim()


def conclude(run, job, verdict, scheduler, *, has_begun=True):
    clock = Clock()
    attempts = lives.Attempts(run, job, scheduler)
    attempts.has_begun = has_begun
    with mock.patch("hpcdist.agent.outcome.lives.time", clock):
        lives.conclude(attempts, verdict)
    return clock.now


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path, "job")


def save_checkpoint(run, step):
    (run.checkpoints_folder / f"step-{step:08d}.dcp").mkdir()


def record(run, attempt, **event):
    events = EventWriter(run.event_file(0, attempt))
    events.write(event)
    events.close()


def live(run, job, life, *, step=None, verdict=STOPPED):
    """One life, which saves or records a step."""
    attempt = begin_attempt(run, job, life=life)
    if step is not None and job is TRAINING:
        save_checkpoint(run, step)
    elif step is not None:
        record(run, attempt, event="end", step=step)
    scheduler = Scheduler(number=life)
    conclude(run, job, replace(verdict, attempt=attempt), scheduler)
    return scheduler.requeued == 1


PREEMPTED, WARNING = ("preempted", "preempted", 75), ("time_limit", "preempted", 75)
NEVER = TrainJob(name="t", launch=Launch(requeue=False))
OVER = ("time_limit", "failed", 1)
ENDS = {
    # name: (job, how the attempt ended, the scheduler's answers; whether that is the end, whether
    # hpcdist requeues the job, kind, state and exit code, words of the message)
    "the user wants no requeue": (NEVER, STOPPED, {}, True, 0, PREEMPTED, STOPPED.message),
    "the scheduler decides so": (TRAINING, STOPPED, {"decision": "final"}, True, 0, PREEMPTED, ""),
    "a failure is final": (TRAINING, FAILED, {}, True, 0, ("exception", "failed", 1), "no"),
    "it requeues by itself": (TRAINING, STOPPED, {"decision": "leave"}, False, 0, PREEMPTED, ""),
    "a requeue that fails": (
        *(TRAINING, STOPPED, {"error": SchedulerError("no")}, True, 0, PREEMPTED),
        "stopped at step 5 by SIGTERM; it could not be requeued: ",
    ),
    "SIGTERM for the limit": (
        *(TRAINING, STOPPED, {"cause": "time_limit"}, False, 1, ("time_limit", "preempted", 75)),
        "the time limit was reached: stopped",
    ),
    "a training at its limit has saved nothing": (
        *(TRAINING, OVERDUE, {"cause": "time_limit"}, True, 0, OVER),
        "the time limit was reached: ended by SIGTERM",
    ),
    "a script at its limit has saved nothing": (
        *(SCRIPT, OVERDUE, {"cause": "time_limit"}, True, 0, OVER),
        "; a script is started again after its limit",
    ),
    "who did not stop before a preemption goes on all the same": (
        *(SCRIPT, OVERDUE, {"decision": "leave", "cause": "requeue or preemption"}, False, 0),
        *(PREEMPTED, ""),
    ),
    "it is silent for a while": (TRAINING, WARNED, {"silent": 12}, False, 1, WARNING, ""),
    "it has heard and says nothing": (TRAINING, WARNED, {"deaf": 1}, False, 1, WARNING, ""),
    "a request that was perhaps heard": (
        *(TRAINING, WARNED, {"error": RequeueUnclearError("LSF may, or not")}, False, 0, WARNING),
        "; LSF may, or not",
    ),
    "an agent that is cut off leaves the run to the others": (
        *(TRAINING, LOST, {"decision": None}, False, 0, ("agent_lost", "failed", 1)),
        "could not be requeued",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_life_is_the_end_of_the_run_or_not(run, name):
    job, verdict, answers, is_final, requeued, (kind, state, code), words = ENDS[name]
    begin_attempt(run, job, life=0)
    conclude(run, job, verdict, scheduler := Scheduler(**answers))
    final, stopped = run.read_verdict(), run.read_attempt_verdict(0)
    assert (final is not None) == is_final
    told = final if is_final else stopped
    assert (told.kind, told.state, told.exit_code_of_run) == (kind, state, code)
    assert words in told.message
    assert scheduler.requeued == requeued
    if verdict is LOST:  # whoever can ask the scheduler may still act
        assert run.claim_end_of_life(0)


@pytest.mark.parametrize(
    ("verdict", "answers", "waited_s"),
    [
        (WARNED, {"decision": None, "patience_s": lsf.patience_s}, 540),
        (WARNED, {"error": SchedulerError("no")}, 100),
        (STOPPED, {"decision": None}, 15),  # by SIGTERM
    ],
)
def test_how_long_a_silent_scheduler_is_asked(run, verdict, answers, waited_s):
    begin_attempt(run, TRAINING, life=0)
    assert conclude(run, TRAINING, verdict, Scheduler(**answers)) == waited_s
    assert "it could not be requeued" in run.read_verdict().message


def test_of_several_agents_one_requeues(run):
    begin_attempt(run, TRAINING, life=0)
    agents = [Scheduler(), Scheduler()]
    for scheduler in agents:
        conclude(run, TRAINING, LOST, scheduler)
    assert [scheduler.requeued for scheduler in agents] == [1, 0]
    assert run.read_verdict() is None
    conclude(run, TRAINING, STOPPED, None)  # without a scheduler
    assert run.read_verdict() == STOPPED


def test_a_job_that_its_scheduler_starts_again_in_vain_does_not_begin(run):
    """No verdict of ours is left where the nodes went down; restarts in a life are no lives."""
    for life in (0, 0, 0, 1, 2):
        assert lives.verdict_if_stalled(run, TRAINING) is None
        begin_attempt(run, TRAINING, life=life)
    assert lives.verdict_if_stalled(run, TRAINING).kind == "no_progress"


KILLED = replace(STOPPED, exit_code=None)
EARLY = replace(KILLED, step=None)
UNKNOWN = replace(WARNED, exit_code=None)
NO_PROGRESS = {
    # what happens: (job, how its lives end, and the step that was saved or recorded; the message)
    "no newer checkpoint": (
        TRAINING,
        [(STOPPED, 40), STOPPED, STOPPED, STOPPED],
        "attempts 1, 2 and 3 ended without a checkpoint newer than step 40",
    ),
    "a life gets further": (TRAINING, [(STOPPED, 40), STOPPED, (STOPPED, 50), STOPPED], None),
    "a script stops in good order or records steps": (
        SCRIPT,
        [*[STOPPED] * 4, KILLED, (KILLED, 9), *[KILLED] * 3],
        "attempts 6, 7 and 8 ended without a newly recorded step or a stop",
    ),
    # It may save, and go on from there, without a word to anybody.
    "nothing is known": (SCRIPT, [UNKNOWN] * 10, "10 starts: those of attempts 0-9 ended"),
    "preempted before the first step, which does not count": (
        *(TRAINING, [*[EARLY] * 20, *[KILLED] * 3]),
        "3 starts: those of attempts 20, 21 and 22 ended",
    ),
}


@pytest.mark.parametrize("name", NO_PROGRESS)
def test_a_run_whose_lives_get_no_further_ends(run, name):
    job, ends, words = NO_PROGRESS[name]
    for life, end in enumerate(ends):
        verdict, step = end if isinstance(end, tuple) else (end, None)
        assert lives.verdict_if_stalled(run, job) is None
        goes_on = live(run, job, life, step=step, verdict=verdict)
        assert goes_on == (words is None or life < len(ends) - 1)
    if words is not None:
        last = run.read_verdict()
        assert (last.kind, last.state, last.exit_code_of_run) == ("no_progress", "failed", 1)
        assert words in last.message
        assert f"(the last: {ends[-1].message})" in last.message


@pytest.mark.parametrize(("records", "saves"), [(True, True), (True, False), (False, True)])
def test_at_the_limit_a_script_goes_on_where_it_has_recorded_steps_and_saved_in_this_life(
    run, records, saves
):
    (run.path / "former.pt").touch()
    attempt = begin_attempt(run, SCRIPT, life=0)
    begin_ns = run.attempt_file(attempt, "begin.json").stat().st_mtime_ns
    os.utime(run.path / "former.pt", ns=(0, begin_ns - 1))
    if records:
        record(run, attempt, event="steps", step=9)
    if saves:
        (run.path / "model.ckpt").touch()
        os.utime(run.path / "model.ckpt", ns=(0, begin_ns + 1))
    conclude(run, SCRIPT, OVERDUE, scheduler := Scheduler(cause="time_limit"))
    assert scheduler.requeued == (records and saves)


def test_at_the_limit_a_training_goes_on_where_it_has_saved_in_this_life(run):
    save_checkpoint(run, 3)
    begin_attempt(run, TRAINING, life=0)
    begin_attempt(run, TRAINING, life=0)  # after a failure
    save_checkpoint(run, 5)
    conclude(run, TRAINING, OVERDUE, scheduler := Scheduler(cause="time_limit"))
    assert (run.read_verdict(), scheduler.requeued) == (None, 1)


@pytest.mark.parametrize("answer", ["requeue", None], ids=["answered", "silent"])
def test_an_attempt_that_was_overtaken_while_it_asked_says_nothing(run, answer):
    begin_attempt(run, TRAINING, life=0)
    scheduler = Scheduler(answer)
    scheduler.on_decide = lambda: begin_attempt(run, TRAINING, life=1)
    conclude(run, TRAINING, WARNED, scheduler)
    assert (run.read_verdict(), run.read_attempt_verdict(0)) == (None, None)
    assert scheduler.requeued == 0


def test_the_next_life_tells_of_an_attempt_that_was_lost_with_its_node(run):
    begin_attempt(run, TRAINING, life=0)
    run.agent_file(0).write_text(json.dumps({"node": 0, "host": "n1"}))
    note_lost_attempt(run, life=0)
    assert run.read_attempt_verdict(0) is None
    note_lost_attempt(run, life=1)
    verdict = run.read_attempt_verdict(0)
    assert verdict.kind == "agent_lost"
    assert "by the agent of node 0 (host n1) before" in verdict.message
    assert live(run, TRAINING, 1, step=5)
    note_lost_attempt(run, life=2)
    assert run.read_attempt_verdict(1).kind == "preempted"  # it had told its end


def test_a_job_in_which_no_agent_could_be_started_is_started_again_as_often_as_any(run):
    def begin_in_vain(life):
        conclude(run, TRAINING, UNSTARTED, s := Scheduler(number=life), has_begun=False)
        return s.requeued == 1

    begin_attempt(run, TRAINING, life=0)
    assert begin_in_vain(1)
    assert begin_in_vain(2)
    assert not begin_in_vain(2)  # somebody has
    assert not begin_in_vain(3)
    assert run.read_beginnings()[1].life == 1
    verdict = run.read_verdict()
    assert verdict.kind == "no_progress"
    assert "no progress in 3 starts: those of attempts 0, 1 and 2 ended" in verdict.message
    assert [run.read_attempt_verdict(attempt).message for attempt in (1, 2)] == ["no agent"] * 2


@pytest.mark.parametrize(("cause", "is_ours"), [("nothing", True), ("preemption", False)])
def test_nobody_goes_on_in_a_job_that_the_scheduler_is_ending(run, cause, is_ours):
    attempts = lives.Attempts(run, TRAINING, Scheduler(cause=cause))
    assert lives.is_ours(attempts, FAILED) == is_ours
