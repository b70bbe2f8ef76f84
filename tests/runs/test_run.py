"""Run directories: made unique and private, found by id, prefix, path or `last`."""

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from full_disks import fill

from hpcdist.base import files
from hpcdist.base.errors import RunNotFoundError
from hpcdist.runs.run import Run, all_runs, find_run, runs_folder, slug
from hpcdist.runs.verdict import Verdict


def make_run(runs, name, created_s):
    run = Run.create(runs, name)
    run.spec_file.write_text(f'{{"created_s": {created_s}, "job": {{}}}}')
    return run


def test_two_submits_at_one_instant_never_share_a_directory(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: Run.create(tmp_path, "ddp").id, range(64)))
    assert len(set(made)) == 64


@pytest.mark.parametrize("name", ["\u00e9", "x\ny", "../../etc", "", "q" * 300, "a'\"$(b)"])
def test_any_job_name_makes_a_plain_id(tmp_path, name):
    run = Run.create(tmp_path, name)
    assert run.path.parent == tmp_path
    assert run.id.isascii()
    assert not {"/", " "} & set(run.id)
    assert len(slug(name)) <= 40


def test_a_run_is_found_by_id_prefix_path_and_last(tmp_path):
    old = make_run(tmp_path, "mlp", 1.0)
    new = make_run(tmp_path, "ddp", 2.0)
    assert find_run(tmp_path, old.id).path == old.path
    assert find_run(tmp_path, "mlp").path == old.path
    assert find_run(tmp_path / "elsewhere", str(old.path)).path == old.path
    assert find_run(tmp_path, "last").path == new.path
    shutil.copytree(new.path, tmp_path / f".{new.id}")  # a hidden folder is no run
    assert [run.id for run in all_runs(tmp_path)] == [old.id, new.id]
    other = make_run(tmp_path, "ddp", 3.0)
    with pytest.raises(RunNotFoundError, match=r"2 runs in .* begin with 'ddp'") as caught:
        find_run(tmp_path, "ddp")
    assert all(run.id in caught.value.hint for run in (new, other))
    for name in ("nope", "", "../x", "a\0b"):
        with pytest.raises(RunNotFoundError):
            find_run(tmp_path, name)
    with pytest.raises(RunNotFoundError, match="there are no runs in") as caught:
        find_run(tmp_path / "missing", "last")
    assert "hpcdist submit" in caught.value.hint


@pytest.mark.parametrize("content", ['{"id": "CartPole-v1", "job": {}}', '{"job": '])
def test_a_folder_with_the_spec_of_another_program_is_no_run(tmp_path, content):
    run = make_run(tmp_path, "ddp", 1.0)
    foreign = tmp_path / "experiment"
    (foreign / "checkpoints").mkdir(parents=True)
    (foreign / "spec.json").write_text(content)
    assert [found.id for found in all_runs(tmp_path)] == [run.id]
    with pytest.raises(RunNotFoundError):
        find_run(tmp_path, "experiment")


def test_the_runs_folder_is_the_option_then_the_variable_then_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    assert runs_folder() == tmp_path / "runs"
    monkeypatch.setenv("HPCDIST_RUNS", str(tmp_path / "other"))
    assert runs_folder() == tmp_path / "other"
    assert runs_folder("here") == tmp_path / "here"


def test_the_first_verdict_stays(tmp_path):
    run = Run.create(tmp_path, "ddp")
    done = Verdict(kind="done", state="done", message="every rank ended well", exit_code_of_run=0)
    late = Verdict(kind="cancelled", state="cancelled", message="late", exit_code_of_run=130)
    assert run.read_verdict() is None
    assert run.write_verdict(done)
    assert not run.write_verdict(late)
    assert run.read_verdict() == done


def test_attempt_numbers_are_taken_once(tmp_path):
    run = Run.create(tmp_path, "ddp")
    assert run.newest_attempt() == -1
    with ThreadPoolExecutor(8) as pool:
        taken = sorted(pool.map(lambda _: run.claim_attempt(), range(16)))
    assert taken == list(range(16))
    assert run.newest_attempt() == 15


def test_a_verdict_is_written_whatever_takes_the_room_that_others_free(small_disk):
    disk = small_disk(2000)
    runs = [Run.create(disk, "job") for _ in range(4)]
    fill(disk)
    pid = os.fork()
    if pid == 0:
        while True:  # as ranks that go on writing, and other users
            fill(disk, mode="ab")
    try:
        for run in runs:
            verdict = Verdict(kind="exit", state="failed", message="m" * 9000, exit_code_of_run=1)
            assert run.write_verdict(verdict)
            assert run.read_verdict() == verdict
            assert [path.name for path in run.path.glob(".*")] == []
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_damaged_file_is_named_with_its_key(tmp_path):
    run = Run.create(tmp_path, "x")
    plan = {"device": "cpu", "backend": "gloo", "nodes": [{"gpus": [1]}]}
    files.write_json(run.spec_file, {"plan": plan})
    assert run.read_spec() is None
    said = "expected `str`, got `int` - at `$.plan.nodes[0].gpus[0]`"
    assert run.describe_damage() == f"spec.json cannot be read: {said}"
