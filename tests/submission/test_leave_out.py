"""What a submission says of nodes that failed again and again, by what its scheduler answers."""

import os

import pytest

from hpcdist.cluster.load import NO_PROFILE
from hpcdist.runs import nodes
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers import load_scheduler
from hpcdist.submission.leave_out import leave_out_nodes

REFUSES = "echo no server >&2; exit 1"
LOST = "it was lost in a, was lost in b"
AGAIN = "hpcdist cluster nodes --forget n1 takes it again"
UNKNOWN = "how many nodes the partition has is not known: "


COMMANDS = {"slurm": "sinfo", "pbs": "pbsnodes", "local": "sinfo"}


@pytest.mark.parametrize(
    ("name", "answer", "notes"),
    [
        ("slurm", "echo n1 n2", [f"n1 is left out: {LOST}; {AGAIN}"]),
        ("slurm", "echo n2 n3", []),
        ("slurm", REFUSES, [UNKNOWN, f"n1 is left out: {LOST}; {AGAIN}"]),
        (
            *("pbs", r"printf 'n1\n  state = free\nn2\n  state = free\n'"),
            [f"n1 {LOST.removeprefix('it ')}, and PBS cannot leave out a node: tell the site"],
        ),
        ("local", "echo n1", []),
    ],
)
def test_a_submission_says_which_nodes_it_leaves_out_and_why(
    name, answer, notes, tmp_path, monkeypatch
):
    program = tmp_path / COMMANDS[name]
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for run in "ab":
        nodes.note("agent_lost", "n1", run)
    found = leave_out_nodes(load_scheduler(name), NO_PROFILE)
    assert found.asked.exclude == ["n1"] * any("is left out" in note for note in notes)
    assert found.profile == NO_PROFILE.profile
    assert len(found.notes) == len(notes)
    assert all(map(str.startswith, found.notes, notes))


@pytest.mark.parametrize("name", ["lsf", "pbs"])
def test_a_job_that_would_get_the_same_nodes_again_ends_after_a_failed_preflight(name):
    unfit = Verdict(kind="launch", message="x", left_out={"n1": "slow"}, try_elsewhere=True)
    assert load_scheduler(name).decide(unfit).sequel == "final"
