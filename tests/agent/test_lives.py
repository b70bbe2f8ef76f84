"""What follows the end of a job that could go on: another life, or the final verdict."""

import json
import os
import time
from unittest import mock

import msgspec
import pytest
from full_disks import fill

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


class Scheduler:
    """A scheduler that answers as it is told to; before, it is silent `silent` times, and `deaf`
    times it says nothing although it has heard."""

    def __init__(
        self,
        decision="requeue",
        error=None,
        life=0,
        *,
        cause="nothing",
        silent=0,
        deaf=0,
        difference=None,
    ):
        self.difference = difference
        self.decision = decision
        self.error = error
        self.number = life
        self.cause = cause
        self.silent = silent
        self.deaf = deaf
        self.requeued = 0
        self.on_decide = lambda: None
        self.kill_wait_s = 30.0
        self.patience_s = 100.0

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
        return self.difference

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
    return lives.Attempts(run, job, Scheduler(life=life)).claim()


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


def live(run, job, life, *, steps=(), verdict=STOPPED):
    """One life, with a checkpoint at each of `steps`."""
    attempt = begin_attempt(run, job, life=life)
    for step in steps:
        save_checkpoint(run, step)
    conclude(
        run,
        job,
        msgspec.structs.replace(verdict, attempt=attempt),
        scheduler := Scheduler(life=life),
    )
    return scheduler.requeued == 1


def test_a_stopped_run_leaves_the_verdict_to_its_last_life(run):
    assert live(run, TRAINING, 0, steps=[5])
    assert run.read_verdict() is None
    stopped = run.read_attempt_verdict(0)
    assert (stopped.kind, stopped.message) == ("preempted", STOPPED.message)


@pytest.mark.parametrize("why", ["the user says no", "the scheduler cannot", "it decides so"])
def test_without_a_requeue_the_stop_is_the_final_verdict(run, why):
    scheduler = {"the user says no": Scheduler(), "it decides so": Scheduler("final")}.get(why)
    job = TrainJob(name="t", launch=Launch(requeue=why != "the user says no"))
    conclude(run, job, STOPPED, scheduler)
    assert run.read_verdict() == STOPPED
    assert scheduler is None or not scheduler.requeued


def test_a_scheduler_that_requeues_by_itself_is_not_asked_to(run):
    begin_attempt(run, TRAINING, life=0)
    conclude(run, TRAINING, STOPPED, scheduler := Scheduler("leave"))
    assert (run.read_verdict(), run.read_attempt_verdict(0)) == (None, STOPPED)
    assert not scheduler.requeued


@pytest.mark.parametrize("scheduler", [Scheduler(error=SchedulerError("no")), Scheduler(None)])
def test_a_requeue_that_fails_is_told_in_the_final_verdict(run, scheduler):
    begin_attempt(run, TRAINING, life=0)
    conclude(run, TRAINING, STOPPED, scheduler)
    verdict = run.read_verdict()
    assert verdict.exit_code_of_run == 75
    assert "stopped at step 5 by SIGTERM; it could not be requeued: " in verdict.message


def test_a_life_that_ends_on_a_full_disk_is_not_requeued_and_has_a_verdict(small_disk):
    disk = small_disk(300)
    run = Run.create(disk, "job")
    begin_attempt(run, TRAINING, life=0)
    fill(disk)
    conclude(run, TRAINING, STOPPED, scheduler := Scheduler())
    assert scheduler.requeued == 0
    message = f"{STOPPED.message}; it could not be requeued: the disk is full: {disk}"
    assert run.read_verdict().message.startswith(message)


def test_of_several_agents_one_requeues(run):
    begin_attempt(run, TRAINING, life=0)
    agents = [Scheduler(), Scheduler()]
    lost = Verdict(kind="agent_lost", state="failed", message="lost", exit_code_of_run=1)
    for scheduler in agents:
        conclude(run, TRAINING, lost, scheduler)
    assert [scheduler.requeued for scheduler in agents] == [1, 0]
    assert run.read_verdict() is None


def test_a_failure_is_final(run):
    failed = Verdict(kind="exception", state="failed", message="no", exit_code_of_run=1)
    conclude(run, TRAINING, failed, scheduler := Scheduler())
    assert (run.read_verdict(), scheduler.requeued) == (failed, 0)


def test_a_life_that_ended_before_its_first_attempt_counts_as_one(run):
    scheduler = Scheduler(life=3)
    conclude(run, TRAINING, STOPPED, scheduler, has_begun=False)
    assert scheduler.requeued
    assert run.read_beginnings()[0].life == 3
    assert run.read_attempt_verdict(0) is not None


