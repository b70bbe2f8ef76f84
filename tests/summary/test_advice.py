"""Advice: what fits the case, with the figures behind it, and nothing where nothing fits."""

import pytest

from hpcdist.base.text import whole_percents
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


def advice(job=None, *, cpus=4.0, world_size=2, nodes=1, straggler=None, run=None, **shares):
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
        lost=found | {"computing": 0.0},
        shares=found,
        straggler=straggler,
    )
    facts = {"run": "a", "job": "ddp", "nodes": 1, "gpus_per_node": world_size}
    runs = [RunSummary(**facts | {"world_size": world_size, "steps": 400} | (run or {}))]
    return advise(Case(job=PHOTOS | (job or {}), cell=cell, runs=runs, cpus_per_rank=cpus))


def only(job=None, **case):
    (text,) = advice(job, **case)
    return text


def test_workers_are_advised_as_far_as_there_are_cpus():
    assert only(data=0.41) == (
        "data wait is 41 % of the time at 2 workers on 4 CPUs per rank: try data.workers=4; "
        "would give at most 1.7 times as fast"
    )
    assert "try data.workers=3" in only(cpus=3.0, data=0.41)
    assert "try data.workers=1;" in only({"data.workers": 0}, data=0.41)
    full = only(cpus=2.0, data=0.41)
    assert "so that more workers would not help: give each rank more CPUs" in full
    assert only({"data.name": "digits"}, data=0.41).endswith("data.workers=0")
    script = {"workload": "script", "data.workers": None, "train.batch_size": None}
    assert " on 4 CPUs per rank: use more workers in its DataLoader" in only(script, data=0.5)


def test_half_of_the_communication_or_of_the_fixed_cost_can_be_won():
    text = only(communication=0.5)
    assert "train.accumulate=2 or train.batch_size=64 communicates half as often" in text
    assert "about 1.3 times as fast, at most 2.0 times as fast if it disappeared completely" in text
    assert only(fixed=0.5).endswith("with train.batch_size=64: about 1.3 times as fast")


def test_checkpoints_are_saved_less_often_but_not_more_seldom_than_the_run_lasts():
    text = only({"checkpoint.every_steps": 10}, checkpoints=0.3)
    assert "checkpoint.every_steps=100 would give about 1.4 times" in text
    assert "a failure then costs up to 100 steps" in text
    text = only(run={"epochs": 20}, checkpoints=0.05)
    assert "checkpoint.every_epochs=10 would give about 1.05 times" in text


def test_the_rank_to_look_at_is_named_where_it_is_certain_and_nodes_where_they_are_machines():
    slow = Straggler(rank=3, node=1, host="n17", longer_s=0.01, slowest_in=19, stretches=20)
    place = {"nodes": 2, "world_size": 4}
    text = only(straggler=slow, stragglers=0.2, **place)
    assert "or exclude that node" in text
    assert "rank 3 (node 1, host n17) needs 10.0 ms more per step than others do" in text
    assert "in 19 of 20 equal parts of the run" in text
    assert "no single rank is clearly the slowest" in only(stragglers=0.2)
    network = "measures the network between the nodes"
    assert network in only(communication=0.5, **place, run={"hosts": ["a", "b"]})
    simulated = {**place, "run": {"hosts": ["a"]}}
    assert network not in only(communication=0.5, **simulated)
    assert "exclude that node" not in only(straggler=slow, stragglers=0.2, **simulated)


NOTHING = {
    "nothing lost": {},
    "data in memory": {"job": {"data.name": "digits", "data.workers": 0}, "data": 0.4},
    "half of it is not worth it": {"communication": 0.09},
    "ranks that share a CPU wait for it": {"cpus": 0.5, "communication": 0.5},
    "one checkpoint": {"job": {"checkpoint.every_epochs": 3}, "run": {"epochs": 3}}
    | {"checkpoints": 0.3},
}


@pytest.mark.parametrize("case", NOTHING.values(), ids=NOTHING)
def test_where_nothing_is_worth_it_nothing_is_advised(case):
    assert advice(**case) == []


def test_the_two_most_worthwhile_are_told():
    first, second = advice(data=0.2, communication=0.3, stragglers=0.1, fixed=0.15)
    assert first.startswith("exposed communication is 30 %")
    assert second.startswith("data wait is 20 %")


def test_whole_percents_add_up_to_their_sum():
    assert whole_percents({"a": 0.576, "b": 0.145, "c": 0.016}) == {"a": 58, "b": 14, "c": 2}
    assert whole_percents({"a": 0.5, "b": -0.2, "c": 0.104}) == {"a": 50, "b": -20, "c": 10}
    assert whole_percents({"a": -0.006, "b": -0.006, "c": 0.004}) == {"a": 0, "b": -1, "c": 0}
