"""Snapshots: what of a work tree a run has a copy of, and what copies have in common."""

import os
import subprocess
import sys

import pytest

from hpcdist.base.errors import UserError
from hpcdist.job.load import LoadedJob, load_job
from hpcdist.runs.run import Run
from hpcdist.runs.snapshot import NoWorkTreeError, copy_code, plan_snapshot, read_contents
from hpcdist.runs.spec import RunSpec, UsedSnapshot
from hpcdist.schedulers import load_scheduler
from hpcdist.submission.plan import PlannedSubmission, plan_run
from hpcdist.submission.submit import write_spec
from hpcdist.submission.workspace import plan_workspace

SLURM = load_scheduler("slurm")


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A work tree with one commit; the working directory is in it."""
    folder = tmp_path / "tree"
    folder.mkdir()
    git(folder, "init")
    write(folder / "train.py", "print('committed')")
    write(folder / ".gitignore", "data/\n*.log\nruns/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    return folder


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def plan(tree, runs, **options):
    return plan_snapshot(tree, runs=runs, **options)


def copied(tree, runs):
    """The copy that a run has of the work tree as it is."""
    planned = plan(tree, runs)
    runs.mkdir(exist_ok=True)
    run = Run(runs / f"x-20260101-{len(list(runs.glob('*'))):06d}-aaaa")
    run.make()
    copy_code(planned, run.path)
    copy = run.path / "code"
    used = UsedSnapshot(folder=str(copy), source=planned.source, cwd=str(copy))
    run.write_spec(RunSpec(id=run.id, created_s=1.0, snapshot=used))
    return copy


def names(folder):
    found = [os.path.join(at, name) for at, dirs, files in os.walk(folder) for name in dirs + files]
    return {os.path.relpath(path, folder) for path in found}


def test_files_that_hold_secrets_are_left_out_and_named(tree, runs):
    write(tree / ".env", "TOKEN=abc")
    write(tree / "deploy/id_rsa", "abc")
    write(tree / "deploy/server.pem", "-----BEGIN CERTIFICATE-----\nabc\n")
    (tree / "link").symlink_to(".env")
    git(tree, "add", ".env")
    snapshot, folder = plan(tree, runs), copied(tree, runs)
    assert names(folder) == {".gitignore", "train.py", "link", "deploy", "deploy/server.pem"}
    assert (folder / "link").resolve() == tree / ".env"
    (note,) = snapshot.notes
    assert ".env, deploy/id_rsa;" in note
    # What .gitignore lists is linked to, and nothing is left to say.
    write(tree / ".gitignore", ".env\nid_rsa\n")
    git(tree, "rm", "--cached", ".env")
    snapshot = plan(tree, runs)
    assert not snapshot.notes
    assert (copied(tree, runs) / ".env").readlink() == tree / ".env"


def test_the_snapshot_is_a_private_copy_of_the_tree_as_it_is_whatever_its_names(tree, runs):
    write(tree / "train.py", "print('changed')").chmod(0o755)
    (tree / ".gitignore").unlink()
    odd = ("new\nline.py", "-dash.py", b"latin-\xe9.py", "é/ü.py", 'quote".py')
    untracked = {os.fsdecode(name) for name in odd}
    for name in untracked:
        write(tree / name, "odd")
    folder = copied(tree, runs)
    assert names(folder) == {"train.py", "é", *untracked}
    assert {*read_contents(folder)} == {"train.py", *untracked}
    assert (folder / "train.py").read_text() == "print('changed')"
    assert all((folder / name).read_text() == "odd" for name in untracked)
    paths = (folder.parent, folder, folder / "train.py", folder / "-dash.py")
    modes = [path.stat().st_mode & 0o777 for path in paths]
    assert modes == [0o700, 0o700, 0o500, 0o400]


def test_what_git_ignores_is_linked_to_and_bytecode_left_out(tree, runs):
    write(tree / "data/train.bin", "numbers")
    write(tree / "lab/.keep", "")
    write(tree / "lab/note.log", "note")
    write(tree / "lab/__pycache__/x.pyc", "code")
    folder = copied(tree, runs)
    assert os.readlink(folder / "data") == str(tree / "data")
    assert (folder / "data/train.bin").read_text() == "numbers"
    assert os.readlink(folder / "lab/note.log") == str(tree / "lab/note.log")
    assert names(folder / "lab") == {".keep", "note.log"}
    for name in ("out/a.log", "out/b.log", "out-2.log"):  # a folder of ignored files is one link
        write(tree / name, "")
    assert {"out", "out-2.log"} < set(plan(tree, runs).targets)


def test_links_within_the_tree_lead_to_the_copy_and_others_to_where_they_led(tree, runs):
    write(tree.parent / "outside/x", "outside")
    for name, target in (
        ("sub/up", "../train.py"),
        ("sub/absolute", tree / "train.py"),
        ("sub/out", "../../outside"),
        ("broken", "nothing"),
    ):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).symlink_to(target)
    folder = copied(tree, runs)
    write(tree / "train.py", "edited")
    inside = [folder / name for name in ("sub/up", "sub/absolute")]
    assert [path.resolve() for path in inside] == [folder / "train.py"] * 2
    assert (folder / "sub/out/x").read_text() == "outside"
    assert os.readlink(folder / "broken") == "nothing"


def test_submodules_and_nested_work_trees_are_copied(tree, runs):
    nested = tree / "nested"
    nested.mkdir()
    git(nested, "init")  # without a commit at first
    write(nested / "m.py", "nested")
    write(nested / ".gitignore", "*.bin\n")
    write(nested / "x.bin", "ignored")
    assert names(copied(tree, runs) / "nested") == {"m.py", ".gitignore"}
    git(nested, "add", ".")
    git(nested, "commit", "-m", "first")
    git(tree, "add", "nested")
    assert (copied(tree, runs) / "nested/m.py").read_text() == "nested"


@pytest.mark.parametrize("where", ["tree/runs", "tree"])
@pytest.mark.parametrize("today", [None, "runs"], ids=["today's", "of other days"])
def test_runs_are_never_in_a_snapshot(tree, tmp_path, where, today):
    write(tree / ".gitignore", "")
    write(Run.create(tmp_path / where, "x").spec_file, "{}")
    for _ in range(2):
        assert names(copied(tree, tmp_path / (today or where))) == {".gitignore", "train.py"}


def test_a_tree_over_the_limit_is_refused_with_its_largest_files(tree, runs):
    for name, size in (("big.bin", 3_000_000), ("less.bin", 2_000_000)):
        write(tree / name, "x" * size)
    with pytest.raises(UserError) as caught:
        plan(tree, runs, limit_bytes=4e6)
    assert "has 5 MB in 4 files, more than the 4 MB" in caught.value.message
    assert "the largest: big.bin (3 MB), less.bin (2 MB)" in caught.value.message
    assert all(word in caught.value.hint for word in (".gitignore", "--no-snapshot"))
    write(tree / ".gitignore", "*.bin\n")
    assert plan(tree, runs, limit_bytes=4e6)


def test_outside_of_git_and_without_it_none_is_taken_and_that_is_noted(
    tmp_path, monkeypatch, script_job
):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    job = script_job(write(tmp_path / "x.py", "pass"))
    workspace = plan_workspace(job, SLURM, by_default=True)
    assert workspace.snapshot is None
    assert "no snapshot is taken" in workspace.notes[0]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoWorkTreeError, match="git is not installed"):
        plan_workspace(job, SLURM, wanted=True)


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.iterdir() if path.is_file()}


def age(*paths, by_s=60):
    for path in paths:
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - by_s))


def test_files_that_did_not_change_are_links_to_the_copy_before(tree, runs):
    age(write(tree / "helper.py", "pass"), tree / "train.py", tree / ".gitignore")
    first = inodes(copied(tree, runs))
    age(write(tree / "train.py", "changed"), by_s=50)
    (tree / "helper.py").chmod(0o755)
    folder = copied(tree, runs)
    second = inodes(folder)
    assert [name for name in first if second[name] == first[name]] == [".gitignore"]
    assert (folder / "train.py").read_text() == "changed"
    assert inodes(copied(tree, runs)) == second


def test_a_file_that_was_changed_just_before_the_last_copy_is_no_link_to_it(tree, runs):
    first = copied(tree, runs) / "train.py"
    stat = (tree / "train.py").stat()
    write(tree / "train.py", "print('exchanged')")
    os.utime(tree / "train.py", ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    second = copied(tree, runs) / "train.py"
    assert (first.read_text(), second.read_text()) == ("print('committed')", "print('exchanged')")


@pytest.mark.parametrize("is_link", [False, True], ids=["written", "linked"])
def test_nothing_is_linked_to_that_a_job_changed_in_its_copy(tree, runs, is_link, tmp_path):
    age(tree / "train.py")
    path = copied(tree, runs) / "train.py"
    if is_link:
        path.unlink()
        path.symlink_to(write(tmp_path / "own.py", "print('committed')"))
    else:
        path.chmod(0o600)
        path.write_text("print('x-changed')")
        path.chmod(0o400)
    fresh = copied(tree, runs) / "train.py"
    assert fresh.read_text() == "print('committed')"
    assert not fresh.is_symlink()
    assert (fresh.stat().st_nlink, fresh.stat().st_mode & 0o777) == (1, 0o400)


def loaded(tree, name="train.py"):
    return load_job(tree / name)


def test_a_job_submitted_from_below_the_root_runs_there_and_its_spec_names_the_snapshot(
    tree, runs, monkeypatch
):
    write(tree / "exp/one/x.py", "pass")
    monkeypatch.chdir(tree / "exp/one")
    planned = plan_run(loaded(tree), scheduler="local", snapshot=True, runs=runs)
    run = Run.create(runs, "x")
    (placed,) = PlannedSubmission(plans=[planned]).at(run.path).plans
    write_spec(run, placed)
    spec, folder = run.read_spec(), run.path / "code"
    cwd = str(folder / "exp/one")
    assert spec.snapshot == UsedSnapshot(folder=str(folder), source=str(tree), cwd=cwd)
    assert spec.job["script"] == str(folder / "train.py")
    assert spec.cwd == str(tree / "exp/one")


def test_a_script_that_is_not_in_the_snapshot_stays_where_it_is(tree, runs):
    outside = write(tree.parent / "other.py", "pass")
    hidden = write(tree / "data/hidden.py", "pass")
    for script in (outside, hidden):
        job = load_job(script).job
        workspace = plan_workspace(job, SLURM, wanted=True, runs=runs)
        assert workspace.job(job).script == str(script)


def test_python_finds_modules_of_the_tree_in_the_snapshot(tree, runs, monkeypatch):
    write(tree / "src/lib/__init__.py", "")
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{tree}/src")
    workspace = plan_workspace(loaded(tree).job, SLURM, wanted=True, runs=runs)
    assert workspace.variables["PYTHONPATH"] == f"/elsewhere:{runs}/RUN/code/src"
    monkeypatch.delenv("PYTHONPATH")
    assert "PYTHONPATH" not in workspace.placed(runs / "x").variables
    monkeypatch.setattr(sys, "path", [*sys.path, str(tree / "src")])  # as an editable install does
    assert workspace.placed(runs / "x").variables["PYTHONPATH"] == f"{runs}/x/code/src"


def test_schedulers_of_clusters_take_a_snapshot_by_default_and_this_machine_does_not(tree, runs):
    job = loaded(tree).job
    assert plan_workspace(job, SLURM, runs=runs, by_default=True).snapshot is not None
    assert plan_workspace(job, SLURM, wanted=False, runs=runs, by_default=True).snapshot is None
    planned = plan_run(LoadedJob(job=job, source="x"), scheduler="local")
    assert planned.workspace.snapshot is None
