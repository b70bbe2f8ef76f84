"""From what a check job left to findings, for faults that are hard to have on one machine."""

import msgspec
import pytest

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.doctor.judge import judge
from hpcdist.doctor.trial import Evidence
from hpcdist.monitor.progress import NodeSeen
from hpcdist.runs.spec import UsedContainer
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.notes import Note

DONE = Verdict(kind="done", state="done", message="every rank ended well", exit_code_of_run=0)
VERSIONS = {"python": "3.11.2", "hpcdist": "0.1.0", "torch": "2.15.0"}


def launch_failed(message):
    return Verdict(kind="launch", state="failed", message=message, exit_code_of_run=1)


def place(node, **changed):
    environment = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20001"}
    values = {"host": f"n{node}", "token": "check-1", "versions": VERSIONS}
    return values | {"environment": environment} | changed


def node(number, **changed):
    values = {"device": "cuda", "address": f"10.0.0.{number + 1}", "master_addr": "10.0.0.1"}
    if number == 0:
        values["offers"] = ["10.0.0.1"]
    return NodeSeen(node=number, host=f"n{number}", **values | {"interface": "ib0"} | changed)


GOOD = Evidence(
    run_id="check-1",
    num_nodes=2,
    ranks_per_node=1,
    versions=VERSIONS,
    verdict=DONE,
    nodes=[node(0), node(1)],
    places=[place(0), place(1)],
    collectives=[{"group_time_s": 1.0, "all_reduce_time_s": 0.5, "bus_bytes_per_s": 1.2e9}] * 2,
    logs={0: [], 1: []},
    ended=frozenset((0, 1)),
)


def states(**changed):
    evidence = msgspec.structs.replace(GOOD, **changed)
    found = judge(evidence, ClusterProfile(), asks_for_gpus=True)
    return {finding.name: finding for finding in found}


def failing(found):
    return [name for name, finding in found.items() if finding.state == "FAIL"]


def test_what_is_proven_passes():
    found = states()
    assert not failing(found)
    assert found["collective"].detail.endswith("1 MiB 500.0 ms, bus bandwidth 1.2 GB/s")
    assert found["port"].detail == "10.0.0.1:20001 on node 0, reached from 1 node"
    assert found["GPUs"].state == "pass"


UNREACHED = node(1, address=None, master_addr=None, interface=None)
NOTHING = {"places": [], "collectives": []}
LOST = NOTHING | {
    "verdict": launch_failed("node 1 (host n1): no agent"),
    "nodes": [node(0)],
    "ended": frozenset((0,)),
}
NO_PYTHON = "blaunch ended with exit code 127: sh: python: not found"
NO_LAUNCHER = "blaunch -z {host} {command} cannot be run: No such file or directory"
OUT_OF_REACH = "node 1 (host n1): could not reach the agent of node 0 within 60 s"
IMAGE = UsedContainer(image="/images/torch.sif", runtime="apptainer", identity="sif:00ff")
NO_TORCH = "node 1 (host n1): no rank can be started in /images/torch.sif: it has no torch"


OFFERED = "node 0 offers 127.0.1.1, which others cannot reach"
RAISED = Verdict(kind="exception", message="rank 1 failed")
OTHER_VERSION = VERSIONS | {"hpcdist": "0.0.9"}
SLURMS = "Slurm says JobState=FAILED of job 7"
IN_LOGS = {"logs": {0: ["x"], 1: ["x"]}}


def noted(said, *log):
    return {"logs": {0: ["x"], 1: list(log)}, "notes": [Note(node=1, host="n1", said=said)]}


def unreached(message, first):
    return NOTHING | {"verdict": launch_failed(message), "nodes": [first, UNREACHED]}


CASES = {
    "port": (unreached(OUT_OF_REACH, node(0)), "port", OUT_OF_REACH, "collective"),
    "interface": (
        *(unreached(OFFERED, node(0, offers=["127.0.1.1"])), "interface", OFFERED, "port"),
    ),
    "collective": ({"verdict": RAISED, "collectives": []}, "collective", "rank 1 failed", None),
    "version": (
        {"places": [place(0), place(1, versions=OTHER_VERSION)]},
        *("interpreter", "n1 has hpcdist 0.0.9, this machine 0.1.0", None),
    ),
    "unseen folder": (
        LOST | {"logs": {0: []}, "scheduler_says": SLURMS},
        *(
            "shared folder",
            "node 1 wrote is here: node 1 (host n1): no agent; Slurm",
            "interpreter",
        ),
    ),
    "launcher": (LOST | noted(NO_LAUNCHER), "launcher", "(host n1): blaunch", "shared folder"),
    "interpreter": (LOST | noted(NO_PYTHON, NO_PYTHON), "interpreter", "not found", "port"),
    "image": (
        NOTHING | {"container": IMAGE, "verdict": launch_failed(NO_TORCH)} | IN_LOGS,
        *("container", NO_TORCH, None),
    ),
}


@pytest.mark.parametrize(("changed", "name", "words", "not_reached"), CASES.values(), ids=CASES)
def test_the_first_that_is_not_proven_is_to_blame_and_gets_the_reason(
    changed, name, words, not_reached
):
    found = states(**changed)
    assert failing(found) == [name]
    assert words in found[name].detail
    assert "lsf" not in found[name].advice  # no other scheduler has such a key
    assert not_reached is None or found[not_reached].state == "skip"


def test_what_bash_says_of_a_setup_line_is_told_without_the_schedulers_copy_of_the_script():
    line = "module load cuda/99"
    lines = [
        "/var/spool/slurmd/job12/slurm_script: line 16: module: command not found",
        f"hpcdist: setup: exit code 127: {line}",
    ]
    evidence = msgspec.structs.replace(GOOD, logs={0: lines})
    found = judge(evidence, ClusterProfile(setup=[line]), asks_for_gpus=False)
    (setup,) = [one for one in found if one.name == "setup lines"]
    assert setup.detail == f"exit code 127: {line} (line 16: module: command not found)"
