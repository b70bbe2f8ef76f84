"""Disturbed runs are named, and not compared where others of their kind were undisturbed."""

import msgspec
import pytest
from summary_text import in_words

from hpcdist.summary import summarize


@pytest.fixture
def trained(make_run, events):
    """A run of so many ranks, each with a CPU of its own; what all processes of its host used of
    these CPUs, and its own ranks."""

    def make(name, *, ranks, busy=None, own=None):
        run = make_run(name, gpus=ranks)
        for rank in range(ranks):
            start = events.start(rank, world_size=ranks, host="host0", cpus=[rank])
            events.write(run, rank, [start, *events.steady([100.0] * 6)])
        cpus = list(range(ranks))
        busy, own = ranks if busy is None else busy, ranks if own is None else own
        lines = [
            {"event": "node", "begin_s": 0.0, "node": 0, "host": "host0", "cpus": cpus},
            {"event": "usage", "time_s": 0.0, "wall_s": 5.0}
            | {"cpus_busy": own, "bound_cpus_busy": busy},
        ]
        run.usage_file(0, 0).write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
        return run

    return make


def test_a_host_that_was_busy_with_other_work_disturbs_only_where_its_cpus_were_full(trained):
    alone = trained("alone", ranks=1)
    busy = trained("busy", ranks=2, own=1.4, busy=2.0)
    idle = trained("idle", ranks=2, own=1.2, busy=1.6)
    little = trained("little", ranks=2, own=1.9, busy=2.0)
    shared = trained("shared", ranks=2, own=1.0, busy=2.0)  # by another simulated node
    shared.usage_file(1, 0).write_bytes(shared.usage_file(0, 0).read_bytes())
    summary = summarize([alone, busy, idle, little, shared], {})
    disturbed = [run.disturbed for run in summary.runs]
    load = "other processes took 0.6 of the 2 CPUs that it had on host0"
    assert disturbed == [None, load, None, None, None]
    assert [run.speedup is None for run in summary.runs] == [False, True, False, False, False]
    assert summary.runs[1].not_compared_because.startswith(load)
    text = in_words(summary)
    assert f"not compared: {load}" in text


def test_where_no_run_of_its_kind_was_undisturbed_it_is_compared_and_called_uncertain(trained):
    runs = [trained(f"busy-{n}-{k}", ranks=n, own=0.7 * n, busy=n) for n in (1, 2) for k in "abc"]
    text = in_words(runs[:3])
    assert "ddp: 100 ± 0 samples/s on 1 rank, but other processes took 0.3 of the 1 CPU" in text
    summary = summarize(runs, {})
    assert [run.speedup for run in summary.runs[3:]] == pytest.approx([2.0] * 3)
    text = in_words(summary)
    assert "ddp: 2 ranks (1 x 2) are 2.00 times as fast as 1 (1 x 1): 100 %" in text
    assert "This is uncertain: other processes took 0.6 of the 2 CPUs that it had on host0." in text


def test_the_headline_is_not_about_a_run_that_was_left_out(trained, events):
    calm = trained("calm", ranks=1)
    fast = trained("fast", ranks=1, own=0.8, busy=1.0)
    events.write(
        fast, 0, [events.start(0, world_size=1, host="host0"), *events.steady([300.0] * 6)]
    )
    text = in_words(summarize([calm, fast], {}))
    assert text.startswith("ddp: 100 ± 0 samples/s on 1 rank.")
