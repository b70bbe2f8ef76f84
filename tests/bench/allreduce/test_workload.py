"""The all-reduce benchmark: real ranks that measure, and what is refused beforehand."""

import io
import os
import signal

import msgspec
import pytest
from rich.console import Console

from hpcdist.base.errors import JobError
from hpcdist.job.spec import AllreduceJob
from hpcdist.summary import print_summary, summarize, to_json
from hpcdist.workloads import load_workload

SMALL = ("allreduce.iterations=4", "allreduce.warmup=1")


def events_of(launched, kind, rank=0):
    return [event for event in launched.events(rank) if event["event"] == kind]


def test_sizes_and_pairs_of_nodes_are_measured_and_summed_up(submit_job):
    launched = submit_job(
        "allreduce",
        *SMALL,
        "allreduce.sizes=[4,65536]",
        "allreduce.pairs=true",
        nodes=2,
        gpus=2,
    )
    assert launched.verdict().state == "done", launched.everything_said()
    small, large = events_of(launched, "collective")
    assert (small["bytes"], large["bytes"]) == (4, 65536)
    for event in (small, large):
        assert (event["ranks"], event["iterations"], event["checked"]) == (4, 4, True)
        assert 0 < event["min_time_s"] <= event["median_time_s"] <= event["p95_time_s"]
        assert event["algorithm_bytes_per_s"] * event["mean_time_s"] == pytest.approx(
            event["bytes"]
        )
        assert event["bus_bytes_per_s"] == pytest.approx(1.5 * event["algorithm_bytes_per_s"])
    (pair,) = events_of(launched, "pair")
    assert (pair["nodes"], pair["ranks"], pair["bytes"]) == ([0, 1], 2, 65536)
    assert pair["bus_bytes_per_s"] == pytest.approx(pair["algorithm_bytes_per_s"])
    assert not any(events_of(launched, "collective", rank) for rank in (1, 2, 3))

    summary = summarize([launched.run], {})
    told = to_json(summary)[0]["all_reduce"]
    assert [size["bytes"] for size in told["sizes"]] == [4, 65536]
    assert told["latency"]["median_time_s"] == small["median_time_s"]
    file = io.StringIO()
    print_summary(summary, Console(file=file, width=120))
    first = file.getvalue().splitlines()[0]
    assert first.startswith("allreduce: all-reduce over 4 ranks: ")
    assert "64 KiB" in file.getvalue()


def test_one_rank_is_told_that_it_sends_nothing(submit_job):
    launched = submit_job("allreduce", *SMALL, "allreduce.sizes=[1024]")
    assert launched.verdict().state == "done", launched.everything_said()
    (note,) = events_of(launched, "note")
    assert note["message"].startswith("a single rank sends nothing")


def test_a_slow_node_is_found_by_its_pairs_which_are_measured_again(submit_job):
    launched = submit_job(
        "allreduce",
        "allreduce.iterations=3",
        "allreduce.warmup=1",
        "allreduce.sizes=[16777216]",
        "allreduce.check=false",
        "allreduce.pairs=true",
        nodes=3,
        change="slow_node:delay_all_reduces",
    )
    assert launched.verdict().state == "done", launched.everything_said()
    told = to_json(summarize([launched.run], {}))[0]["all_reduce"]
    assert {tuple(pair["nodes"]) for pair in told["slow_pairs"]} == {(0, 1), (1, 2)}
    assert all(pair["alone"] for pair in told["slow_pairs"])
    file = io.StringIO()
    print_summary(summarize([launched.run], {}), Console(file=file, width=400))
    assert "Node 1 (" in file.getvalue()
    assert "all nodes are simulated on one host, so no link is slow" in file.getvalue()