def test_three_lives_without_a_newer_checkpoint_are_the_last(run):
    assert live(run, TRAINING, 0, steps=[40])
    assert live(run, TRAINING, 1)
    assert live(run, TRAINING, 2)
    assert not live(run, TRAINING, 3)
    verdict = run.read_verdict()
    assert (verdict.kind, verdict.state, verdict.exit_code_of_run) == ("no_progress", "failed", 1)
    assert "attempts 1, 2 and 3 ended without a checkpoint newer than step 40" in verdict.message
    assert "(the last: stopped at step 5 by SIGTERM)" in verdict.message


def test_a_life_that_gets_further_begins_the_count_anew(run):
    assert live(run, TRAINING, 0, steps=[40])
    assert live(run, TRAINING, 1)
    assert live(run, TRAINING, 2, steps=[50])
    assert live(run, TRAINING, 3)
    assert lives.verdict_if_stalled(run, TRAINING) is None


def test_a_job_that_its_scheduler_starts_again_in_vain_does_not_begin(run):
    """No verdict of ours is left where the nodes went down."""
    for life in range(3):
        assert lives.verdict_if_stalled(run, TRAINING) is None
        begin_attempt(run, TRAINING, life=life)
    assert lives.verdict_if_stalled(run, TRAINING).kind == "no_progress"


def test_restarts_within_a_life_are_no_lives(run):
    for _ in range(5):
        begin_attempt(run, TRAINING, life=0)
    assert lives.verdict_if_stalled(run, TRAINING) is None


def test_a_script_gets_further_where_it_stops_in_good_order_or_records_steps(run):
    for life in range(4):
        assert live(run, SCRIPT, life)
    killed = msgspec.structs.replace(STOPPED, exit_code=None)
    assert live(run, SCRIPT, 4, verdict=killed)
    attempt = begin_attempt(run, SCRIPT, life=5)
    events = EventWriter(run.event_file(0, attempt))
    events.write({"event": "end", "step": 9})
    events.close()
    assert live(run, SCRIPT, 6, verdict=killed)
    assert live(run, SCRIPT, 7, verdict=killed)
    assert not live(run, SCRIPT, 8, verdict=killed)
    message = run.read_verdict().message
    assert "attempts 6, 7 and 8 ended without a newly recorded step or a stop" in message


def test_a_script_of_which_nothing_is_known_is_started_ten_times(run):
    """It may save, and go on from there, without a word to anybody."""
    killed = msgspec.structs.replace(WARNED, exit_code=None)
    for life in range(9):
        assert live(run, SCRIPT, life, verdict=killed)
        assert lives.verdict_if_stalled(run, SCRIPT) is None
    assert not live(run, SCRIPT, 9, verdict=killed)
    verdict = run.read_verdict()
    assert (verdict.kind, verdict.step) == ("no_progress", None)
    assert "10 starts: those of attempts 0-9 ended" in verdict.message


WARNED = msgspec.structs.replace(STOPPED, kind="time_limit", signal="SIGUSR2")
LOST = Verdict(
    kind="agent_lost", state="failed", message="node 0 was lost", exit_code_of_run=1, node=0
)
EARLY = msgspec.structs.replace(STOPPED, exit_code=None, step=None)


@pytest.mark.parametrize("job", [TRAINING, SCRIPT], ids=["training", "script"])
def test_lives_that_are_preempted_before_their_first_step_do_not_count(run, job):
    for life in range(20):
        assert lives.verdict_if_stalled(run, job) is None
        assert live(run, job, life, verdict=EARLY)
    stopped = msgspec.structs.replace(STOPPED, exit_code=None)
    assert live(run, TRAINING, 20, verdict=stopped)
    assert live(run, TRAINING, 21, verdict=stopped)
    assert not live(run, TRAINING, 22, verdict=stopped)
    assert "3 starts: those of attempts 20, 21 and 22 ended" in run.read_verdict().message


def test_lives_that_lose_a_node_may_be_the_jobs_own_doing(run):
    for life in range(2):
        assert live(run, TRAINING, life, verdict=LOST)
    assert not live(run, TRAINING, 2, verdict=LOST)
    assert "3 starts: those of attempts 0, 1 and 2" in run.read_verdict().message


