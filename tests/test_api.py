"""hpcdist from Python."""

import pytest

import hpcdist
from hpcdist.base.errors import JobError, ProfileError, RunNotFoundError, SchedulerError

HELLO = """
import os, sys
print("rank", os.environ["RANK"], sys.argv[1:], flush=True)
"""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)


def test_a_script_is_submitted_waited_for_and_summarized(tmp_path):
    (tmp_path / "hello.py").write_text(HELLO)
    run = hpcdist.submit("hello.py", nodes=2, scheduler="local", args=["a"], runs=tmp_path / "r")
    assert run.path.parent == tmp_path / "r"
    verdict = run.wait(timeout_s=60)
    assert (verdict.state, run.state, run.verdict) == ("done", "done", verdict)
    assert run.logs(1) == "rank 1 ['a']\n"
    assert run.logs(2) == ""
    assert run.summary().world_size == 2
    again = hpcdist.load(run.id, runs=tmp_path / "r")
    assert again.path == run.path
    assert repr(again) == f"SubmittedRun({run.id!r}, 'done')"
    again.cancel()
    assert again.state == "done"


def test_a_run_that_goes_on_times_out_and_is_cancelled(tmp_path):
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(600)\n")
    run = hpcdist.submit("waits.py", scheduler="local")
    with pytest.raises(TimeoutError, match="has not ended after"):
        run.wait(timeout_s=0.05)
    run.cancel()
    assert run.wait(timeout_s=60).kind == "cancelled"
    assert hpcdist.load("last").state == "cancelled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 0}, r"nodes: resources.nodes is 0, must be 1 or more"),
        ({"gpus": "2"}, r'gpus: resources.gpus is "2", must be a whole number'),
        ({"set": {"train.lr": "x"}}, r"set\['train.lr'\]: train.lr is \"x\", must be"),
        ({"set": {"nodes": 2}}, r"set\['nodes'\]: nodes is not a known key"),
        ({"args": ["--lr"]}, r"takes no script arguments"),
    ],
    ids=["zero", "text", "set", "unknown key", "arguments"],
)
def test_a_wrong_value_is_a_job_error_that_names_it(tmp_path, options, message):
    with pytest.raises(JobError, match=message):
        hpcdist.submit("ddp", scheduler="local", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_run_scheduler_or_cluster_is_an_error_of_its_own(tmp_path):
    with pytest.raises(RunNotFoundError):
        hpcdist.load("last")
    with pytest.raises(SchedulerError):
        hpcdist.submit("ddp", scheduler="sge")
    with pytest.raises(ProfileError, match="no cluster called 'jura'"):
        hpcdist.submit("ddp", cluster="jura")
    with pytest.raises(ProfileError, match="partition: partition is 3, must be one word"):
        hpcdist.submit("ddp", partition=3)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_runs_every_point_and_returns_the_runs(tmp_path):
    (tmp_path / "hello.py").write_text(HELLO)
    over = {"args": [["a"], ["b"]]}
    runs = hpcdist.sweep("hello.py", over, scheduler="local", max_parallel=2)
    assert [run.state for run in runs] == ["done"] * 2
    assert [run.logs(0) for run in runs] == [f"rank 0 ['{word}']\n" for word in "ab"]
    after = hpcdist.submit("hello.py", scheduler="local", after=runs)
    assert after.wait(timeout_s=60).state == "done"
    with pytest.raises(JobError, match=r"resources\.nodes"):
        hpcdist.sweep("hello.py", {"nodes": [1, 0]}, scheduler="local")
