"""Jobs that wait while others exchange their files: nothing is loaded but what was submitted."""

import hashlib
import os
import pickle
import shlex
import shutil
import subprocess

import pytest
from another_user import NOBODY, as_nobody, needs_root
from submitting import submit_run

from hpcdist.agent.agent import run_agent
from hpcdist.base import files
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job import load_job
from hpcdist.runs import seal as sealing
from hpcdist.runs.run import Run
from hpcdist.runs.seal import BrokenSealError, check_folder, read_run, read_task, seal_run
from hpcdist.schedulers import submitting
from hpcdist.schedulers.base import JobPlace, Target
from hpcdist.schedulers.local.scheduler import scheduler as local
from hpcdist.schedulers.lsf import hosts
from hpcdist.schedulers.slurm.submitting import Sbatch


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    run.make()
    files.write_json(run.spec_file, {"job": {"name": "as submitted"}})
    files.write_json(run.private_file, {"args": ["secret"]})
    files.write_whole(run.function_file, b"function")
    return run


# The folders.


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: os.chown(path, NOBODY, NOBODY), "run belongs to nobody, and the job is root"),
        (lambda path: path.chmod(0o770), "can be written by others (chmod go-w forbids it)"),
        (lambda path: path.chmod(0o702), "can be written by others (chmod go-w forbids it)"),
        (lambda path: os.chown(path / "launch", NOBODY, NOBODY), "launch belongs to nobody"),
        (lambda path: os.chown(path / "spec.json", NOBODY, 0), "spec.json belongs to nobody"),
        (lambda path: path.rename(path.with_name("away")), "No such file or directory"),
    ],
    ids=["foreign", "of the group", "of the world", "foreign folder", "foreign file", "gone"],
)
@needs_root
def test_a_run_directory_that_others_could_have_changed_is_refused(run, spoil, said):
    check_folder(run.path)
    spoil(run.path)
    with pytest.raises(BrokenSealError) as caught:
        read_run(run, seal_run(run))
    assert said in caught.value.message
    assert caught.value.message.endswith(": nothing of it was run")


def test_a_link_in_the_place_of_a_run_directory_is_refused(run):
    run.path.rename(run.path.with_name("away"))
    run.path.symlink_to("away")
    with pytest.raises(BrokenSealError, match="a link stands in its place"):
        check_folder(run.path)


# The run's files.


@pytest.mark.parametrize("name", ["spec.json", "private.json", "function.pkl"])
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_file_that_is_not_the_submitted_one_is_refused(run, name, how):
    digests = seal_run(run)
    assert read_run(run, digests)["spec.json"] == run.spec_file.read_bytes()
    (run.path / name).unlink()
    if how == "changed":
        (run.path / name).write_text('{"job": {"name": "another"}}')
    with pytest.raises(BrokenSealError, match=name):
        read_run(run, digests)


def test_an_agent_says_what_is_not_as_submitted_and_starts_nothing(run):
    digests = seal_run(run)
    files.write_json(run.spec_file, {"job": {"name": "another"}})
    assert run_agent(run.path, JobPlace(node_rank=0, host="here"), digests) == 1
    verdict = run.read_verdict()
    assert (verdict.kind, verdict.state) == ("launch", "failed")
    assert verdict.message.endswith("spec.json is not what was submitted: nothing of it was run")


@needs_root
def test_an_agent_writes_nothing_into_a_foreign_run_directory(run):
    digests = seal_run(run)
    os.chown(run.path, NOBODY, NOBODY)
    assert run_agent(run.path, JobPlace(node_rank=0, host="here"), digests) == 1
    assert not run.verdict_file.exists()


# The pickles.


@pytest.fixture
def tasks(tmp_path):
    """The pickles of an array of two, and their seal."""
    pickles = [tmp_path / f"task-{place}.pkl" for place in range(2)]
    for place, path in enumerate(pickles):
        path.write_bytes(pickle.dumps(place))
    return pickles, sealing.seal_tasks(pickles, tmp_path)


def test_each_task_of_an_array_reads_its_own_pickle_by_whatever_name_it_has_by_now(tasks):
    (first, second), seal = tasks
    named = first.with_name("123_0_submitted.pkl")
    first.rename(named)
    assert pickle.loads(read_task(named, listed_as=first.name, seal=seal)) == 0
    assert pickle.loads(read_task(second, listed_as=second.name, seal=seal)) == 1
    with pytest.raises(BrokenSealError, match="is not what was submitted"):
        read_task(second, listed_as=first.name, seal=seal)


@pytest.mark.parametrize("what", ["the pickle", "the pickle and the listing", "all of them"])
def test_a_pickle_that_is_exchanged_is_not_read(tasks, what):
    (first, second), seal = tasks
    first.write_bytes(pickle.dumps("another"))
    if what != "the pickle":
        sealing.seal_tasks([first, second], first.parent)
    if what == "all of them":
        second.write_bytes(pickle.dumps("another"))
    with pytest.raises(BrokenSealError, match="is not what was submitted"):
        read_task(first, listed_as=first.name, seal=seal)


