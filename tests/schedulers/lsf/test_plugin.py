"""What submitit submits to LSF by itself, up to the call of bsub."""

import pickle

import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.schedulers.lsf.plugin import LsfExecutor

SUBMITTED = "Job <9> is submitted to queue <normal>."


@pytest.fixture
def executor(tmp_path, monkeypatch, commands):
    monkeypatch.chdir(tmp_path)
    executor = LsfExecutor(folder=tmp_path / "jobs")
    executor.update_parameters(timeout_min=1, name="evaluate")
    return executor


def test_a_job_of_which_bsub_does_not_tell_is_not_taken_for_an_older_one_of_its_name(
    executor, commands
):
    commands.say("bsub", "welcome to the cluster\n")
    commands.say(
        "bjobs",
        '{"RECORDS": [{"JOBID": "3", "JOB_NAME": "evaluate", "STAT": "RUN", "EXEC_HOST": "a"}]}',
    )
    with pytest.raises(SchedulerError, match="holds no job id"):
        executor.submit(abs, -3)


def test_two_submissions_at_one_time_into_one_folder_keep_their_functions_apart(
    executor, commands, tmp_path
):
    """While bsub submits one, another goes all its way."""
    meanwhile = tmp_path / "jobs" / "task-0.pkl"
    commands.add("bsub", f"echo other > {meanwhile}; echo '{SUBMITTED}'")
    job = executor.submit(abs, -3)
    delayed = pickle.loads(job.paths.submitted_pickle.read_bytes())
    assert delayed.result() == 3
