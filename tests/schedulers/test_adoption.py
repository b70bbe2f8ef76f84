"""One job may adopt a run; others of its name end at once."""

import subprocess
import threading
from contextlib import suppress

import pytest

from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.batch import note_own_job
from hpcdist.schedulers.slurm.slurm import scheduler as slurm
from hpcdist.schedulers.tasks import end_unless_adopted, leave_to_another, owner_of


def begin(folder, job, place=0):
    """Be a job that begins; returns the one that has the run."""
    with suppress(SystemExit):
        end_unless_adopted(folder, place, job)
    return owner_of(folder, place)


def test_of_jobs_that_start_together_one_adopts_the_run_and_keeps_it(tmp_path):
    jobs = [str(number) for number in range(11, 19)]
    threads = [threading.Thread(target=begin, args=(tmp_path, job)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owner = owner_of(tmp_path, 0)
    assert owner in jobs
    end_unless_adopted(tmp_path, 0, owner)  # in its next life
    assert begin(tmp_path, "19") == owner


@pytest.mark.parametrize("has_links", [True, False])
def test_a_run_is_left_by_its_own_job_alone_and_adopted_by_the_next(
    tmp_path, monkeypatch, has_links
):
    def refuse(*_):
        raise PermissionError

    if not has_links:
        monkeypatch.setattr("os.link", refuse)
    assert begin(tmp_path, "11") == begin(tmp_path, "12") == "11"
    leave_to_another(tmp_path, 0, "12")
    assert owner_of(tmp_path, 0) == "11"
    leave_to_another(tmp_path, 0, "11")
    assert begin(tmp_path, "12") == "12"


@pytest.mark.parametrize("comes_first", ["submission", "job"])
def test_the_submission_names_the_job_that_has_the_run(tmp_path, monkeypatch, comes_first):
    run = Run(tmp_path / "count-1")
    target = Target(name=run.id, folder=run.path, cwd="/")
    target.make_folders()
    if comes_first == "job":
        begin(target.submitit_folder, "11")
    done = subprocess.CompletedProcess(["sbatch"], 0, "Submitted batch job 14\n", "")
    monkeypatch.setattr("hpcdist.schedulers.submitting.call_command", lambda *_, **__: done)
    slurm.submit(None, target, [run], "#!/bin/sh\n")
    begin(target.submitit_folder, "11")
    note_own_job(run, "11")
    assert run.read_job_id() == "11"
    assert run.read_submission().job_name == run.id