@needs_root
@pytest.mark.parametrize("has_seal", [True, False])
def test_a_pickle_of_somebody_elses_is_not_read(tasks, has_seal):
    (first, _), seal = tasks
    os.chown(first, NOBODY, NOBODY)
    with pytest.raises(BrokenSealError, match="belongs to nobody"):
        read_task(first, listed_as=first.name, seal=seal if has_seal else None)


# Whole jobs.


def test_every_script_has_the_seal_and_looks_at_the_folders_of_the_snapshot():
    scripts = sorted(files.shipped_folder("templates").glob("*.sh.j2"))
    texts = {path.name: path.read_text() for path in scripts}
    del texts["own_folders.sh.j2"], texts["setup.sh.j2"]
    start_agent = texts.pop("start_agent.sh.j2")
    assert (
        start_agent.count("{{ of_folder }}") == start_agent.count("{{ of_folder }} {{ seal }}") > 0
    )
    assert len(texts) >= 3
    for name, text in texts.items():
        assert "{{ seal }}" in text or '{% include "start_agent.sh.j2" %}' in text, name
        assert text.index('{% include "own_folders.sh.j2" %}') < text.index("cd {{ cwd"), name


class Pwn:
    """Whoever loads a pickle of it runs the attacker's code."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (f"{self.folder}/pwned",)


@pytest.fixture
def queued(reachable, monkeypatch):
    """A job that was submitted in a folder of runs that everybody may write by now, and waits; what
    starts it, as its scheduler would."""
    (reachable / "train.py").write_text(f"open({str(reachable / 'trained')!r}, 'w')")
    waiting = []

    def wait(command, *_, **__):
        waiting.append(command)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(submitting, "start_local_controller", wait)
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


@needs_root
@pytest.mark.parametrize("with_whose", ["the attacker's", "another of the user's"])
def test_a_queued_job_whose_run_directory_is_exchanged_runs_no_code_of_others(
    queued, reachable, with_whose
):
    run, start = queued
    away = run.path.with_name("away")
    other = run.path.with_name("older-run")
    shutil.copytree(run.path, other)
    name = f"{run.read_job_id()}_submitted.pkl"
    (other / "submitit" / name).write_bytes(pickle.dumps(Pwn(reachable)))

    def exchange():
        run.path.rename(away)
        if with_whose == "another of the user's":
            other.rename(run.path)
            return
        run.submitit_folder.mkdir(parents=True)
        (run.submitit_folder / name).write_bytes(pickle.dumps(Pwn(reachable)))
        run.path.chmod(0o755)

    reachable.chmod(0o777)
    as_nobody(exchange)
    done = start()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr.split("error: ")[-1]
    assert ": nothing of it was run\nhint: submit it again" in done.stderr
    assert not (reachable / "pwned").exists()
    assert not (reachable / "trained").exists()
    assert Run(away).read_verdict() is None  # whole, once it is back in its place


def test_the_script_that_is_executed_here_is_not_read_from_where_it_could_be_exchanged(queued):
    run, start = queued
    (command,) = start.commands
    assert shlex.split(command) == ["/bin/bash", "-c", run.script_file.read_text()]


@needs_root
@pytest.mark.parametrize("which", [".", "submitit"])
def test_nothing_is_written_for_the_hosts_of_a_job_where_the_folder_is_somebody_elses(
    run, monkeypatch, which
):
    os.chown(run.path / which, NOBODY, NOBODY)
    before = sorted(run.path.rglob("*"))
    options = {"--logs": run.submitit_folder, "--job": "7", "--nodes": 1, "--launcher": "x"}
    words = [str(word) for option in options.items() for word in option]
    monkeypatch.setattr("sys.argv", ["hosts", *words, "--", "true"])
    with pytest.raises(SystemExit, match="belongs to nobody: nothing of it was run"):
        hosts.main()
    assert sorted(run.path.rglob("*")) == before


@needs_root
@pytest.mark.parametrize("how", ["foreign", "link"])
def test_no_program_is_started_in_a_snapshot_that_somebody_else_has_put_there(
    reachable, write_script, how
):
    snapshot = reachable / ".snapshots"
    if how == "foreign":
        snapshot.mkdir()
        os.chown(snapshot, NOBODY, NOBODY)
    else:
        snapshot.symlink_to(reachable)
    job = load_job(write_script("")).job
    target = Target(
        name="job", folder=reachable / "job", cwd=str(snapshot), own_folders=[str(snapshot)]
    )
    script = local.render(job, target, local.plan(job, ClusterProfile()))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"hpcdist: {snapshot} is a link, or belongs to somebody else: nothing of it was run\n"
    )


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
    script = f"#!/bin/bash\ntrue {os.fsdecode(bytes([0xFC]))} {sealing.PLACEHOLDER}\n"
    assert Sbatch(target, script).submit([os.getpid], num_nodes=1) == ["7"]
    listing = (target.submitit_folder / "tasks.sha256").read_bytes()
    seal = hashlib.sha256(listing).hexdigest()
    assert (tmp_path / "sent").read_bytes() == b"#!/bin/bash\ntrue \xfc %s\n" % seal.encode()
