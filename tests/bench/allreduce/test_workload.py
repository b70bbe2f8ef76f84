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


def cells_of(launched, table, rank=0):
    return [cell for cell in events_of(launched, "cell", rank) if cell["table"] == table]


def told_of(launched):
    (run,) = to_json(summarize([launched.run], {}))
    return {table["name"]: table["cells"] for table in run["benchmark"]["tables"]}


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
    small, large = cells_of(launched, "all_reduce")
    assert (small["keys"], large["keys"]) == ({"size_bytes": 4}, {"size_bytes": 65536})
    for cell in (small, large):
        more = cell["more"]
        assert cell["repeats"] == 4
        assert 0 < more["median_time_s"] <= more["p95_time_s"]
        size = cell["keys"]["size_bytes"]
        assert more["algorithm_bytes_per_s"] * cell["mean_time_s"] == pytest.approx(size)
        assert cell["rate"] == pytest.approx(1.5 * more["algorithm_bytes_per_s"])
    (pair,) = cells_of(launched, "pair")
    assert pair["keys"] == {"nodes": "0 1"}
    assert pair["rate"] * pair["more"]["median_time_s"] == pytest.approx(65536)
    assert not any(events_of(launched, "cell", rank) for rank in (1, 2, 3))

    summary = summarize([launched.run], {})
    assert [cell["keys"] for cell in told_of(launched)["all_reduce"]] == [
        small["keys"],
        large["keys"],
    ]
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
    pairs = {cell["keys"]["nodes"]: cell for cell in told_of(launched)["pair"]}
    assert pairs["0 2"]["rate"] > 2 * max(pairs["0 1"]["rate"], pairs["1 2"]["rate"])
    assert {cell["note"] for cell in pairs.values()} == {"measured alone"}
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
    measured = len(cells_of(launched, "all_reduce"))
    assert 0 < measured < 400
    *_, note = events_of(launched, "note")
    assert note["message"] == f"stopped when it was asked to, after {measured} of 400 measurements"
    assert len(told_of(launched)["all_reduce"]) == measured


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
    ],
    ids=["no-sizes", "twice", "float32", "float64", "pairs-of-one-node"],
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
