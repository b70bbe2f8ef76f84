"""A job that its scheduler has not done with yet is waited for, before its run is resumed."""

from types import SimpleNamespace

import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.monitor import states
from hpcdist.monitor.states import wait_until_gone
from hpcdist.schedulers.base import Condition


class Queue:
    """A scheduler that gives these answers, the last again and again; None: it is silent."""

    has_queue = True

    def __init__(self, *answers):
        self._answers = list(answers)

    def conditions(self, runs):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            raise SchedulerError("it does not answer", hint="wait")
        return {run.id: Condition(state=answer) for run in runs}


@pytest.mark.parametrize(
    ("answers", "is_free"),
    [(["running", None, "running", "done"], True), (["running"], False), ([None], False)],
)
def test_a_run_is_free_once_its_scheduler_says_that_its_job_is_gone(monkeypatch, answers, is_free):
    monkeypatch.setattr(states, "_LOOK_S", 0.01)
    monkeypatch.setattr(states, "_FREE_LIMIT_S", 0.2)
    queue = Queue(*answers)
    monkeypatch.setattr(states, "load_scheduler", lambda _name: queue)
    facts = {"read_scheduler": lambda: "slurm", "read_submission": lambda: None}
    assert wait_until_gone(SimpleNamespace(id="trained", **facts), with_job=True) is is_free