CAUSES = {
    "time_limit": ("the time limit was reached: ", "time_limit"),
    "preemption": ("preempted: ", "preempted"),
    "requeue or preemption": ("preempted or requeued: ", "preempted"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_sigterm_was_for_is_told_as_the_scheduler_knows_it(run, cause):
    begin_attempt(run, TRAINING, life=0)
    conclude(run, TRAINING, STOPPED, Scheduler(cause=cause))
    verdict = run.read_attempt_verdict(0)
    words, kind = CAUSES[cause]
    assert (verdict.message, verdict.kind) == (words + STOPPED.message, kind)
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75)


def test_what_a_scheduler_that_does_not_answer_knows_is_left_open(run):
    conclude(run, TRAINING, STOPPED, Scheduler(None))
    assert run.read_verdict().message.startswith("preempted or requeued: stopped at step 5")


OVERDUE = Verdict(
    kind="time_limit",
    state="failed",
    message="ended by SIGTERM",
    exit_code_of_run=1,
    signal="SIGTERM",
)
ENDED = msgspec.structs.replace(STOPPED, exit_code=None, message="ended by SIGTERM")


@pytest.mark.parametrize("verdict", [OVERDUE, ENDED], ids=["warned before", "not warned"])
@pytest.mark.parametrize("job", [TRAINING, SCRIPT], ids=["training", "script"])
def test_at_the_limit_a_run_that_has_saved_nothing_is_over(run, job, verdict):
    begin_attempt(run, job, life=0)
    conclude(run, job, verdict, scheduler := Scheduler(cause="time_limit"))
    final = run.read_verdict()
    assert (final.kind, final.state, final.exit_code_of_run) == ("time_limit", "failed", 1)
    assert final.message.startswith("the time limit was reached: ended by SIGTERM")
    assert ("; a script is started again after its limit" in final.message) == (job is SCRIPT)
    assert not scheduler.requeued


@pytest.mark.parametrize("saves", [True, False], ids=["saves", "only records"])
@pytest.mark.parametrize("records", [True, False], ids=["records", "only saves"])
def test_at_the_limit_a_script_goes_on_where_it_has_recorded_steps_and_saved_in_this_life(
    run, records, saves
):
    (run.path / "former.pt").touch()
    begin = run.attempts_folder / "00000" / "begin.json"
    attempt = begin_attempt(run, SCRIPT, life=0)
    os.utime(run.path / "former.pt", ns=(0, begin.stat().st_mtime_ns - 1))
    if records:
        events = EventWriter(run.event_file(0, attempt))
        events.write({"event": "steps", "step": 9})
        events.close()
    if saves:
        (run.path / "own").mkdir()
        (run.path / "own" / "model.ckpt").touch()
        os.utime(run.path / "own" / "model.ckpt", ns=(0, begin.stat().st_mtime_ns + 1))
    conclude(run, SCRIPT, OVERDUE, scheduler := Scheduler(cause="time_limit"))
    assert scheduler.requeued == (records and saves)


def test_at_the_limit_a_training_goes_on_where_it_has_saved_in_this_life(run):
    save_checkpoint(run, 3)
    begin_attempt(run, TRAINING, life=0)
    begin_attempt(run, TRAINING, life=0)  # after a failure
    save_checkpoint(run, 5)
    conclude(run, TRAINING, OVERDUE, scheduler := Scheduler(cause="time_limit"))
    assert (run.read_verdict(), scheduler.requeued) == (None, 1)


def test_who_did_not_stop_before_a_preemption_goes_on_all_the_same(run):
    begin_attempt(run, SCRIPT, life=0)
    conclude(run, SCRIPT, OVERDUE, Scheduler("leave", cause="requeue or preemption"))
    verdict = run.read_attempt_verdict(0)
    assert (verdict.kind, verdict.state, verdict.exit_code_of_run) == ("preempted", "preempted", 75)


@pytest.mark.parametrize("scheduler", [{"silent": 12}, {"deaf": 1}, {"silent": 1, "deaf": 1}])
def test_a_scheduler_that_is_silent_for_a_while_is_asked_again(run, scheduler):
    begin_attempt(run, TRAINING, life=0)
    conclude(run, TRAINING, WARNED, scheduler := Scheduler(**scheduler))
    assert (run.read_verdict(), scheduler.requeued) == (None, 1)


@pytest.mark.parametrize(
    ("verdict", "waited_s"), [(WARNED, 100), (STOPPED, 15)], ids=["warned", "SIGTERM"]
)
@pytest.mark.parametrize("silent", ["at once", "when it is to requeue"])
def test_how_long_it_is_asked(run, verdict, waited_s, silent):
    begin_attempt(run, TRAINING, life=0)
    scheduler = Scheduler(None) if silent == "at once" else Scheduler(error=SchedulerError("no"))
    assert conclude(run, TRAINING, verdict, scheduler) == waited_s
    assert "it could not be requeued" in run.read_verdict().message


def test_a_request_that_was_perhaps_heard_leaves_the_run_to_its_scheduler(run):
    begin_attempt(run, TRAINING, life=0)
    scheduler = Scheduler(error=RequeueUnclearError("LSF may start it again, or not"))
    assert conclude(run, TRAINING, WARNED, scheduler) == 100
    assert run.read_verdict() is None
    verdict = run.read_attempt_verdict(0)
    assert verdict.message.endswith("; LSF may start it again, or not")
    assert verdict.exit_code_of_run == 75


def test_a_scheduler_that_leaves_its_jobs_more_time_is_asked_for_longer(run):
    scheduler = Scheduler(None)
    scheduler.patience_s = lsf.patience_s
    begin_attempt(run, TRAINING, life=0)
    assert conclude(run, TRAINING, WARNED, scheduler) == 540


def test_what_is_different_in_the_next_life_is_told_with_the_end_of_this_one(run):
    lost = Verdict(kind="launch", message="no route", host="n2", try_elsewhere=True, time_s=1.0)
    begin_attempt(run, TRAINING, life=0)
    scheduler = Scheduler(difference="it starts again without n2")
    conclude(run, TRAINING, lost, scheduler)
    assert run.read_verdict() is None
    assert run.read_attempt_verdict(0).message == "no route; it starts again without n2"


def test_an_agent_that_is_cut_off_leaves_the_run_to_the_others(run):
    begin_attempt(run, TRAINING, life=0)
    conclude(run, TRAINING, LOST, Scheduler(None))
    assert run.read_verdict() is None
    assert "could not be requeued" in run.read_attempt_verdict(0).message
    assert run.claim_end_of_life(0)  # whoever can ask the scheduler may still act


@pytest.mark.parametrize("answer", ["requeue", None], ids=["answered", "silent"])
@pytest.mark.parametrize("verdict", [LOST, WARNED], ids=["lost", "warned"])
def test_an_attempt_that_was_overtaken_while_it_asked_says_nothing(run, verdict, answer):
    begin_attempt(run, TRAINING, life=0)
    scheduler = Scheduler(None) if answer is None else Scheduler()
    scheduler.on_decide = lambda: begin_attempt(run, TRAINING, life=1)
    conclude(run, TRAINING, verdict, scheduler)
    assert run.read_verdict() is None
    assert run.read_attempt_verdict(0) is None
    assert scheduler.requeued == 0


def announce(run, *hosts):
    for node, host in enumerate(hosts):
        run.agent_file(node).write_text(json.dumps({"node": node, "host": host}))


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (["n1"], "by the agent of node 0 (host n1) before"),
        (["n1", "n2"], "by its agents before"),
    ],
)
def test_the_next_life_tells_of_an_attempt_that_was_lost_with_its_node(run, hosts, words):
    begin_attempt(run, TRAINING, life=0)
    announce(run, *hosts)
    note_lost_attempt(run, life=0)
    assert run.read_attempt_verdict(0) is None
    note_lost_attempt(run, life=1)
    announce(run, *("m" for _ in hosts))
    note_lost_attempt(run, life=1)  # by another agent
    verdict = run.read_attempt_verdict(0)
    assert verdict.kind == "agent_lost"
    assert words in verdict.message
    assert verdict.message.endswith("lost with a node")


