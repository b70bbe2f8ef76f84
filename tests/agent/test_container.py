"""Runs whose agents are in a container image, on this machine, by a real runtime."""

import contextlib
import os
import signal
import socket
import sys

import pytest
from another_user import as_nobody, needs_root
from containers import container, image  # noqa: F401 - a fixture
from harness import submit_run
from launched_runs import LaunchedRun
from runtime_stand_ins import image_file, install

from hpcdist.cli.main import main
from hpcdist.job.load import load_job
from hpcdist.schedulers.local import scheduler as local

LOOK = """\
import json, os, time
import hpcdist
def is_passed_on(descriptor):
    try:
        return descriptor > 2 and os.get_inheritable(descriptor)
    except OSError:
        return False
print(json.dumps({
    "root": sorted(os.listdir("/")), "uid": os.getuid(), "cwd": os.getcwd(),
    "hpcdist": hpcdist.__file__, "environment": dict(os.environ),
    "passed_on": [one for one in os.listdir("/proc/self/fd") if is_passed_on(int(one))],
}), flush=True)
open(f"written-{os.environ['RANK']}", "w").close()
"""
WAIT = "import time\nprint('{}', flush=True)\ntime.sleep(600)\n"
SECRET = "hf_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"


@pytest.fixture
def launch(tmp_path, monkeypatch, image):  # noqa: F811 - pytest's way
    """Starts a script in the image; keys of the section container may be given."""
    monkeypatch.chdir(tmp_path)
    launched = []

    def start(text, *, nodes=1, **keys):
        script = tmp_path / "script.py"
        script.write_text(text)
        sets = [word for word in container(keys.pop("image", image), **keys) if word != "--set"]
        loaded = load_job(str(script), overrides=[*sets, f"resources.nodes={nodes}"])
        run = LaunchedRun(submit_run(loaded, tmp_path / "runs"))
        launched.append(run)
        return run

    yield start
    for run in launched:
        if not run.run.verdict_file.exists():
            local.cancel([run.run])


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_ranks_and_attach_run_in_the_image_with_the_jobs_files_and_none_of_the_hosts_libraries(
    launch,
    tmp_path,
    monkeypatch,
    image,  # noqa: F811
    capfd,
):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/host/lib")
    monkeypatch.setenv("TOKEN_OF_MINE", SECRET)
    run = launch(f"{LOOK}while not os.path.exists('go'): time.sleep(0.02)", nodes=2)
    run.wait(lambda: run.said(0))
    show = "echo $RANK $PYTHONNOUSERSITE $(pwd) $(ls /); exit 7"
    assert main(["attach", str(run.run.path), "--", "sh", "-c", show]) == 7
    shown = capfd.readouterr().out.split()
    assert shown == ["0", "1", str(tmp_path), *sorted(os.listdir(image))]
    (tmp_path / "go").touch()
    assert run.verdict().state == "done", run.verdict().message
    for rank in range(2):
        (found,) = run.said(rank)
        assert set(found["root"]) == {*os.listdir(image)}
        assert (found["uid"], found["cwd"]) == (os.getuid(), str(tmp_path))
        assert "/carried/" in found["hpcdist"]
        assert found["passed_on"] == []
        environment = found["environment"]
        assert environment["TOKEN_OF_MINE"] == SECRET
        assert environment["PYTHONNOUSERSITE"] == "1"
        assert "LD_LIBRARY_PATH" not in environment
        assert (tmp_path / f"written-{rank}").stat().st_uid == os.getuid()
    used = run.run.read_spec().container
    assert (used.image, used.runtime) == (str(image), "charliecloud")
    assert used.identity.startswith("folder:")
    log = (run.run.submitit_folder / "controller.log").read_text() + "".join(
        path.read_text() for path in run.run.submitit_folder.glob("*_log.*")
    )
    assert f"ch-run --bind={tmp_path}:{tmp_path}" in log
    assert SECRET not in log + run.run.path.joinpath("script.sh").read_text()


@needs_root
def test_an_agent_hands_its_variables_to_no_other_user_and_hears_signals_while_the_image_starts(
    launch, tmp_path
):
    slow = f"""#!/bin/sh
echo "$4" > {tmp_path}/name.tmp; mv {tmp_path}/name.tmp {tmp_path}/name
until [ -e {tmp_path}/gate ]; do sleep 0.05; done
exec {sys.executable} "$@"
"""
    python = program(tmp_path / "slow", slow)
    run = launch(WAIT, python=python)
    run.wait((tmp_path / "name").exists)
    name = (tmp_path / "name").read_text().strip()

    def ask():
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(f"\0{name}")
            with contextlib.suppress(ConnectionResetError):
                assert door.recv(1) == b""

    as_nobody(ask)
    (tmp_path / "gate").touch()
    run.wait(lambda: run.said(0))
    (tmp_path / "gate").unlink()

    run = launch(WAIT, python=python)
    os.kill(run.agent_pid(0), signal.SIGHUP)
    assert (run.verdict().kind, run.verdict().signal) == ("cancelled", "SIGHUP")


def test_an_image_that_cannot_start_an_agent_is_the_verdict_in_its_words(launch, tmp_path):
    old = f"""#!{sys.executable}
import sys
sys.version_info = (3, 9, 18)
exec(sys.argv[3])
"""
    without_torch = f'#!/bin/sh\nexec {sys._base_executable} -S -s "$@"\n'
    runs = {
        "the image has Python 3.9, and hpcdist needs 3.10 or newer": launch(
            LOOK, python=program(tmp_path / "old", old)
        ),
        "the image has no torch: python -m pip install torch": launch(
            LOOK, python=program(tmp_path / "bare", without_torch), nodes=2
        ),
        "can't execve(2): /no/python: No such file or directory": launch(LOOK, python="/no/python"),
        "container.mounts names $NOT_SET, which is not set in the job": launch(
            LOOK, mounts=["$NOT_SET"]
        ),
    }
    for words, run in runs.items():
        verdict = run.verdict()
        assert (verdict.kind, verdict.exit_code_of_run) == ("launch", 1)
        assert words in verdict.message
        assert not run.run.event_files()


def test_another_runtime_gives_ranks_the_same_and_passes_signals_on(
    launch,
    tmp_path,
    monkeypatch,
    image,  # noqa: F811
):
    programs = install(tmp_path / "bin", "apptainer")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/host/lib")
    monkeypatch.setenv("TOKEN_OF_MINE", SECRET)
    inside = {"runtime": "apptainer", "image": image_file(image, ".sif")}
    run = launch(LOOK + "time.sleep(600)", **inside)
    run.wait(lambda: run.said(0))
    (found,) = run.said(0)
    assert found["environment"]["TOKEN_OF_MINE"] == SECRET
    assert "LD_LIBRARY_PATH" not in found["environment"]
    logs = "".join(path.read_text() for path in run.run.submitit_folder.glob("*_log.*"))
    assert "hpcdist: apptainer " in logs
    assert SECRET not in logs
    os.kill(run.agent_pid(0), signal.SIGTERM)
    assert run.verdict().kind == "cancelled"
