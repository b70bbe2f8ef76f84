"""What `hpcdist status` and `hpcdist watch` take for the present, of what events and nodes tell."""

import json
import os
import re

import pytest

from hpcdist.base import files
from hpcdist.cli.main import main
from hpcdist.monitor.progress import awaited_nodes
from hpcdist.monitor.states import SETUP_MARK
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Beginning, Verdict

STARTED = {"node": 0, "host": "n1", "master_addr": "10.0.0.1", "interface": "ib0"}


@pytest.fixture
def queued(going, tmp_path, monkeypatch):
    """A run on Slurm that has made ten steps, and that squeue says is in a state."""

    def make(state, reason=""):
        made = going(world_size=1)
        run = made.run
        submission = {"scheduler": "slurm", "job_id": "7", "job_name": run.id}
        files.write_json(run.submission_file, submission | {"folder": str(run.path)})
        run.submitit_folder.mkdir(exist_ok=True)
        run.write_beginning(0, Beginning(life=0))
        files.write_json(run.agent_file(0), STARTED)
        made.start(0)
        made.window(0, 10)
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, line in (("squeue", f"7|{state}|{reason}|{run.id}"), ("sacct", "")):
            (folder / name).write_text(f"#!/bin/sh\necho '{line}'\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return made

    return make


@pytest.fixture
def said(capsys):
    """Calls the command, and gives what it prints, on one line."""

    def call(*words):
        assert main([str(word) for word in words]) == 0
        return re.sub(r"\s+", " ", capsys.readouterr().out)

    return call


def test_a_run_that_runs_is_shown_with_its_pace_its_nodes_and_failing_lines_of_setup(queued, said):
    run = queued("RUNNING").run
    (run.submitit_folder / "7_0_log.out").write_text(f"{SETUP_MARK}exit code 1: ml cuda/99\n")
    shown = said("status", run.path)
    assert "epoch 1, step 10/400, 100 samples/s" in shown
    assert "a line of the profile's setup failed: exit code 1: ml cuda/99" in shown
    assert "node 0: n1" in shown
    assert "10.0.0.1 (interface ib0)" in shown
    assert "epoch 1, step 10/400, 100 samples/s" in said("watch", run.path)


def test_a_run_that_waits_again_has_no_pace_and_no_nodes(queued, said):
    """Those of its life before are none of the present: it may come to others."""
    made = queued("PENDING", "BeginTime")
    ended = Verdict(kind="preempted", state="preempted", message="requeued", exit_code_of_run=75)
    made.run.write_attempt_verdict(ended)
    shown = said("status", made.run.path)
    assert "a requeued job is held for about two minutes" in shown
    assert "step 10/400" in shown
    for old in ("samples/s", "left", "n1", "10.0.0.1"):
        assert old not in shown
    (described,) = json.loads(said("status", made.run.path, "--json"))
    assert described["hosts"] == []
    assert described["progress"]["samples_per_s"] is None
    watched = said("watch", made.run.path)
    assert watched.startswith("1 pending")
    assert "epoch 1, step 10/400" in watched
    assert "samples/s" not in watched


def test_status_names_the_nodes_that_have_not_joined_in_any_life(tmp_path):
    run = Run.create(tmp_path, "job")

    def awaited(**written_s):
        """After these files were written, at these times."""
        for name, time_s in written_s.items():
            path = run.meeting_file if name == "meeting" else run.agent_file(int(name[-1]))
            path.touch()
            os.utime(path, (time_s, time_s))
        return awaited_nodes(run, num_nodes=4)

    assert awaited() is None  # node 0 itself is not there yet
    # Node 2 has begun, and not joined.
    assert awaited(meeting=100, node_0=101, node_2=99) == "the agents of nodes 1, 2 and 3 to join"
    assert awaited(node_1=102, node_2=102, node_3=102) is None
    run.write_beginning(run.claim_attempt(), Beginning(life=0))
    os.utime(run.attempts_folder / "00000" / "begin.json", (103, 103))
    assert awaited(meeting=200, node_0=201) == "the agents of nodes 1, 2 and 3 to join"
    assert awaited(node_3=202) == "the agents of nodes 1 and 2 to join"
