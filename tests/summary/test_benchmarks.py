"""The summaries of the benchmarks, from events of known content."""

import io

import pytest
from rich.console import Console

from hpcdist.summary import print_summary, summarize, to_json

MIB = 1 << 20


def collective(num_bytes, time_s, *, ranks=2, **fields):
    return {
        "event": "collective",
        "time_s": 0.0,
        "operation": "all_reduce",
        "dtype": "float32",
        "ranks": ranks,
        "bytes": num_bytes,
        "iterations": 10,
        "mean_time_s": time_s,
        "median_time_s": time_s,
        "p95_time_s": 2 * time_s,
        "min_time_s": time_s,
        "algorithm_bytes_per_s": num_bytes / time_s,
        "bus_bytes_per_s": num_bytes / time_s * 2 * (ranks - 1) / ranks,
        "checked": True,
        **fields,
    }


def pair(a, b, gigabytes, *, alone=False, stall_s=0.0):
    """`gigabytes` per second by the median; `stall_s` is in the mean only."""
    median_s = MIB / (gigabytes * 1e9)
    return {
        "event": "pair",
        "time_s": 0.0,
        "nodes": [a, b],
        "hosts": [f"n{a}", f"n{b}"],
        "bytes": MIB,
        "mean_time_s": median_s + stall_s,
        "median_time_s": median_s,
        "bus_bytes_per_s": MIB / (median_s + stall_s),
        "alone": alone,
    }


def summary_of(make_run, events, written, *, job="allreduce", **options):
    run = make_run(f"{job}-20260101-120000-aaaa", job=job, nodes=4, **options)
    events.write(run, 0, [events.start(0, world_size=4, num_nodes=4), *written, events.end()])
    return summarize([run], {})


def text(summary):
    file = io.StringIO()
    print_summary(summary, Console(file=file, width=200))
    return file.getvalue()


def test_all_reduces_are_told_by_size_the_conclusion_first(make_run, events):
    written = [collective(1024, 20e-6, ranks=4), collective(MIB, 1e-3, ranks=4)]
    summary = summary_of(make_run, events, written)
    printed = text(summary)
    assert printed.splitlines()[0] == (
        "allreduce: all-reduce over 4 ranks: 20.0 µs with 1 KiB (p95 40.0 µs), at most 1.6 GB/s "
        "bus bandwidth, with 1 MiB; all sums right."
    )
    last = next(line for line in printed.splitlines() if "1 MiB  " in line)
    assert last.split() == ["1", "MiB", "1,000", "1,000", "2,000", "1.05", "1.57", "10"]
    assert "samples/s" not in printed
    assert "no steps" not in printed


def test_what_the_job_measured_is_in_the_json(make_run, events):
    written = [collective(1024, 20e-6), *(pair(0, 1, 5.0), pair(0, 2, 5.0), pair(1, 2, 1.0))]
    told = to_json(summary_of(make_run, events, written))[0]["all_reduce"]
    assert told["latency"] == {"bytes": 1024, "median_time_s": 20e-6, "p95_time_s": 40e-6}
    assert [found["nodes"] for found in told["pairs"]] == [(0, 1), (0, 2), (1, 2)]
    assert [found["nodes"] for found in told["slow_pairs"]] == [(1, 2)]
    assert to_json(summary_of(make_run, events, [], job="other"))[0]["all_reduce"] is None


def test_slow_pairs_are_named_with_their_hosts_and_the_node_they_share(make_run, events):
    fast = [pair(0, 1, 10.0), pair(0, 3, 10.0), pair(1, 3, 10.0), pair(1, 2, 10.0)]
    slow = [pair(0, 2, 1.0), pair(2, 3, 2.0)]
    printed = text(summary_of(make_run, events, [collective(1024, 1e-5), *fast, *slow]))
    assert (
        "Slow pairs of nodes, below half of the 10 GB/s that the best quarter reach: 0 and 2 (n0 "
        "and n2) 1 GB/s; "
        "2 and 3 (n2 and n3) 2 GB/s. Node 2 (n2) is in all of them: look at its link first."
    ) in " ".join(printed.split())


def test_one_stall_of_many_all_reduces_makes_no_pair_slow(make_run, events):
    fast = [pair(0, 1, 10.0), pair(1, 2, 10.0), pair(0, 2, 9.0, stall_s=0.5)]
    summary = summary_of(make_run, events, [collective(1024, 1e-5), *fast])
    told = to_json(summary)[0]["all_reduce"]
    assert not told["slow_pairs"]
    assert [one["bus_bytes_per_s"] for one in told["pairs"]] == pytest.approx([10e9, 9e9, 10e9])
    assert "No pair of nodes is slow" in text(summary)


def test_a_pair_that_is_fast_when_measured_alone_is_not_slow(make_run, events):
    first = [pair(0, 1, 10.0), pair(0, 2, 10.0), pair(1, 2, 1.0)]
    again = [pair(1, 2, 9.0, alone=True)]
    printed = text(summary_of(make_run, events, [collective(1024, 1e-5), *first, *again]))
    sentence = (
        "No pair of nodes is slow: all of 3 reach 5 GB/s, half of what the best quarter reach."
    )
    assert sentence in " ".join(printed.split())


def cell(strategy, size, time_ms, **fields):
    return {
        "event": "inference",
        "time_s": 0.0,
        "strategy": strategy,
        "batch_size": size,
        "devices": 1 if strategy == "single" else 2,
        "repeats": 16,
        "cold_time_s": 0.1,
        "mean_time_s": time_ms / 1e3,
        "sd_time_s": 0.01e-3,
        "min_time_s": time_ms / 1e3,
        "images_per_s": size / time_ms * 1e3,
        "parts_s": {},
        "error": None,
        **fields,
    }


def test_inference_is_told_by_batch_size_the_conclusion_first(make_run, events):
    lost = {
        "event": "inference",
        "time_s": 0.0,
        "strategy": "data_parallel",
        "batch_size": 512,
        "devices": 2,
        "error": "out of memory",
    }
    written = [
        *(cell("single", 1, 1.0), cell("single", 64, 4.0), cell("single", 512, 32.0)),
        *(cell("data_parallel", 1, 3.0), cell("data_parallel", 64, 2.5), lost),
    ]
    summary = summary_of(make_run, events, written, job="inference")
    printed = text(summary)
    assert printed.splitlines()[0].startswith(
        "inference: single reaches 16,000 images/s, with 64 images per batch. "
        "data_parallel (2 devices) is faster than single from 64 images per batch on: "
        "1.60 times with 64."
    )
    assert "out of memory" in printed
    told = to_json(summary)[0]["inference"]
    assert [found["batch_size"] for found in told["cells"]] == [1, 64, 512, 1, 64, 512]
    assert told["cells"][-1]["mean_time_s"] is None


def test_events_of_the_wrong_type_are_counted_and_left_out(make_run, events):
    odd = {**collective(4096, 1e-5), "bytes": "4 KiB"}
    summary = summary_of(make_run, events, [collective(1024, 1e-5), odd])
    assert len(to_json(summary)[0]["all_reduce"]["sizes"]) == 1
    assert "1 event skipped" in " ".join(summary.skipped)


def test_the_check_job_of_an_older_version_shows_no_table(make_run, events):
    old = {"event": "collective", "time_s": 0.0, "group_time_s": 1.0, "all_reduce_time_s": 0.1}
    summary = summary_of(make_run, events, [old], job="check")
    assert to_json(summary)[0]["all_reduce"] is None
    assert not summary.skipped
