"""Submitting: what is written, and what an error leaves behind."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from harness import submit_run

from hpcdist.base.errors import RunDirectoryError, SchedulerError
from hpcdist.base.ownership import NotOwnError
from hpcdist.job.load import Flag, LoadedJob, load_job
from hpcdist.runs.run import Run
from hpcdist.runs.snapshot import plan_snapshot
from hpcdist.schedulers import load_scheduler, local
from hpcdist.submission import plan
from hpcdist.submission import submit as submission
from hpcdist.submission.plan import (
    PlannedSubmission,
    lay_out,
    plan_points,
    plan_run,
    planned_scripts,
)
from hpcdist.submission.points import Point, make_axes, make_points
from hpcdist.submission.submit import submit


@pytest.fixture
def loaded(script_job, write_script):
    return LoadedJob(job=script_job(write_script("pass")), source="script.py")


def files_with(folder, *words):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(word in path.read_bytes() for word in words)]


def modes(folder):
    return {path: path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}


def test_the_spec_says_what_was_submitted_with_what_and_by_whom_but_no_secret(
    loaded, tmp_path, monkeypatch
):
    monkeypatch.setenv("HPCDIST_TOKEN", "s3cret-1")
    monkeypatch.setenv("TORCH_MIRROR", "https://ann:s3cret-2@host/path")
    run = Run.create(tmp_path, "x")
    planned = plan_run(loaded, scheduler="local")
    submission.write_spec(run, planned)
    text = run.spec_file.read_text()
    assert "s3cret" not in text
    spec = json.loads(text)
    assert spec["id"] == run.id
    assert spec["job"]["script"] == loaded.job.script
    assert spec["plan"] == msgspec.to_builtins(planned.plan.launch)
    assert spec["scheduler"] == "local"
    assert spec["cwd"] == os.getcwd()
    assert spec["versions"]["python"] == sys.version.split()[0]
    assert spec["versions"]["torch"]
    assert run.spec_file.stat().st_mode & 0o777 == 0o600


SECRET = "wX7-hunter2"
TAKES_SECRET = f"import sys; assert sys.argv[1:] == ['--api-key=' + {SECRET[::-1]!r}[::-1], '3']"


def test_secret_arguments_reach_the_agent_and_nothing_that_is_shown(
    script_job, write_script, tmp_path
):
    job = script_job(write_script("pass"), f"--api-key={SECRET}", "--password", SECRET, "--n", 3)
    flags = {"args": Flag(name="--set args", value=job.args, text=f"[--password, {SECRET}]")}
    loaded = LoadedJob(job=job, source="x.py")
    planned = plan_run(loaded, scheduler="local")
    submitted = PlannedSubmission(points=[Point(flags=flags)], plans=[planned], is_sweep=True)
    begun = submission.begin(submitted, tmp_path)
    submission.make_runs(begun, *lay_out(begun), submission.surroundings_now())
    (run,) = begun.runs
    assert files_with(tmp_path, SECRET.encode()) == [run.private_file]
    assert run.private_file.stat().st_mode & 0o777 == 0o600
    spec = run.read_spec()
    assert spec.job["args"] == ["--api-key=***", "--password", "***", "--n", "3"]
    assert spec.hidden == ["args"]
    assert spec.sweep.label == "args=[--password, ***]"
    launched, _, _ = run.read_launch()
    assert launched.args == job.args
    assert any("looks like a secret stands in args" in note for note in planned.notes)
    assert SECRET not in str(planned_scripts(submitted, tmp_path))


def test_every_point_is_planned_by_itself(tmp_path, monkeypatch):
    """Trainers of one size differ in ranks, jobs in their code."""
    make_repository(tmp_path / "tree")
    monkeypatch.chdir(tmp_path / "tree")

    def plans(scheduler, job, key, *values, **sets):
        given = {name: Flag(name=name, value=value) for name, value in sets.items()}
        points = make_points(make_axes([(key, values)], origin="over"))
        return plan_points(
            points,
            load=lambda point: load_job(job, flags=given | point.flags),
            scheduler=scheduler,
            runs=tmp_path / "runs",
        ).plans

    ranks = plans("local", "ddp", "strategy", "data_parallel", "ddp", **{"resources.gpus": 2})
    assert [len(one.plan.launch.nodes[0].rank_cpus) for one in ranks] == [1, 2]
    models = plans("slurm", "ddp", "model.name", "fashion_cnn", "own:Model")
    assert [one.workspace.snapshot is not None for one in models] == [False, True]


@pytest.mark.parametrize(
    ("longest", "arrays"),
    [
        (3, [[0, 2, 4], [1, 3, 5]]),
        (2, [[0, 2], [4], [1, 3], [5]]),
        (0, [[index] for index in range(6)]),
    ],
)
def test_runs_of_one_script_share_arrays_no_longer_than_the_site_allows(
    tmp_path, monkeypatch, longest, arrays
):
    monkeypatch.setattr(type(load_scheduler("slurm")), "max_array_size", longest)
    over = {"train.lr": [0.1, 0.2, 0.3], "nodes": [1, 2]}
    points = make_points(make_axes(over.items(), origin="over"))
    planned = plan_points(
        points, load=lambda point: load_job("ddp", flags=point.flags), scheduler="slurm"
    )
    jobs = lay_out(planned.at(tmp_path / "ddp-1"))
    assert [job.points for job in jobs] == arrays
    assert len({job.target.name for job in jobs}) == len(jobs)


def test_a_run_whose_private_values_are_lost_does_not_start_with_stars(loaded, tmp_path):
    job = msgspec.structs.replace(loaded.job, args=["--token", SECRET])
    run = Run.create(tmp_path, "x")
    planned = plan_run(msgspec.structs.replace(loaded, job=job), scheduler="local")
    submission.write_spec(run, planned)
    run.private_file.write_text("{}")
    with pytest.raises(msgspec.ValidationError):
        run.read_launch()
    run.private_file.unlink()
    with pytest.raises(NotOwnError, match=r"private\.json cannot be read"):
        run.read_launch()


def test_a_run_is_for_its_owner_only(submit, write_script, tmp_path):
    before = os.umask(0)
    try:
        launched = submit(write_script(TAKES_SECRET), f"--api-key={SECRET}", 3, nodes=2)
    finally:
        os.umask(before)
    assert launched.verdict().kind == "done"  # the ranks got what they were given
    assert files_with(launched.run.path, SECRET.encode()) == [launched.run.private_file]
    launched.wait(lambda: not launched.agents_alive())  # submitit moves its last files
    found = modes(launched.run.path)
    assert found[launched.run.path] == 0o700
    # submitit's own files obey the umask; the run directory above them is closed.
    open_to_others = [path for path, mode in found.items() if mode & 0o077]
    assert {path.parent for path in open_to_others} <= {launched.run.submitit_folder}


def test_git_state_tells_commit_and_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert submission.git_state() == (None, None)
    make_repository(tmp_path)
    commit, has_changes = submission.git_state()
    assert len(commit) == 40
    assert not has_changes
    Path("train.py").write_text("2")
    assert submission.git_state() == (commit, True)


def make_repository(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text("1")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init"], ["add", "."], ["commit", "-m", "first"]):
        subprocess.run([*git, *words], check=True, capture_output=True)


PLANTED = """\
[core]
    fsmonitor = touch {hacked}; false
    hooksPath = {folder}/hooks
