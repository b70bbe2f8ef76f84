"""Jobs that wait while others exchange their files: nothing is loaded that others can have made."""

import json
import os
import subprocess

import pytest
from another_user import NOBODY, as_nobody, needs_root
from harness import submit_run

from hpcdist.agent.agent import run_agent
from hpcdist.base import files
from hpcdist.base.ownership import check_own_folder
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.load import load_job
from hpcdist.machine.process import identify
from hpcdist.runs.run import Run
from hpcdist.schedulers import hosts, load_scheduler, submitting
from hpcdist.schedulers import local as local_scheduler
from hpcdist.schedulers.base import JobPlace, Target
from hpcdist.schedulers.tasks import AgentTask


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    run.make()
    files.write_json(run.spec_file, {"job": {"name": "as submitted"}, "hidden": ["args"]})
    files.write_json(run.private_file, {"args": ["secret"]})
    return run


def make_link(path):
    path.rename(path.with_name("away"))
    path.symlink_to("away")


SPOILT = {
    "foreign": (lambda run: os.chown(run, NOBODY, NOBODY), "run belongs to nobody, and the job is"),
    "of the group": (lambda run: run.chmod(0o770), "can be written by others (chmod go-w forbids"),
    "foreign folder": (
        lambda run: os.chown(run / "launch", NOBODY, NOBODY),
        "launch belongs to nobody",
    ),
    "link": (make_link, "run: a link stands in its place"),
    "file of the world": (
        lambda run: (run / "private.json").chmod(0o606),
        "private.json can be written by others",
    ),
    "link to a file": (
        lambda run: make_link(run / "spec.json"),
        "spec.json cannot be read: a link stands in",
    ),
}


@pytest.mark.parametrize("how", SPOILT)
@needs_root
def test_an_agent_starts_nothing_in_a_run_directory_that_others_could_have_changed(
    run, capsys, how
):
    check_own_folder(run.path)
    spoil, said = SPOILT[how]
    spoil(run.path)
    assert run_agent(run.path, JobPlace(node_rank=0, host="here")) == 1
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.endswith(": nothing of it was run\n")
    if how == "foreign":  # and writes nothing
        assert not run.verdict_file.exists()
    if how == "file of the world":
        verdict = run.read_verdict()
        assert (verdict.kind, verdict.state) == ("launch", "failed")
        assert said in verdict.message


def theirs(folder):
    """Tasks by which a job would write where the attacker wants it."""
    task = {"run_path": f"{folder}/pwned", "scheduler": "local"}
    return json.dumps({"0": task})


@pytest.fixture
def queued(reachable, monkeypatch):
    """A job that was submitted in a folder of runs that everybody may write by now, and waits; what
    starts it, as its scheduler would."""
    (reachable / "train.py").write_text(f"open({str(reachable / 'trained')!r}, 'w')")
    waiting = []

    def wait(argv, log, environment):
        waiting.append(argv)
        return identify(os.getpid())

    monkeypatch.setattr(local_scheduler, "start_in_background", wait)
    run = submit_run(load_job("train.py"), reachable / "runs")
    script = run.script_file.read_text()  # schedulers keep it
    (argv,) = waiting  # what is executed here is not read from where it could be exchanged
    assert argv[-2:] == [script, str(run.submitit_folder)]
    run.path.parent.chmod(0o777)
    variables = {"JOB_ID": run.read_job_id(), "NTASKS": "1", "GLOBALID": "0", "LOCALID": "0"}
    environment = {f"SUBMITIT_LOCAL_{name}": value for name, value in variables.items()}

    def start():
        return subprocess.run(
            ["bash"],
            input=script,
            env=os.environ | environment | {"SUBMITIT_EXECUTOR": "local"},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    return run, start


def assert_refused(queued, reachable):
    _, start = queued
    done = start()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr.split("error: ")[-1]
    assert ": nothing of it was run\nhint: submit it again" in done.stderr
    assert not (reachable / "pwned").exists()
    assert not (reachable / "trained").exists()


@needs_root
def test_a_queued_job_whose_run_directory_is_exchanged_runs_no_code_of_others(queued, reachable):
    run, _ = queued
    away = run.path.with_name("away")

    def exchange():
        run.path.rename(away)
        run.submitit_folder.mkdir(parents=True)
        (run.submitit_folder / "tasks.json").write_text(theirs(reachable))
        run.path.chmod(0o755)

    reachable.chmod(0o777)
    as_nobody(exchange)
    assert_refused(queued, reachable)
    assert Run(away).read_verdict() is None  # whole, once it is back in its place


@needs_root
@pytest.mark.parametrize("is_link", [False, True], ids=["written", "link"])
def test_tasks_that_others_could_have_changed_are_not_carried_out(queued, reachable, is_link):
    run, _ = queued
    path = run.submitit_folder / "tasks.json"
    assert path.stat().st_mode & 0o777 == 0o600
    for folder in (run.path, run.submitit_folder):
        folder.chmod(0o755)
    reachable.chmod(0o777)
    if is_link:
        path.unlink()
        path.symlink_to(reachable / "theirs.json")
        path = reachable / "theirs.json"
    else:
        path.chmod(0o666)
    as_nobody(lambda: path.write_text(theirs(reachable)))
    assert_refused(queued, reachable)


@needs_root
def test_nothing_is_written_for_the_hosts_of_a_job_where_the_folder_is_somebody_elses(
    run, monkeypatch
):
    os.chown(run.submitit_folder, NOBODY, NOBODY)
    before = sorted(run.path.rglob("*"))
    words = "--scheduler lsf --job 7 --nodes 1 --launcher x --logs"
    argv = ["hosts", *words.split(), str(run.submitit_folder), "--", "true"]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit, match=r"belongs to nobody, .*: nothing of it was run"):
        hosts.main()
    assert sorted(run.path.rglob("*")) == before


@needs_root
@pytest.mark.parametrize("how", ["foreign", "link"])
@pytest.mark.parametrize("name", ["local", "slurm", "lsf", "pbs"])
def test_no_program_is_started_in_a_copy_that_somebody_else_has_put_there(
    reachable, write_script, name, how
):
    copy = str(reachable / "code")
    if how == "foreign":
        os.mkdir(copy)
        os.chown(copy, NOBODY, NOBODY)
    else:
        os.symlink(reachable, copy)
    job = load_job(write_script("")).job
    target = Target(name="job", folder=reachable / "job", cwd=copy, own_folders=[copy])
    scheduler = load_scheduler(name)
    target.make_folders()
    (target.submitit_folder / "environment.sh").touch(0o600)
    script = scheduler.render(job, target, scheduler.plan(job, ClusterProfile()))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    logs = "".join(log.read_text() for log in target.submitit_folder.iterdir())
    said = f"hpcdist: {copy} is a link, or belongs to somebody else: nothing of it was run\n"
    assert (done.returncode, done.stderr + logs) == (1, said)


def test_sbatch_gets_the_script_and_not_its_path(tmp_path, monkeypatch):
    target = Target(name="job", folder=tmp_path / "job", cwd=str(tmp_path))
    target.make_folders()
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(
        f"#!/bin/sh\necho exchanged > {target.script_file}\ncat > {tmp_path}/sent\n"
        "echo Submitted batch job 7\n"
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=os.pathsep)
    script = f"#!/bin/bash\ntrue {os.fsdecode(bytes([0xFC]))}\n"
    task = AgentTask(run_path="", scheduler="slurm")
    assert submitting.Handover(load_scheduler("slurm"), target, script).submit_all([task]) == ["7"]
    assert (tmp_path / "sent").read_bytes() == b"#!/bin/bash\ntrue \xfc\n"