def test_an_attempt_that_told_its_end_is_not_lost(run):
    assert live(run, TRAINING, 0, steps=[5])
    note_lost_attempt(run, life=1)
    assert run.read_attempt_verdict(0).kind == "preempted"


UNSTARTED = Verdict(
    kind="launch", state="failed", message="no agent", exit_code_of_run=1, try_elsewhere=True
)


def test_a_job_in_which_no_agent_could_be_started_is_started_again_as_often_as_any(run):
    def begin_in_vain(life):
        scheduler = Scheduler(life=life)
        conclude(run, TRAINING, UNSTARTED, scheduler, has_begun=False)
        return scheduler.requeued == 1

    begin_attempt(run, TRAINING, life=0)
    assert begin_in_vain(1)
    assert begin_in_vain(2)
    assert not begin_in_vain(2)  # somebody has
    assert not begin_in_vain(3)
    verdict = run.read_verdict()
    assert verdict.kind == "no_progress"
    assert "no progress in 3 starts: those of attempts 0, 1 and 2 ended" in verdict.message
    assert "(the last: no agent)" in verdict.message
    assert [run.read_attempt_verdict(attempt).message for attempt in (1, 2)] == ["no agent"] * 2


def test_without_a_requeue_a_job_in_which_no_agent_could_be_started_has_failed(run):
    job = TrainJob(name="t", launch=Launch(requeue=False))
    conclude(run, job, UNSTARTED, Scheduler(), has_begun=False)
    assert run.read_verdict() == UNSTARTED
