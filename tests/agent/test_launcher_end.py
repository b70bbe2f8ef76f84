"""srun that ends without its agents having said how the run ended."""

import pytest

from hpcdist.agent import launcher_end
from hpcdist.agent.outcome import lives
from hpcdist.job.spec import TrainJob
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.notes import Notes
from hpcdist.schedulers.requeue import Decision

TRAINING = TrainJob(name="t")
NO_STEP = "Unable to create step for job 3: Invalid generic resource (gres) specification"


class Scheduler:
    """One that goes on with its job, or says what is to follow its end."""

    def __init__(self, sequel="requeue"):
        self.sequel = sequel
        self.requeued = 0

    kill_wait_s = patience_s = 30.0

    def life(self):
        return 1

    def decide(self, _verdict):
        return Decision(sequel=self.sequel, cause="nothing")

    def requeue(self, _run):
        self.requeued += 1


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path, "job")


@pytest.fixture
def in_time(monkeypatch):
    """Nobody waits for a verdict of another node."""
    monkeypatch.setattr(launcher_end, "_ON_ITS_WAY_S", 0.0)


def conclude(run, scheduler, code=1, *said):
    launcher_end.conclude(run, TRAINING, scheduler, code=code, said=[*said])
    return scheduler.requeued


def test_where_srun_could_create_no_step_the_job_is_requeued_and_its_words_are_told(run):
    assert conclude(run, Scheduler(), 1, NO_STEP) == 1
    verdict = run.read_attempt_verdict(0)
    said = f"no agent was started: srun ended with exit code 1, and said: {NO_STEP}"
    assert (verdict.kind, verdict.message) == ("launch", said)
    assert run.read_verdict() is None


def test_an_agent_that_could_not_be_started_for_its_own_reasons_is_not_tried_again(run):
    # ... nor told where the scheduler ends the job
    assert conclude(run, Scheduler("final"), 1, "Job step aborted") == 0
    assert run.read_verdict() is None
    assert conclude(run, Scheduler(), 127, "n1: task 0: Exited with exit code 127") == 0
    said = "no agent was started: srun ended with exit code 127, and"
    assert run.read_verdict().message.startswith(said)


@pytest.mark.usefixtures("in_time")
def test_a_run_whose_agents_srun_left_alone_goes_on(run):
    attempt = lives.Attempts(run, TRAINING, Scheduler()).claim()
    assert conclude(run, Scheduler(), 5) == 1
    verdict = run.read_attempt_verdict(attempt)
    assert verdict.message == "srun, which had started the agents, ended with exit code 5"
    assert verdict.kind == "agent_lost"


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("happens", ["verdict", "requeue", "cancel"])
def test_what_others_concluded_is_left_to_them(run, happens):
    lives.Attempts(run, TRAINING, Scheduler()).claim()
    verdict = Verdict(kind="exit", message="left with 3") if happens == "verdict" else None
    if verdict is not None:
        run.write_verdict(verdict)
    elif happens == "requeue":
        run.claim_end_of_life(1)
    else:
        run.ask_to_cancel()
    assert conclude(run, Scheduler(), 137) == 0
    assert (run.read_attempt_verdict(0), run.read_verdict()) == (None, verdict)


@pytest.mark.parametrize(
    "words",
    [
        "Aborting, step missing and io error on node 0",
        "Cannot communicate with node 0.  Aborting job.",
        "_server_read: aborting, io error with slurmstepd on node 0",
    ],
)
def test_each_of_srun_s_words_on_a_lost_slurmstepd_names_its_node(words, tmp_path, monkeypatch):
    lost = Verdict(kind="agent_lost", message="the agent of node 1 was lost", node=1, time_s=1.0)
    (tmp_path / "log").write_text(f"srun: error: {words}\n")
    monkeypatch.setenv("HPCDIST_SRUN_LOG", f"0:{tmp_path / 'log'}")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n1,n2")
    verdict = launcher_end.after_launcher(lost, Notes())
    assert (verdict.node, verdict.host) == (0, "n1")
    assert words.partition(".")[0] in verdict.message
