"""`hpcdist cancel` and `last` where others put runs: only what is the caller's own is ended."""

import os
import shutil
import signal
import subprocess

import msgspec
import pytest
from another_user import NOBODY, as_nobody, needs_root
from click.testing import CliRunner

from hpcdist.api import SubmittedRun
from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError, RunNotFoundError
from hpcdist.cli.cancel import cancel
from hpcdist.cli.main import main
from hpcdist.machine.process import identify, works_in
from hpcdist.runs.run import Run, Sweep, find_run


@pytest.fixture
def runs(reachable):
    folder = reachable / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def start():
    """Start a program of the user's that waits; its arguments are no matter to it."""
    started = []

    def make(*arguments, **user):
        command = ["bash", "-c", "echo; read", "bash", *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(command, **pipes, start_new_session=True, **user))
        started[-1].stdout.readline()  # it is there, with its arguments
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.communicate()


def make_run(runs, name, *, created_s=1.7e9, process=None, owner=None):
    runs.mkdir(exist_ok=True)
    run = Run(runs / name)
    run.make()
    spec = {"id": name, "created_s": created_s, "scheduler": "local", "job": {"name": "ddp"}}
    files.write_json(run.spec_file, spec)
    if process is not None:
        agent = msgspec.to_builtins(identify(process.pid))
        files.write_json(run.submission_file, {"scheduler": "local", "process": agent})
        files.write_json(run.agent_file(0), {"node": 0, "process": agent})
    if owner is not None:
        for path in (*run.path.rglob("*"), run.path):
            os.chown(path, owner, owner)
    return run


def cancelled(runs, *names):
    return CliRunner().invoke(cancel, [*names, "--runs", str(runs)])


@needs_root
@pytest.mark.parametrize("verb", ["resume", "stacks", "profile", "attach"])
def test_a_foreign_run_is_refused_by_the_verb_that_was_typed(runs, capfd, verb):
    run = make_run(runs, "ddp-1", owner=NOBODY)
    assert main([verb, "ddp-1", "--runs", str(runs)]) != 0
    assert f"{run.path} belongs to nobody, and hpcdist {verb} is" in capfd.readouterr().err


@needs_root
def test_a_foreign_run_that_names_processes_of_the_caller_ends_none_of_them(runs, start):
    victim = start()
    run = make_run(runs, "ddp-1", process=victim, owner=NOBODY)
    done = cancelled(runs, "ddp-1")
    assert isinstance(done.exception, RunDirectoryError)
    assert f"{run.path} belongs to nobody, and hpcdist cancel is for" in done.exception.message
    assert victim.poll() is None
    with pytest.raises(RunDirectoryError, match="belongs to nobody"):
        SubmittedRun(run).cancel()
    assert victim.poll() is None
    assert not run.cancel_file.exists()
    assert run.read_verdict() is None


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_process_that_works_in_the_run_directory_is_ended_and_by_a_copy_nothing(
    runs, start, is_stopped
):
    agent = start(runs / "ddp-1" / "submitit")
    run = make_run(runs, "ddp-1", process=agent)
    shutil.copytree(run.path, runs / "ddp-2")
    assert cancelled(runs, "ddp-2").exit_code == 0
    assert agent.poll() is None
    assert run.read_verdict() is None
    if is_stopped:  # it ends in order all the same, and not after launch.grace_s by SIGKILL
        agent.send_signal(signal.SIGSTOP)
    done = cancelled(runs, "ddp-1")
    assert done.exit_code == 0, done.output
    assert agent.wait(30) == -signal.SIGTERM
    assert run.read_verdict().state == "cancelled"


@needs_root
def test_a_process_of_another_user_is_none_of_the_runs(runs, start):
    theirs = start(runs / "ddp-1", user=NOBODY, group=NOBODY, extra_groups=[])
    own = start(runs / "ddp-1")
    assert works_in(own.pid, runs / "ddp-1")
    assert not works_in(theirs.pid, runs / "ddp-1")


@needs_root
def test_last_is_the_newest_run_of_the_users_own(runs, reachable):
    own = make_run(runs, "ddp-1", created_s=1.0e9)
    make_run(runs, "ddp-2", created_s=2.0e9, owner=NOBODY)
    assert find_run(runs, "last").id == own.id
    runs.chmod(0o777)
    newer = make_run(reachable / "other", "ddp-9", created_s=3.0e9)
    as_nobody((runs / "ddp-3").symlink_to, newer.path)  # a link of theirs to an own run
    assert find_run(runs, "last").id == own.id
    shutil.rmtree(own.path)
    with pytest.raises(RunNotFoundError, match=r"all runs in .* belong to other users"):
        find_run(runs, "last")


@needs_root
def test_what_others_put_beside_the_runs_of_a_sweep_is_none_of_it_and_theirs_is_not_ended(
    runs, start
):
    victim = start()
    sweep = Sweep(runs / "ddp-9")
    sweep.path.mkdir(mode=0o700)
    sweep.write()
    own = make_run(runs, "ddp-9-000")
    make_run(runs, "ddp-9-001", process=victim, owner=NOBODY)
    assert [run.id for run in sweep.runs()] == [own.id]
    assert cancelled(runs, "ddp-9").exit_code == 0
    assert victim.poll() is None
    sweep.cancel_file.unlink()
    os.chown(sweep.path, NOBODY, NOBODY)
    assert isinstance(cancelled(runs, "ddp-9").exception, RunDirectoryError)
    assert not sweep.cancel_file.exists()