[filter "evil"]
    clean = touch {hacked}; cat
    process = touch {hacked}; false
    required = true
"""


@pytest.mark.parametrize("where", [".", "module"])
def test_no_program_of_a_repository_runs_at_a_submission(tmp_path, monkeypatch, where):
    """The configuration is in place before submission, as that of an unpacked archive is."""
    hacked, tree = tmp_path / "hacked", tmp_path / "unpacked"
    make_repository(tree / "module")
    make_repository(tree)
    monkeypatch.chdir(tree)
    (tree / where / ".gitattributes").write_text("*.py filter=evil\n")
    with (tree / where / ".git/config").open("a") as file:
        file.write(PLANTED.format(hacked=hacked, folder=tmp_path))
    (tree / where / "train.py").write_text("2")
    (tmp_path / "hooks").mkdir()
    for name in ("post-index-change", "fsmonitor-watchman"):
        (tmp_path / "hooks" / name).write_text(f"#!/bin/sh\ntouch {hacked}\n")
        (tmp_path / "hooks" / name).chmod(0o755)
    assert submission.git_state()[0] is not None
    plan_snapshot(tree, runs=tmp_path / "runs", limit_bytes=1e6)
    assert not hacked.exists()


@pytest.mark.parametrize("kilobytes", [4, 12])
def test_a_full_disk_leaves_nothing_behind_and_nothing_running(loaded, small_disk, kilobytes):
    disk = small_disk(kilobytes)
    with pytest.raises(RunDirectoryError, match="No space left on device") as caught:
        submit_run(loaded, disk / "runs")
    assert caught.value.exit_code == 2
    assert list((disk / "runs").glob("*")) == []


def test_a_scheduler_that_refuses_leaves_nothing_behind(loaded, tmp_path, monkeypatch):
    class Refusing(local.LocalScheduler):
        def submit(self, *_, **__):
            raise SchedulerError("no such partition")

    monkeypatch.setattr(plan, "load_scheduler", lambda _: Refusing())
    with pytest.raises(SchedulerError):
        submit_run(loaded, tmp_path / "runs")
    assert os.listdir(tmp_path / "runs") == []


COMMANDS = {
    "slurm": ("sbatch", "cat > {sent}; echo Submitted batch job 7"),
    "lsf": ("bsub", "cat > {sent}; echo 'Job <7> is submitted to queue <normal>.'"),
    "pbs": ("qsub", 'while [ "$1" != hpcdist ]; do shift; done; cp "$2/script.sh" {sent}; echo 7'),
}


@pytest.mark.parametrize("name", ["local", *COMMANDS])
def test_render_prints_what_the_scheduler_gets(name, tmp_path, monkeypatch, write_script):
    sent = tmp_path / "sent"
    if name == "local":

        def start(argv, log, environment):
            sent.write_text(argv[-2])

        monkeypatch.setattr(local, "start_in_background", start)
    else:
        command, text = COMMANDS[name]
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / command).write_text(f"#!/bin/bash\n{text.format(sent=sent)}\n")
        (tmp_path / "bin" / command).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    planned = PlannedSubmission(plans=[plan_run(load_job(write_script("")), scheduler=name)])
    ((rendered, _),) = planned_scripts(planned, tmp_path / "runs")
    (run,) = submit(planned, runs=tmp_path / "runs").runs
    assert sent.read_bytes() == re.sub(r"\bRUN\b", run.id, rendered).encode()
