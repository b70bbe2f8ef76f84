"""Advice: what fits the case, with the figures behind it, and nothing where nothing fits."""

import msgspec
import pytest

from hpcdist.summary.compare.advice import Case, advise
from hpcdist.summary.figures.shares import SHARES as PARTS
from hpcdist.summary.values import Cell, RunSummary, Straggler

PHOTOS = {
    "workload": "train",
    "data.name": "image_folder",
    "data.workers": 2,
    "data.transform": "none",
    "data.decoder": "fast",
    "train.batch_size": 32,
    "train.accumulate": 1,
    "checkpoint.every_steps": 0,
    "checkpoint.every_epochs": 1,
}


def advice(
    job=None, *, cpus=4.0, world_size=2, nodes=1, straggler=None, run=None, lost=None, **shares
):
    found = dict.fromkeys(PARTS, 0.0) | shares
    found["computing"] = 1 - sum(shares.values())
    cell = Cell(
        job="ddp",
        runs=["a"],
        num_measured=1,
        world_size=world_size,
        nodes=nodes,
        gpus_per_node=world_size // nodes,
        overall=1 - sum(shares.values()),
        lost=found | {"computing": 0.0} | (lost or {}),
        shares=found,
        straggler=straggler,
    )
    facts = {"run": "a", "job": "ddp", "nodes": 1, "gpus_per_node": world_size}
    runs = [RunSummary(**facts | {"world_size": world_size, "steps": 400} | (run or {}))]
    return advise(Case(job=PHOTOS | (job or {}), cell=cell, runs=runs, cpus_per_rank=cpus))


def test_more_workers_are_advised_as_far_as_there_are_cpus():
    assert advice(data=0.41) == [
        (
            "data wait is 41 % of the time at 2 workers on 4 CPUs per rank: try data.workers=4; "
            "would give at most 1.7 times as fast"
        )
    ]
    assert "try data.workers=3" in advice(cpus=3.0, data=0.41)[0]
    assert "try data.workers=1;" in advice({"data.workers": 0}, data=0.41)[0]
    (full,) = advice(cpus=2.0, data=0.41)
    assert "so that more workers would not help: give each rank more CPUs" in full
    assert "data.workers=" not in full


def test_data_in_memory_need_no_workers():
    digits = {"data.name": "digits"}
    assert advice(digits | {"data.workers": 0}, data=0.41) == []
    assert advice(digits, data=0.41)[0].endswith("data.workers=0")


def test_a_script_is_told_of_its_own_loader():
    script = {"workload": "script", "data.workers": None, "train.accumulate": None}
    (text,) = advice(script | {"train.batch_size": None}, data=0.5)
    assert " on 4 CPUs per rank: use more workers in its DataLoader" in text
    assert "would give at most 2.0 times as fast" in text


def test_communicating_half_as_often_wins_half_of_it():
    (text,) = advice(communication=0.5)
    assert "train.accumulate=2 or train.batch_size=64 communicates half as often" in text
    assert "about 1.3 times as fast, at most 2.0 times as fast if it disappeared completely" in text
    assert advice(communication=0.09) == []  # half of that is not worth it
    # Ranks that share a CPU wait for it, not for a network.
    assert advice(cpus=0.5, communication=0.5) == []


def test_a_share_is_rounded_as_it_stands_among_what_was_lost():
    (text, _) = advice(communication=0.1146, fixed=0.1049, lost={"fixed": 0.024})
    assert "communication is 12 % of the time" in text


def test_checkpoints_are_saved_less_often_but_not_more_seldom_than_the_run_lasts():
    (text,) = advice({"checkpoint.every_steps": 10}, checkpoints=0.3)
    assert "checkpoint.every_steps=100 would give about 1.4 times" in text
    assert "a failure then costs up to 100 steps" in text
    (text,) = advice({"checkpoint.every_steps": 100}, checkpoints=0.3)
    assert "checkpoint.every_steps=400 would give about 1.3 times" in text
    (text,) = advice(run={"epochs": 20}, checkpoints=0.05)
    assert "checkpoint.every_epochs=10 would give about 1.05 times" in text
    # One checkpoint is the least.
    assert advice({"checkpoint.every_epochs": 3}, run={"epochs": 3}, checkpoints=0.3) == []


def test_the_rank_to_look_at_is_named_only_where_it_is_certain():
    slow = Straggler(rank=3, node=1, host="n17", longer_s=0.01, slowest_in=19, stretches=20)
    (text,) = advice(straggler=slow, stragglers=0.2, nodes=2, world_size=4)
    assert "or exclude that node" in text
    assert "rank 3 (node 1, host n17) needs 10.0 ms more per step than others do" in text
    assert "in 19 of 20 equal parts of the run" in text
    (text,) = advice(stragglers=0.2)
    assert "no single rank is clearly the slowest" in text
    assert "rank 3" not in text
    (text,) = advice(straggler=slow, stragglers=0.2)
    assert "exclude that node" not in text  # it is the only one


def test_simulated_nodes_on_one_host_get_no_advice_about_nodes():
    slow = Straggler(rank=3, node=1, host="n17", longer_s=0.01, slowest_in=19, stretches=20)
    place = {"nodes": 2, "world_size": 4}
    (real,) = advice(communication=0.5, **place, run={"hosts": ["a", "b"]})
    assert "measures the network between the nodes" in real
    (simulated,) = advice(communication=0.5, **place, run={"hosts": ["a"]})
    assert "network" not in simulated
    for straggler in (slow, msgspec.structs.replace(slow, rank=None)):
        (text,) = advice(straggler=straggler, stragglers=0.2, **place, run={"hosts": ["a"]})
        assert "exclude that node" not in text


def test_the_fixed_cost_is_spread_over_larger_batches():
    assert advice(fixed=0.5)[0].endswith("with train.batch_size=64: about 1.3 times as fast")


@pytest.mark.parametrize("shares", [{}, {"data": 0.04, "stragglers": 0.03}], ids=["none", "little"])
def test_where_nothing_is_worth_it_nothing_is_advised(shares):
    assert advice(**shares) == []


def test_at_most_the_two_most_worthwhile_are_told_the_largest_first():
    first, second = advice(data=0.2, communication=0.3, stragglers=0.1, fixed=0.15)
    assert first.startswith("exposed communication is 30 %")
    assert second.startswith("data wait is 20 %")
