"""From what a check job left to findings, for faults that are hard to have on one machine."""

import msgspec
import pytest

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.doctor.examine import examine_folder
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


def test_a_node_that_cannot_reach_the_first_is_a_matter_of_ports():
    message = "node 1 (host n1): could not reach the agent of node 0 within 60 s"
    found = states(
        verdict=launch_failed(message),
        nodes=[node(0), node(1, address=None, master_addr=None, interface=None)],
        places=[],
        collectives=[],
    )
    assert failing(found) == ["port"]
    assert message in found["port"].detail
    assert found["collective"].state == "skip"


def test_a_first_node_that_offers_only_loopback_is_a_matter_of_interfaces():
    found = states(
        verdict=launch_failed("node 0 offers 127.0.1.1, which other nodes cannot reach"),
        nodes=[node(0, offers=["127.0.1.1"]), node(1, address=None, master_addr=None)],
        places=[],
        collectives=[],
    )
    assert failing(found) == ["interface"]


def test_a_collective_that_fails_is_told_with_the_reason():
    verdict = Verdict(
        kind="exception", state="failed", message="rank 1 failed first", exit_code_of_run=1
    )
    found = states(verdict=verdict, collectives=[])
    assert failing(found) == ["collective"]
    assert found["collective"].detail == "rank 1 failed first"


def test_another_version_of_hpcdist_on_a_node_is_told_with_both():
    found = states(places=[place(0), place(1, versions=VERSIONS | {"hpcdist": "0.0.9"})])
    assert failing(found) == ["interpreter"]
    assert found["interpreter"].detail == "n1 has hpcdist 0.0.9, this machine 0.1.0"


def test_a_folder_that_is_another_one_on_a_node_is_told():
    found = states(places=[place(0), place(1, token="check-0")])
    assert failing(found) == ["shared folder"]


def test_a_node_of_which_nothing_is_there_does_not_see_the_folder():
    found = states(
        verdict=launch_failed("the agents of node 1 did not join within 60 s"),
        nodes=[node(0)],
        places=[],
        collectives=[],
        logs={0: []},
        ended=frozenset((0,)),
        scheduler_says="Slurm says JobState=FAILED of job 7",
    )
    assert failing(found) == ["shared folder"]
    assert "node 1" in found["shared folder"].detail
    assert "Slurm says JobState=FAILED" in found["shared folder"].detail


LOST = {
    "verdict": launch_failed("node 1 (host n1): no agent"),
    "nodes": [node(0)],
    "places": [],
    "collectives": [],
    "ended": frozenset((0,)),
}


def test_a_log_that_another_node_opened_does_not_show_that_a_node_sees_the_folder():
    said = "ssh ended with exit code 2: /bin/sh: 0: cannot open /home/ann/runs/7_host.sh: No such"
    found = states(**LOST, logs={0: ["x"], 1: [said]}, notes=[Note(node=1, host="n1", said=said)])
    assert failing(found) == ["shared folder"]
    assert "cannot open /home/ann/runs/7_host.sh" in found["shared folder"].detail
    assert found["interpreter"].state == "skip"
    found = states(**LOST, logs={0: ["x"], 1: []})
    assert failing(found) == ["shared folder"]


def test_a_launcher_that_is_not_there_is_told_as_that():
    said = "blaunch -z {host} {command} cannot be run: No such file or directory"
    found = states(**LOST, logs={0: ["x"], 1: []}, notes=[Note(node=1, host="n1", said=said)])
    assert failing(found) == ["launcher"]
    assert "node 1 (host n1): blaunch" in found["launcher"].detail
    assert "lsf" not in found["launcher"].advice  # PBS's command is no key of the profile
    assert found["shared folder"].state == "skip"


def test_an_interpreter_that_does_not_start_on_a_node_that_sees_the_folder_is_blamed():
    said = "blaunch ended with exit code 127: sh: python: not found"
    found = states(
        **LOST,
        logs={0: ["x"], 1: ["sh: python: not found"]},
        notes=[Note(node=1, host="n1", said=said)],
    )
    assert failing(found) == ["interpreter"]


def test_a_folder_for_runs_passes_and_nothing_is_left_in_it(tmp_path):
    assert examine_folder(tmp_path).state == "pass"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "copy",
    ["/var/spool/slurmd/job00012/slurm_script", "/home/ann/.lsbatch/1763733600.12"],
    ids=["slurm", "lsf"],
)
def test_what_bash_says_of_a_setup_line_is_told_without_the_schedulers_copy_of_the_script(copy):
    lines = [
        f"{copy}: line 16: module: command not found",
        "hpcdist: setup: exit code 127: module load cuda/99",
    ]
    evidence = msgspec.structs.replace(GOOD, logs={0: lines})
    found = judge(evidence, ClusterProfile(setup=["module load cuda/99"]), asks_for_gpus=False)
    setup = next(one for one in found if one.name == "setup lines")
    assert setup.detail == (
        "exit code 127: module load cuda/99 (line 16: module: command not found)"
    )


IMAGE = UsedContainer(image="/images/torch.sif", runtime="apptainer", identity="sif:00ff")
INSIDE = {"container": IMAGE}


def test_an_image_is_told_with_its_runtime():
    assert states()["container"].state == "skip"
    found = states(**INSIDE)
    assert not failing(found)
    assert (
        "/images/torch.sif (sif:00ff) by apptainer: starts on 2 nodes" in found["container"].detail
    )


def test_an_image_in_which_no_rank_starts_is_the_container_and_not_the_interpreter():
    message = "node 1 (host n1): no rank can be started in /images/torch.sif: it has no torch"
    changed = {"container": IMAGE, "verdict": launch_failed(message)}
    found = states(**changed, places=[], collectives=[], logs={0: ["x"], 1: ["x"]})
    assert failing(found) == ["container"]
    assert found["container"].detail == message
    assert found["interpreter"].state == "pass"
