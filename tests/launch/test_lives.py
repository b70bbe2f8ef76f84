"""What follows the end of a job that could go on: another life, or the final verdict."""

import msgspec
import pytest

from hpcdist.errors import SchedulerError
from hpcdist.events import EventWriter
from hpcdist.launch import lives, requeue
from hpcdist.run import Run
from hpcdist.spec import Launch, ScriptJob, TrainJob
from hpcdist.verdict import Verdict

TRAINING = TrainJob(name="t")
SCRIPT = ScriptJob(name="s", script="s.py")
STOPPED = Verdict(
    kind="preempted",
    state="preempted",
    message="stopped at step 5",
    exit_code_of_run=75,
    exit_code=75,
    signal="SIGTERM",
)


class Scheduler:
    """A scheduler that answers as it is told to."""

    def __init__(self, decision="requeue", error=None, life=0):
        self.decision = decision
        self.error = error
        self.number = life
        self.requeued = 0

    def life(self):
        return self.number

    def decide(self, _verdict):
        if self.decision is None:
            raise SchedulerError("squeue does not answer")
        return self.decision

    def requeue(self):
        if self.error:
            raise self.error
        self.requeued += 1


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path, "job")


def save_checkpoint(run, step):
    (run.checkpoints_folder / f"step-{step:08d}.pt").touch()


def live(run, job, life, *, steps=(), verdict=STOPPED):
    """One life, with a checkpoint at each of `steps`."""
    attempt = lives.begin_attempt(run, job, life=life)
    for step in steps:
        save_checkpoint(run, step)
    requeue.conclude(
        run,
        job,
        msgspec.structs.replace(verdict, attempt=attempt),
        scheduler := Scheduler(life=life),
    )
    return scheduler.requeued == 1


def test_a_stopped_run_leaves_the_verdict_to_its_last_life(run):
    assert live(run, TRAINING, 0, steps=[5])
    assert run.read_verdict() is None
    assert run.read_attempt_verdict(0) == STOPPED


@pytest.mark.parametrize("why", ["the user says no", "the scheduler cannot", "it decides so"])
def test_without_a_requeue_the_stop_is_the_final_verdict(run, why):
    scheduler = {"the user says no": Scheduler(), "it decides so": Scheduler("final")}.get(why)
    job = TrainJob(name="t", launch=Launch(requeue=why != "the user says no"))
    requeue.conclude(run, job, STOPPED, scheduler)
    assert run.read_verdict() == STOPPED
    assert scheduler is None or not scheduler.requeued


def test_a_scheduler_that_requeues_by_itself_is_not_asked_to(run):
    lives.begin_attempt(run, TRAINING, life=0)
    requeue.conclude(run, TRAINING, STOPPED, scheduler := Scheduler("leave"))
    assert (run.read_verdict(), run.read_attempt_verdict(0)) == (None, STOPPED)
    assert not scheduler.requeued


@pytest.mark.parametrize("scheduler", [Scheduler(error=SchedulerError("no")), Scheduler(None)])
def test_a_requeue_that_fails_is_told_in_the_final_verdict(run, scheduler):
    lives.begin_attempt(run, TRAINING, life=0)
    requeue.conclude(run, TRAINING, STOPPED, scheduler)
    verdict = run.read_verdict()
    assert verdict.exit_code_of_run == 75
    assert verdict.message.startswith("stopped at step 5; it could not be requeued: ")


def test_of_several_agents_one_requeues(run):
    lives.begin_attempt(run, TRAINING, life=0)
    agents = [Scheduler(), Scheduler()]
    lost = Verdict(kind="agent_lost", state="failed", message="lost", exit_code_of_run=1)
    for scheduler in agents:
        requeue.conclude(run, TRAINING, lost, scheduler)
    assert [scheduler.requeued for scheduler in agents] == [1, 0]
    assert run.read_verdict() is None


def test_a_failure_is_final(run):
    failed = Verdict(kind="exception", state="failed", message="no", exit_code_of_run=1)
    requeue.conclude(run, TRAINING, failed, scheduler := Scheduler())
    assert (run.read_verdict(), scheduler.requeued) == (failed, 0)


def test_a_life_that_ended_before_its_first_attempt_counts_as_one(run):
    scheduler = Scheduler(life=3)
    requeue.conclude(
        run,
        TRAINING,
        STOPPED,
        scheduler,
        begin_attempt=lambda: lives.begin_attempt(run, TRAINING, life=3),
    )
    assert scheduler.requeued
    assert lives.beginnings(run)[0].life == 3
    assert run.read_attempt_verdict(0) is not None


def test_two_lives_without_a_newer_checkpoint_are_the_last(run):
    assert live(run, TRAINING, 0, steps=[40])
    assert live(run, TRAINING, 1)
    assert not live(run, TRAINING, 2)
    verdict = run.read_verdict()
    assert (verdict.kind, verdict.state, verdict.exit_code_of_run) == ("no_progress", "failed", 1)
    assert "attempts 1 and 2 ended without a checkpoint newer than step 40" in verdict.message
    assert "(the last: stopped at step 5)" in verdict.message


def test_a_life_that_gets_further_begins_the_count_anew(run):
    assert live(run, TRAINING, 0, steps=[40])
    assert live(run, TRAINING, 1)
    assert live(run, TRAINING, 2, steps=[50])
    assert live(run, TRAINING, 3)
    assert lives.stalled_at_begin(run, TRAINING) is None


def test_a_job_that_its_scheduler_starts_again_in_vain_does_not_begin(run):
    """No verdict of ours is left where the nodes went down."""
    for life in range(2):
        assert lives.stalled_at_begin(run, TRAINING) is None
        lives.begin_attempt(run, TRAINING, life=life)
    assert lives.stalled_at_begin(run, TRAINING).kind == "no_progress"


def test_restarts_within_a_life_are_no_lives(run):
    for _ in range(5):
        lives.begin_attempt(run, TRAINING, life=0)
    assert lives.stalled_at_begin(run, TRAINING) is None


def test_a_script_gets_further_where_it_stops_in_good_order_or_records_steps(run):
    for life in range(4):
        assert live(run, SCRIPT, life)
    killed = msgspec.structs.replace(STOPPED, exit_code=None)
    assert live(run, SCRIPT, 4, verdict=killed)
    attempt = lives.begin_attempt(run, SCRIPT, life=5)
    events = EventWriter(run.event_file(0, attempt))
    events.write("end", step=9)
    events.close()
    assert live(run, SCRIPT, 6, verdict=killed)
    assert not live(run, SCRIPT, 7, verdict=killed)
    message = run.read_verdict().message
    assert "attempts 6 and 7 ended without a newly recorded step or a stop" in message
    assert "record.should_stop()" in message
    assert "checkpoint.every_steps" not in message


def test_a_script_of_which_nothing_is_known_is_started_ten_times(run):
    """It may save, and go on from there, without a word to anybody."""
    killed = msgspec.structs.replace(STOPPED, exit_code=None)
    for life in range(9):
        assert live(run, SCRIPT, life, verdict=killed)
        assert lives.stalled_at_begin(run, SCRIPT) is None
    assert not live(run, SCRIPT, 9, verdict=killed)
    verdict = run.read_verdict()
    assert (verdict.kind, verdict.step) == ("no_progress", None)
    assert "10 starts in a row: those of attempts 0-9 ended" in verdict.message
