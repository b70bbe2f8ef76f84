"""Functions as jobs: called in every rank, and what they return comes back."""

import functools
import os
import pickle
import subprocess
import sys
import threading

import pytest

import hpcdist
from hpcdist.base.errors import HpcdistError, JobError, UserError
from hpcdist.job import function as call
from hpcdist.runs.run import Run, write_outcome

MODULE = """
import os, sys, threading
from hpcdist import record
import beside

class Unsendable:
    def __reduce__(self):
        raise TypeError("it is bound to this process")

def work(number, *, factor=1):
    for step in range(3):
        record.step(samples=4, loss=0.5)
    rank = int(os.environ["RANK"])
    return {"value": beside.add(number * factor, rank), "argv": sys.argv}

def fail(rank):
    if int(os.environ["RANK"]) == rank:
        raise beside.OwnError("no luck", 7)
    threading.Event().wait()  # until the agent ends it

def unsendable():
    return Unsendable()
"""
BESIDE = """
class OwnError(Exception):
    def __init__(self, why, code):
        super().__init__(why, code)
        self.code = code

def add(a, b):
    return a + b
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's beside another, as if python had been started in its folder."""
    (tmp_path / "their_work.py").write_text(MODULE)
    (tmp_path / "beside.py").write_text(BESIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    import their_work

    yield their_work
    for name in ("their_work", "beside"):
        sys.modules.pop(name, None)


def test_a_function_is_called_in_every_rank_and_its_results_come_back(module):
    secret = "wX7-secret-argument"
    run = hpcdist.submit(functools.partial(module.work, factor=2), (5,), nodes=2, scheduler="local")
    assert [one["value"] for one in run.results(timeout_s=60)] == [10, 11]
    assert run.result(1) == {"value": 11, "argv": [module.__file__]}
    assert run.summary().steps == 3
    assert run.summary().job == "work"
    with pytest.raises(UserError, match="rank is 2, must be from 0 to 1"):
        run.result(2)
    run.path.joinpath("results", "rank-00001.pkl").chmod(0o644)
    with pytest.raises(HpcdistError, match=r"rank 1 .* cannot be read here: .* is not private"):
        run.results()
    texts = hpcdist.submit(module.work, (secret,), scheduler="local", set={"launch.grace_s": 1})
    assert texts.wait(60).first.report.exception == "TypeError"  # a text and a number are not added
    told = (texts.path / "spec.json").read_text()
    assert '"function": "their_work:work"' in told
    assert module.__file__ in told
    assert secret not in told
    pickles = [texts.path / "function.pkl", *(texts.path / "results").iterdir()]
    assert len(pickles) == 2
    for path in (*pickles, texts.path, texts.path / "results"):
        assert path.stat().st_mode & 0o077 == 0


def test_an_exception_of_a_rank_is_raised_with_its_place_and_traceback(module):
    run = hpcdist.submit(module.fail, (1,), gpus=2, scheduler="local")
    with pytest.raises(hpcdist.RunFailedError, match=r"rank 1 .* failed first") as caught:
        run.result(timeout_s=60)
    error = caught.value
    assert (error.rank, error.host) == (1, run.verdict.first.host)
    assert type(error.__cause__) is sys.modules["beside"].OwnError
    assert (error.__cause__.args, error.__cause__.code) == (("no luck", 7), 7)
    assert "their_work.py" in error.remote_traceback
    assert "function.py" not in error.remote_traceback  # begins with the user's own frames
    assert error.remote_traceback in str(error)


@pytest.mark.parametrize(
    "error",
    [KeyError("a"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"), SystemExit(3)],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_as_it_was_raised(tmp_path, error):
    run = Run.create(tmp_path, "x")
    write_outcome(run, 0, 0, "raised", error)
    kind, back = pickle.loads(run.outcome_file(0, 0).read_bytes())
    assert kind == "raised"
    assert (type(back), str(back), back.args) == (type(error), str(error), error.args)


def test_a_result_that_cannot_be_sent_is_told(module):
    run = hpcdist.submit(module.unsendable, scheduler="local")
    assert run.wait(60).state == "done"
    with pytest.raises(HpcdistError, match=r"rank 0 .* a Unsendable, which cannot be pickled"):
        run.result()


SCRIPT = """
import os
import hpcdist

class Answer:
    def __init__(self, number):
        self.number = number

def work(factor):
    return Answer(factor * (1 + int(os.environ["RANK"])))

if __name__ == "__main__":
    run = hpcdist.submit(work, (21,), gpus=2, scheduler="local")
    answers = run.results()
    assert all(type(one) is Answer for one in answers)
    doubled = hpcdist.submit(lambda: 2 * answers[1].number, scheduler="local")
    print([one.number for one in answers], doubled.result(), doubled.id[:7])
"""


def test_functions_and_classes_of_a_main_script_go_whole(write_script, tmp_path):
    done = subprocess.run(
        [sys.executable, write_script(SCRIPT, "main_script.py")],
        cwd=tmp_path,
        env=os.environ | {"HPCDIST_RUNS": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stdout == "[21, 42] 84 lambda-\n", done.stderr


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((threading.Lock(),), {}, "their_work:work, or one of its arguments, cannot be pickled"),
        ((1, 2), {}, "their_work:work cannot be called .*too many positional arguments"),
    ],
    ids=["pickle", "arguments"],
)
def test_a_call_that_would_fail_at_once_is_refused(module, tmp_path, args, kwargs, message):
    with pytest.raises(JobError, match=message):
        hpcdist.submit(module.work, args, kwargs, scheduler="local")
    assert not (tmp_path / "runs").exists()


def test_what_takes_no_function_or_only_a_function_is_refused(module, write_script):
    with pytest.raises(JobError, match="only a function takes arguments by name"):
        hpcdist.submit(write_script("pass"), kwargs={"a": 1}, scheduler="local")
    with pytest.raises(JobError, match="a function cannot be swept"):
        hpcdist.sweep(module.work, {"nodes": [1, 2]}, scheduler="local")
    with pytest.raises(JobError, match=r"nodes: resources\.nodes is 0"):
        hpcdist.submit(module.work, (1,), nodes=0, scheduler="local")


def test_a_call_that_others_may_write_is_not_loaded(tmp_path):
    path = tmp_path / "function.pkl"
    path.write_bytes(pickle.dumps((print, (), {})))
    path.chmod(0o620)
    with pytest.raises(PermissionError, match="not private"):
        call.load_call(path)
    path.chmod(0o600)
    assert call.load_call(path) == (print, (), {})
    link = tmp_path / "link.pkl"
    link.symlink_to(path)
    with pytest.raises(OSError, match="link"):
        call.load_call(link)
