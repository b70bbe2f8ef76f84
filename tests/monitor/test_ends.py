"""A job that its scheduler has not done with yet is waited for, before its run is resumed."""

from types import SimpleNamespace

import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.monitor import states
from hpcdist.monitor.states import wait_until_gone
from hpcdist.schedulers.base import Condition


class Queue:
    """A scheduler that gives these answers, the last again and again."""

    has_queue = True

    def __init__(self, *answers):
        self._answers = list(answers)

    def conditions(self, runs):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            raise SchedulerError("it does not answer", hint="wait")
        return {run.id: Condition(state=answer) for run in runs}


@pytest.fixture
def is_free_with(monkeypatch):
    monkeypatch.setattr(states, "_LOOK_S", 0.01)
    monkeypatch.setattr(states, "_FREE_LIMIT_S", 0.2)
    run = SimpleNamespace(
        id="trained", read_scheduler=lambda: "slurm", read_submission=lambda: None
    )

    def wait(*answers):
        monkeypatch.setattr(states, "load_scheduler", lambda _name: Queue(*answers))
        return wait_until_gone(run, with_job=True)

    return wait


def test_a_run_is_free_once_its_scheduler_says_that_its_job_is_gone(is_free_with):
    assert is_free_with("running", None, "running", "done")
    assert not is_free_with("running")
    assert not is_free_with(None)
