from __future__ import annotations

import json

import pytest
from rank_ends import rank_end

from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize, to_json

KEYS = {
    "run",
    "job",
    "scheduler",
    "state",
    "nodes",
    "gpus_per_node",
    "world_size",
    "samples_per_s",
    "step_time_s",
    "phase_s",
    "final",
    "peak_rss_bytes",
    "restarts",
    "speedup",
    "efficiency",
    "verdict",
}
KILLED = Verdict(
    kind="signal",
    state="failed",
    message="rank 3 (node 1, host b) was killed by SIGKILL after step 70",
    exit_code_of_run=1,
    first=rank_end(3, node=1, host="b", signal="SIGKILL", step=70),
    restarts=1,
    log="logs/rank-00003.log",
)


def only(run, states=None):
    (summary,) = summarize([run], states or {}).runs
    return summary


def test_json_has_every_key_and_null_for_what_is_not_known(make_run):
    (value,) = to_json(summarize([make_run("bare", verdict=None, scheduler=None)], {}))
    assert json.loads(json.dumps(value)) == value
    assert value.keys() >= KEYS
    assert value["final"] == {"loss": None, "accuracy": None}
    assert {key: value[key] for key in KEYS - {"final"}} == {
        "run": "bare",
        "job": "ddp",
        "scheduler": None,
        "state": None,
        "nodes": 1,
        "gpus_per_node": 1,
        "world_size": 1,
        "samples_per_s": None,
        "step_time_s": None,
        "phase_s": None,
        "peak_rss_bytes": None,
        "restarts": 0,
        "speedup": None,
        "efficiency": None,
        "verdict": None,
    }


def test_json_gives_the_verdict_of_a_failed_run(make_run):
    (value,) = to_json(summarize([make_run("dead", nodes=2, gpus=2, verdict=KILLED)], {}))
    assert value["verdict"] == {
        "kind": "signal",
        "message": "rank 3 (node 1, host b) was killed by SIGKILL after step 70",
        "log": "logs/rank-00003.log",
    }
    assert value["state"] == "failed"
    assert value["restarts"] == 1


def test_the_state_is_the_callers_until_there_is_a_verdict(make_run):
    going, ended = make_run("going", verdict=None), make_run("ended", verdict=KILLED)
    states = {"going": "running", "ended": "running"}
    assert [run.state for run in summarize([going, ended], states).runs] == ["running", "failed"]


def test_a_rank_that_recorded_no_steps_makes_the_rate_unknown(make_run, events):
    run = make_run("half", gpus=2)
    events.write(run, 0, [events.start(0, world_size=2), *events.steady([100.0] * 4)])
    events.write(run, 1, [events.start(1, world_size=2)])
    figures = only(run)
    assert figures.samples_per_s is None
    assert figures.step_time_s.mean == pytest.approx(0.1)
    assert figures.not_compared_because == "only 1 of 2 ranks recorded steps"


def test_windows_without_a_step_give_no_figures(make_run, events):
    run = make_run("still")
    nothing = {"sum": 0.0, "sumsq": 0.0, "min": 0.0, "max": 0.0}
    (window,) = events.steady([1.0])
    empty = {"steps": 0, "samples": 0, "wall_s": 0.0, "step_time_s": nothing, "histogram": {}}
    events.write(run, 0, [events.start(0, world_size=1), window | empty, events.end()])
    figures = only(run)
    assert figures.step_time_s is None
    assert figures.samples_per_s is None
    assert figures.phase_s is None


def test_a_restart_counts_steps_once_as_progress_and_every_time_as_work(make_run, events):
    run = make_run("restarted", gpus=2)
    for rank in range(2):
        start = events.start(rank, world_size=2)
        first = [
            start,
            *events.steady([100.0] * 10),
            {"event": "epoch", "time_s": 1.0, "epoch": 3, "step": 90},
            {"event": "evaluate", "time_s": 1.0, "step": 90, "loss": 0.9, "accuracy": 0.5},
            events.end(step=100, max_rss_bytes=5_000_000 + rank),
        ]
        died_at_once = [start, events.end(step=0, status="killed")]
        second = [
            start,
            {"event": "resume", "time_s": 2.0, "step": 60, "epoch": 2},
            *events.steady([200.0] * 6, first_step=60),
            {"event": "epoch", "time_s": 2.0, "epoch": 4, "step": 120},
            {"event": "evaluate", "time_s": 2.0, "step": 120, "loss": 0.4, "accuracy": 0.8},
            {"event": "note", "time_s": 2.0, "message": "resumed"},
            events.end(step=120, max_rss_bytes=4_000_000),
        ]
        for attempt, made in enumerate((first, died_at_once, second)):
            events.write(run, rank, made, attempt=attempt)
    figures = only(run)
    assert figures.restarts == 2
    assert (figures.steps, figures.epochs, figures.lost_steps) == (120, 4, 40)
    assert (figures.final.loss, figures.final.accuracy) == (0.4, 0.8)
    assert figures.peak_rss_bytes == 5_000_001
    assert figures.notes == ["resumed"]
    # Without the first window of each attempt: 9 s at 2 x 100 and 2.5 s at 2 x 200 samples/s.
    assert figures.samples_per_s.mean == pytest.approx((9 * 200 + 2.5 * 400) / 11.5)
    assert figures.step_time_s.mean == pytest.approx((90 * 0.1 + 50 * 0.05) / 140)


def test_work_that_is_known_after_the_last_known_step_is_not_lost(make_run, events):
    """An attempt that has no end evaluated, or saved, after the last window that was written."""
    run = make_run("restarted", verdict=None)
    start = events.start(0, world_size=1)
    windows = [
        window | {"time_s": 1001.0 + n} for n, window in enumerate(events.steady([100.0] * 4))
    ]
    test = {"event": "evaluate", "time_s": 1054.0, "step": 40, "loss": 0.4, "accuracy": 0.8}
    again = [
        window | {"time_s": 1101.0 + n}
        for n, window in enumerate(events.steady([100.0] * 4, first_step=40))
    ]
    events.write(run, 0, [start, *windows, test])
    events.write(run, 0, [start, *again], attempt=1)
    assert only(run).lost_time_s == pytest.approx(1100 - 1054)


def test_progress_is_that_of_the_newest_attempt_that_stepped(make_run, events):
    run = make_run("dead", verdict=KILLED)
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([100.0] * 5)])
    events.write(run, 0, [events.start(0, world_size=1), events.end(step=0)], attempt=1)
    figures = only(run)
    assert (figures.steps, figures.epochs, figures.lost_steps) == (50, 0, 0)
    assert figures.train_loss == 1.0


def test_the_size_is_that_of_the_ranks_that_ran(make_run, events):
    run = make_run("smaller", nodes=2, gpus=4)
    assert only(run).world_size == 8
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([10.0] * 3)])
    figures = only(run)
    assert (figures.nodes, figures.gpus_per_node, figures.world_size) == (1, 1, 1)
