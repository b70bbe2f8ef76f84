"""Runs that something else disturbed are named, and not compared unless that is asked for."""

import random

import msgspec
import pytest

from hpcdist.base.text import format_percent
from hpcdist.summary import print_summary, summarize
from hpcdist.summary.figures import disturbance
from hpcdist.summary.figures.disturbance import Stay, find_overlaps
from hpcdist.summary.report.text import make_console

BEGIN_S = 1.7e9


@pytest.fixture
def trained(make_run, events):
    """A run of so many ranks, each with a CPU of its own, that began at a time of its day; what
    all processes of its host used of these CPUs, and its own ranks."""

    def make(name, *, ranks, at_s, rate=100.0, first_cpu=0, host="host0", busy=None, own=None):
        run = make_run(name, gpus=ranks)
        for rank in range(ranks):
            cpus = [first_cpu + rank]
            windows = events.steady([rate] * 6)
            for number, window in enumerate(windows, 1):
                window["time_s"] = BEGIN_S + at_s + number
            start = events.start(rank, world_size=ranks, host=host, cpus=cpus)
            events.write(run, rank, [start, *windows])
        cpus = list(range(first_cpu, first_cpu + ranks))
        busy, own = ranks if busy is None else busy, ranks if own is None else own
        lines = [
            {"event": "node", "begin_s": 0.0, "node": 0, "host": host, "cpus": cpus},
            {"event": "usage", "time_s": 0.0, "wall_s": 5.0, "samples": 3}
            | {"cpus_busy": spread(own), "bound_cpus_busy": spread(busy)},
        ]
        run.usage_file(0, 0).write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
        return run

    return make


def spread(mean):
    return {"mean": mean, "min": mean, "max": mean}


def told(capsys, summary):
    print_summary(summary, make_console())
    return " ".join(capsys.readouterr().out.split())


def test_runs_at_the_same_time_on_the_same_cpus_are_named_and_not_compared(trained, capsys):
    one, two = trained("one", ranks=1, at_s=0.0), trained("two", ranks=2, at_s=3.0)
    summary = summarize([one, two], {})
    assert [run.speedup for run in summary.runs] == [None, None]
    assert "two ran on the same CPUs of host0 for 50 % of its time" in summary.runs[0].disturbed
    assert "one ran on the same CPUs of host0" in summary.runs[1].disturbed
    assert all(run.losses is not None for run in summary.runs)  # by itself each is what it is
    text = told(capsys, summary)
    assert "--with-disturbed compares it all the same" in text
    assert "times as fast" not in text
    compared = summarize([one, two], {}, compares_disturbed=True).runs
    assert [run.speedup for run in compared] == pytest.approx([1.0, 2.0])
    assert all(run.disturbed for run in compared)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"at_s": 10.0}, id="later"),
        pytest.param({"first_cpu": 4}, id="on other CPUs"),
        pytest.param({"host": "host1"}, id="on another host"),
    ],
)
def test_runs_that_have_what_they_need_to_themselves_are_compared(trained, change):
    one, two = (
        trained("one", ranks=1, at_s=0.0),
        trained("two", **{"ranks": 2, "at_s": 0.0} | change),
    )
    summary = summarize([one, two], {})
    assert [run.disturbed for run in summary.runs] == [None, None]
    assert summary.runs[1].speedup == pytest.approx(2.0)


def test_simulated_nodes_that_share_cpus_do_not_disturb_each_other(trained):
    run = trained("one", ranks=2, at_s=0.0, own=1.0, busy=2.0)
    run.usage_file(1, 0).write_bytes(run.usage_file(0, 0).read_bytes())
    assert summarize([run], {}).runs[0].disturbed is None


def test_a_host_that_was_busy_with_other_work_disturbs_only_where_its_cpus_were_full(trained):
    alone = trained("alone", ranks=1, at_s=0.0)
    busy = trained("busy", ranks=2, at_s=10.0, own=1.4, busy=2.0)
    idle = trained("idle", ranks=2, at_s=20.0, own=1.2, busy=1.6)
    little = trained("little", ranks=2, at_s=30.0, own=1.9, busy=2.0)
    summary = summarize([alone, busy, idle, little], {})
    disturbed = [run.disturbed for run in summary.runs]
    load = "other processes took 0.6 of the 2 CPUs that it had on host0"
    assert disturbed == [None, load, None, None]
    assert [run.speedup is None for run in summary.runs] == [False, True, False, False]
    assert summary.runs[1].not_compared_because.startswith(load)


def drawn_stays(drawing, num_runs):
    """Stays of runs on one host, some of them twice, on few sets of CPUs."""
    stays = {}
    for number in range(num_runs):
        begins = [drawing.uniform(0, 100) for _ in range(drawing.choice([1, 1, 2]))]
        cpus = drawing.choice([[0], [1], [0, 1], [2, 3], []])
        stays[f"run-{number}"] = [
            Stay("host0", begin_s, begin_s + drawing.uniform(1, 60), cpus, []) for begin_s in begins
        ]
    return stays


def largest_shares(stays):
    """Largest share of each run's stays that another was on the same CPUs for, by all pairs."""
    largest = dict.fromkeys(stays, 0.0)
    for run, own in stays.items():
        for other in (each for name, theirs in stays.items() if name != run for each in theirs):
            for stay in own:
                both_s = min(stay.end_s, other.end_s) - max(stay.begin_s, other.begin_s)
                if {*stay.cpus} & {*other.cpus}:
                    largest[run] = max(largest[run], both_s / (stay.end_s - stay.begin_s))
    return largest


def test_of_many_runs_at_one_time_each_is_told_its_largest_overlap():
    for seed in range(60):
        stays = drawn_stays(random.Random(seed), 12)
        found = find_overlaps(stays)
        expected = {run: share for run, share in largest_shares(stays).items() if share > 0.05}
        assert found.keys() == expected.keys()
        for run, share in expected.items():
            assert f" for {format_percent(share)} % of its time" in found[run]
            assert not found[run].startswith(f"{run} ")


def test_a_thousand_runs_at_one_time_need_some_thousand_comparisons(monkeypatch):
    pairs = []
    overlap = disturbance._Overlap
    monkeypatch.setattr(disturbance, "_Overlap", lambda *args: pairs.append(1) or overlap(*args))
    stays = {f"run-{number}": [Stay("host0", number, 2000.0, [0], [])] for number in range(1000)}
    assert len(find_overlaps(stays)) == 1000
    assert len(pairs) < 5000