def test_a_benchmark_that_is_told_to_stop_keeps_what_it_has(submit_job):
    launched = submit_job("allreduce", "allreduce.max_time_s=0.2", *_many_sizes(), gpus=2)
    launched.wait(lambda: "bus" in launched.log(0))
    os.kill(launched.agent_pid(0), signal.SIGUSR2)
    verdict = launched.verdict()
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75)
    assert "checkpoint" not in verdict.message
    measured = len(events_of(launched, "collective"))
    assert 0 < measured < 400
    (note,) = events_of(launched, "note")
    assert note["message"] == f"stopped when it was asked to, after {measured} of 400 measurements"
    assert len(to_json(summarize([launched.run], {}))[0]["all_reduce"]["sizes"]) == measured


def test_a_long_measurement_is_cut_short_and_what_it_had_is_kept(submit_job):
    # The first size takes a second at most; the second would take minutes.
    launched = submit_job(
        "allreduce",
        "allreduce.sizes=[4,33554432]",
        "allreduce.iterations=2000",
        "allreduce.warmup=1",
        "allreduce.max_time_s=600",
        "allreduce.check=false",
        gpus=2,
    )
    launched.wait(lambda: "bus" in launched.log(0))
    os.kill(launched.agent_pid(0), signal.SIGUSR2)
    verdict = launched.verdict()
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75), verdict
    whole, *cut_short = events_of(launched, "collective")
    assert whole["iterations"] == 2000
    assert all(event["iterations"] < 2000 for event in cut_short)
    (note,) = events_of(launched, "note")
    assert note["message"] == "stopped when it was asked to, after 1 of 2 measurements"


def test_a_pair_that_is_measured_is_cut_short_on_all_nodes(submit_job):
    launched = submit_job(
        "allreduce",
        "allreduce.sizes=[4194304]",
        "allreduce.iterations=150",
        "allreduce.max_time_s=600",
        "allreduce.pairs=true",
        nodes=3,
    )
    launched.wait(lambda: "nodes 0 and 1" in launched.log(0), 90)
    os.kill(launched.agent_pid(2), signal.SIGUSR2)
    verdict = launched.verdict()
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75), verdict
    (note,) = events_of(launched, "note")
    done = int(note["message"].split("after ")[1].split(" of 4 ")[0])
    whole = [event for event in events_of(launched, "pair") if event["iterations"] == 150]
    assert done == 1 + len(whole) < 4


def _many_sizes():
    sizes = [4 * number for number in range(1, 401)]
    return (f"allreduce.sizes={sizes}", "allreduce.iterations=1000000")


@pytest.mark.parametrize(
    ("setting", "resources", "said"),
    [
        ({"sizes": []}, {}, "allreduce.sizes is empty"),
        ({"sizes": [8, 4, 8]}, {}, "allreduce.sizes has 8 2 times"),
        ({"sizes": [1024, 1022]}, {}, "has 1,022, which is no multiple of the 4 bytes"),
        ({"sizes": [12], "dtype": "float64"}, {}, "no multiple of the 8 bytes of a float64"),
        ({"pairs": True}, {}, "allreduce.pairs is true, but resources.nodes is 1"),
        ({}, {"gpus": 8, "mem_gb": 2.0}, "2.1 GB, but resources.mem_gb is 2"),
    ],
    ids=["no-sizes", "twice", "float32", "float64", "pairs-of-one-node", "memory"],
)
def test_what_cannot_be_measured_is_refused_with_key_and_value(setting, resources, said):
    values = {
        "name": "test",
        "allreduce": setting,
        "resources": resources,
        "launch": {"device": "cpu"},
    }
    with pytest.raises(JobError) as error:
        load_workload(msgspec.convert(values, AllreduceJob)).check()
    assert said in error.value.message
    assert error.value.hint
    assert error.value.exit_code == 2


def test_sizes_that_do_not_fit_into_memory_are_left_out_and_told(submit_job):
    launched = submit_job(
        "allreduce", *SMALL, "allreduce.sizes=[1024,200000000]", "resources.mem_gb=0.25"
    )
    # One rank may fill half of what the job is given; more cannot be known before it starts.
    launched.wait(lambda: events_of(launched, "note") if launched.run.event_file(0).exists() else 0)
    note = events_of(launched, "note")[0]
    assert note["message"].startswith("left out for lack of memory: 200,000,000 B; rank 0 on ")
    launched.verdict()
