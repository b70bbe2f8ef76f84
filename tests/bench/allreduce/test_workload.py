"""The all-reduce benchmark: real ranks that measure."""

import os
import signal

import pytest
from summary_text import printed

from hpcdist.bench.allreduce.workload import size_sentence
from hpcdist.bench.cells import timed_cell
from hpcdist.summary import summarize, to_json


def events_of(launched, kind, rank=0):
    return [event for event in launched.events(rank) if event["event"] == kind]


def table_of(launched):
    (run,) = to_json(summarize([launched.run], {}))
    return {table["name"]: table["cells"] for table in run["benchmark"]["tables"]}["all_reduce"]


def test_sizes_are_measured_and_summed_up(submit_job):
    few = ("allreduce.iterations=4", "allreduce.warmup=1", "allreduce.sizes=[4,65536]")
    launched = submit_job("allreduce", *few, nodes=2, gpus=2)
    assert launched.verdict().state == "done", launched.everything_said()
    cells = events_of(launched, "cell")
    assert [cell["keys"] for cell in cells] == [{"size_bytes": 4}, {"size_bytes": 65536}]
    for cell in cells:
        more = cell["more"]
        assert cell["repeats"] == 4
        assert 0 < more["median_time_s"] <= more["p95_time_s"]
        size = cell["keys"]["size_bytes"]
        assert more["algorithm_bytes_per_s"] * cell["mean_time_s"] == pytest.approx(size)
        assert cell["rate"] == pytest.approx(1.5 * more["algorithm_bytes_per_s"])
    assert not any(events_of(launched, "cell", rank) for rank in (1, 2, 3))
    assert len(table_of(launched)) == 2
    text = printed([launched.run])
    assert text.startswith("allreduce: all-reduce over 4 ranks: ")
    assert "64 KiB" in text


def test_a_benchmark_that_is_told_to_stop_keeps_what_it_has(submit_job):
    sizes = f"allreduce.sizes={[4 * number for number in range(1, 401)]}"
    many = (sizes, "allreduce.iterations=1000000", "allreduce.max_time_s=0.2")
    launched = submit_job("allreduce", *many, gpus=2)
    launched.wait(lambda: "bus" in launched.log(0))
    os.kill(launched.agent_pid(0), signal.SIGUSR2)
    verdict = launched.verdict()
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75)
    assert "checkpoint" not in verdict.message
    measured = len(events_of(launched, "cell"))
    assert 0 < measured < 400
    *_, note = events_of(launched, "note")
    assert note["message"] == f"stopped when it was asked to, after {measured} of 400 measurements"
    assert len(table_of(launched)) == measured


def test_the_sentence_has_latency_bandwidth():
    def size(num_bytes, time_s, bandwidth):
        more = {"median_time_s": time_s, "p95_time_s": 2 * time_s}
        keys = {"size_bytes": num_bytes}
        return timed_cell("all_reduce", keys, [time_s], rate=bandwidth, more=more)

    cells = [size(1024, 20e-6, 77e6), size(1 << 20, 1e-3, 1.57e9)]
    assert size_sentence(cells, 4) == (
        "all-reduce over 4 ranks: 20.0 µs with 1 KiB (p95 40.0 µs), at most 1.6 GB/s bus "
        "bandwidth, with 1 MiB; all sums right."
    )
    assert size_sentence([size(1024, 20e-6, 0.0)], 1) == (
        "all-reduce over 1 rank: 20.0 µs with 1 KiB (p95 40.0 µs); all sums right."
    )
