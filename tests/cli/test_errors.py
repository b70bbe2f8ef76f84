"""Mistakes of the user: one error line, one hint line, the right exit code, nothing left behind."""

import json
import os
import subprocess

import pytest

from hpcdist.cli.main import VERBS


def assert_refused(done, exit_code, message, hint=""):
    lines = done.stderr.splitlines()
    assert done.returncode == exit_code, done.stderr
    assert lines[-2].startswith("error: ")
    assert message in lines[-2]
    assert lines[-1].startswith("hint: ")
    assert hint in lines[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message", "hint"),
    [
        (["frobnicate"], 2, "there is no command 'frobnicate'", "hpcdist --help"),
        (["submit", "ddp", "--local", "--sweep", "gpu=1,2"], 2, "gpu is", "mean resources.gpus?"),
        (["submit", "bda.py", "--local"], 2, "no such file", "did you mean bad.py?"),
        (["submit"], 2, "Missing argument 'JOB'", "hpcdist submit --help"),
        (["submit", "ddp", "--local", "--nodes", "0"], 2, "--nodes: resources.nodes is 0", ""),
        (["submit", "ddp", "--local", "--scheduler", "slurm"], 2, "contradict each other", ""),
        (["submit", "python", "t.py"], 2, "python is no job", "hpcdist submit t.py"),
        (["submit", "t.py", "--notify", "apprise:env:NONE", "--local"], 2, "NONE is not set", ""),
        (["submit", "t.py", "--detach", "--wait"], 2, "--detach and --wait contradict", ""),
        (["submit", "t.py", "--local", "--set", "launch.device=cuda"], 2, "shows no GPU", "cpu"),
        (["submit", "t.py", "--local", "--set", "launch.backend=nccl"], 2, "needs GPUs", "gloo"),
        (["submit", "ddp", "--scheduler", "slrum"], 2, "did you mean slurm?", "submit --help"),
        (["submit", "ddp", "--clster", "a"], 2, "option '--clster'", "did you mean --cluster? see"),
        (["submit", "ddp", "--lr", "1"], 2, "option '--lr'", "did you mean --set train.lr=VALUE?"),
        (["summary", "--goal", "acuracy=0.9"], 2, "must be accuracy=SHARE", "summary --help"),
        (["submit", "t.py", "--lr", "1"], 2, "No such option '--lr'", "go after --"),
        (["submit", "t", "--local"], 2, "there is no job called 't'", "did you mean t.py?"),
        (["summary", "--plot", "x.png"], 2, "--plot x.png names a picture", "summary --help"),
        (["submit", "t.py", "--local", "--nodes", "9999"], 2, "need at least", "--nodes"),
        (["submit", "ddp", "--local", "--time", "1h"], 2, "--time 1h: must be a time limit", "90"),
        (["submit", "ddp", "--cluster", "x"], 2, "no cluster called 'x'", "cluster detect"),
        (["cluster", "detect"], 3, "no scheduler was found", "login node"),
        (["submit", "ddp"], 3, "no scheduler was found", "--local"),
        (["submit", "ddp", "--scheduler", "slurm"], 3, "sbatch cannot be run", "--local"),
        (["status", "last"], 2, "there are no runs in", "hpcdist submit"),
        (["runs", "--runs", "bad.py"], 2, "the runs cannot be read", "--runs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_told_in_two_lines(hpcdist, arguments, exit_code, message, hint):
    hpcdist.environment["PATH"] = str(hpcdist.folder)  # where no scheduler is
    hpcdist.environment["CUDA_VISIBLE_DEVICES"] = ""
    hpcdist.write("bad.py", "x = = 1\n")
    hpcdist.write("t.py", "")
    assert_refused(hpcdist(*arguments), exit_code, message, hint)
    assert hpcdist.runs == []


def test_help_lists_every_verb_and_the_exit_codes(hpcdist):
    done = hpcdist("--help")
    assert done.returncode == 0
    assert all(f"\n  {verb} " in done.stdout for verb in VERBS)
    assert "75 stopped before its end" in done.stdout
    assert hpcdist("jobs", "-h").stdout.startswith("Usage: hpcdist jobs")
    without_a_verb = hpcdist()
    assert (without_a_verb.returncode, without_a_verb.stderr) == (2, done.stdout)


def test_render_prints_the_script_alone_and_writes_nothing(hpcdist):
    hpcdist.write("warns.py", "'\\d'\n")  # it is compiled once; its warnings are left to its run
    done = hpcdist("render", "warns.py", "--nodes", "2", "--gpus", "2", "--local")
    assert (done.returncode, "Warning" in done.stderr) == (0, False)
    assert done.stdout.startswith("#!/bin/bash\n")
    assert str(hpcdist.folder / "runs" / "RUN") in done.stdout
    assert os.listdir(hpcdist.folder) == ["warns.py"]


def test_a_closed_pipe_and_a_closed_stdout_are_no_errors(hpcdist):
    reader, writer = os.pipe()
    os.close(reader)
    with hpcdist.start("jobs", stdout=writer, stderr=-1) as process:
        os.close(writer)
        assert process.stderr.read() == b""
    with hpcdist.start("jobs", stderr=-1, preexec_fn=lambda: os.close(1)) as process:
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_without_runs_the_lists_are_empty(hpcdist):
    for verb in ("runs", "status", "summary"):
        assert json.loads(hpcdist(verb, "--json").stdout) == []
    assert "there are no runs" in hpcdist("runs").stderr


def test_a_full_disk_under_the_output_is_an_error_and_no_traceback(hpcdist):
    with open("/dev/full", "w") as full:
        command = hpcdist.start("jobs", stdout=full, stderr=subprocess.PIPE, text=True)
        error = command.communicate(timeout=60)[1]
    assert command.returncode == 1
    assert "error: the output cannot be written: No space left on device" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "words",
    [
        *(f"{verb} gone" for verb in ("status", "logs", "stacks", "profile", "cancel", "resume")),
        *(f"{verb} gone" for verb in ("summary", "gc", "watch", "attach", "explain")),
        *(f"{verb} gone.py" for verb in ("submit", "render", "drill")),
        *("diff gone last", "jobs --runs x", "doctor --nodes none", "cluster show gone"),
        *("data check gone", "course 0", "init a/b", "completion gone", "frobnicate"),
    ],
)
def test_with_json_an_error_of_any_verb_is_json_too(hpcdist, words):
    done = hpcdist(*words.split(), "--json")
    told = json.loads(done.stdout)
    assert told["exit_code"] == done.returncode == 2
    assert done.stderr.endswith(f"error: {told['error']}\nhint: {told['hint']}\n")
