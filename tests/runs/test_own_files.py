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
from hpcdist.schedulers import hosts, submitting
from hpcdist.schedulers import local as local_scheduler
from hpcdist.schedulers.base import JobPlace, Target
from hpcdist.schedulers.local import scheduler as local
from hpcdist.schedulers.slurm.slurm import scheduler as slurm
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


# The run's folder and files.


SPOILT = {
    "foreign": (lambda run: os.chown(run, NOBODY, NOBODY), "run belongs to nobody, and the job is"),
    "of the group": (lambda run: run.chmod(0o770), "can be written by others (chmod go-w forbids"),
    "of the world": (lambda run: run.chmod(0o702), "can be written by others (chmod go-w forbids"),
    "foreign folder": (
        lambda run: os.chown(run / "launch", NOBODY, NOBODY),
        "launch belongs to nobody",
    ),
    "foreign file": (
        lambda run: os.chown(run / "spec.json", NOBODY, 0),
        "spec.json belongs to nobody",
    ),
    "gone": (lambda run: run.rename(run.with_name("away")), "No such file or directory"),
    "link": (make_link, "run: a link stands in its place"),
    "file of the group": (
        lambda run: (run / "spec.json").chmod(0o660),
        "spec.json can be written by others",
    ),
    "file of the world": (
        lambda run: (run / "private.json").chmod(0o606),
        "private.json can be written by",
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
    if how == "file of the group":
        verdict = run.read_verdict()
        assert (verdict.kind, verdict.state) == ("launch", "failed")
        assert said in verdict.message


# Whole jobs.


def test_every_script_looks_at_the_folders_of_the_snapshot_first():
    scripts = sorted(files.shipped_folder("templates").glob("*.sh"))
    texts = {path.name: path.read_text() for path in scripts}
    for part in ("own_folders.sh", "setup.sh", "start_agent.sh"):
        del texts[part]
    assert len(texts) >= 3
    for name, text in texts.items():
        assert text.index("{{ own_folders }}") < text.index("cd {{ cwd"), name


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

    start.commands = waiting
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
@pytest.mark.parametrize("how", ["folder", "link"])
def test_a_queued_job_whose_run_directory_is_exchanged_runs_no_code_of_others(
    queued, reachable, how
):
    run, _ = queued
    away = run.path.with_name("away")

    def exchange():
        run.path.rename(away)
        folder = run.path if how == "folder" else run.path.with_name("of-nobody")
        (folder / "submitit").mkdir(parents=True)
        (folder / "submitit" / "tasks.json").write_text(theirs(reachable))
        folder.chmod(0o755)
        if how == "link":
            run.path.symlink_to(folder)

    reachable.chmod(0o777)
    as_nobody(exchange)
    assert_refused(queued, reachable)
    assert Run(away).read_verdict() is None  # whole, once it is back in its place


@needs_root
@pytest.mark.parametrize("how", ["foreign", "written", "link"])
def test_tasks_that_others_could_have_changed_are_not_carried_out(queued, reachable, how):
    run, _ = queued
    path = run.submitit_folder / "tasks.json"
    assert path.stat().st_mode & 0o777 == 0o600
    for folder in (run.path, run.submitit_folder):
        folder.chmod(0o755)
    reachable.chmod(0o777)
    if how == "foreign":
        os.chown(path, NOBODY, NOBODY)
    elif how == "written":
        path.chmod(0o666)
    else:
        path.unlink()
        path.symlink_to(reachable / "theirs.json")
        path = reachable / "theirs.json"
    as_nobody(lambda: path.write_text(theirs(reachable)))
    assert_refused(queued, reachable)


def test_the_script_that_is_executed_here_is_not_read_from_where_it_could_be_exchanged(queued):
    run, start = queued
    (argv,) = start.commands
    assert argv[-2:] == [run.script_file.read_text(), str(run.submitit_folder)]


@needs_root
@pytest.mark.parametrize("which", [".", "submitit"])
def test_nothing_is_written_for_the_hosts_of_a_job_where_the_folder_is_somebody_elses(
    run, monkeypatch, which
):
    os.chown(run.path / which, NOBODY, NOBODY)
    before = sorted(run.path.rglob("*"))
    words = "--scheduler lsf --job 7 --nodes 1 --launcher x --logs"
    argv = ["hosts", *words.split(), str(run.submitit_folder), "--", "true"]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit, match=r"belongs to nobody, .*: nothing of it was run"):
        hosts.main()
    assert sorted(run.path.rglob("*")) == before


@needs_root
@pytest.mark.parametrize("how", ["foreign", "link"])
def test_no_program_is_started_in_a_copy_that_somebody_else_has_put_there(
    reachable, write_script, how
):
    copy = str(reachable / "code")
    if how == "foreign":
        os.mkdir(copy)
        os.chown(copy, NOBODY, NOBODY)
    else:
        os.symlink(reachable, copy)
    job = load_job(write_script("")).job
    target = Target(name="job", folder=reachable / "job", cwd=copy, own_folders=[copy])
    script = local.render(job, target, local.plan(job, ClusterProfile()))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    said = f"hpcdist: {copy} is a link, or belongs to somebody else: nothing of it was run\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


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
    assert submitting.Handover(slurm, target, script).submit_all([task]) == ["7"]
    assert (tmp_path / "sent").read_bytes() == b"#!/bin/bash\ntrue \xfc\n"
