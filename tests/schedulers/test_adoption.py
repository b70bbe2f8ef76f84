"""One job may adopt a run; others of its name end at once."""

import subprocess
import threading

import pytest

from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.batch import note_own_job
from hpcdist.schedulers.slurm.slurm import scheduler as slurm
from hpcdist.schedulers.tasks import adopt, end_unless_adopted, leave_to_another, owner_of


def test_of_jobs_that_start_together_one_adopts_the_run_and_keeps_it(tmp_path):
    jobs = [str(number) for number in range(11, 19)]
    told = {}
    threads = [
        threading.Thread(target=lambda job=job: told.update({job: adopt(tmp_path, 0, job)}))
        for job in jobs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (owner,) = set(told.values())
    assert owner in jobs
    assert adopt(tmp_path, 0, owner) == owner, "in its next life"
    assert adopt(tmp_path, 0, "19") == owner


def test_a_job_that_comes_too_late_says_so_and_ends_well(tmp_path, capsys):
    end_unless_adopted(tmp_path, 2, "11[2]")
    with pytest.raises(SystemExit) as ended:
        end_unless_adopted(tmp_path, 2, "12[2]")
    assert ended.value.code == 0
    assert "this is job 12[2], and job 11[2] has the run" in capsys.readouterr().out
    end_unless_adopted(tmp_path, 1, "12[1]")  # another run of the array


def test_a_run_is_left_by_its_own_job_alone_and_adopted_by_the_next(tmp_path):
    adopt(tmp_path, 0, "11")
    leave_to_another(tmp_path, 0, "12")
    assert owner_of(tmp_path, 0) == "11"
    leave_to_another(tmp_path, 0, "11")
    assert owner_of(tmp_path, 0) is None
    assert adopt(tmp_path, 0, "12") == "12"


def test_a_run_is_adopted_and_left_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr("os.link", refuse)
    assert adopt(tmp_path, 0, "11") == "11"
    assert adopt(tmp_path, 0, "12") == "11"
    leave_to_another(tmp_path, 0, "11")
    assert adopt(tmp_path, 0, "12") == "12"


def test_a_claim_that_is_no_id_is_nobodys(tmp_path):
    (tmp_path / "task-0.job").write_text("all of them\x1b[2J")
    assert owner_of(tmp_path, 0) is None
    assert adopt(tmp_path, 0, "11") == "11"


@pytest.mark.parametrize("comes_first", ["submission", "job"])
def test_the_submission_names_the_job_that_has_the_run(tmp_path, monkeypatch, comes_first):
    run = Run(tmp_path / "count-1")
    target = Target(name=run.id, folder=run.path, cwd="/")
    target.make_folders()

    def begin():
        adopt(target.submitit_folder, 0, "11")
        note_own_job(run, "11")

    def submit():
        return subprocess.CompletedProcess(["sbatch"], 0, "Submitted batch job 14\n", "")

    if comes_first == "job":
        adopt(target.submitit_folder, 0, "11")
    monkeypatch.setattr("hpcdist.schedulers.batch.call_command", lambda *_, **__: submit())
    slurm.submit(None, target, [run], "#!/bin/sh\n")
    begin()
    assert run.read_job_id() == "11"
    assert run.read_submission().job_name == run.id
