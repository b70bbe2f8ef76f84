from __future__ import annotations

import json

import pytest
from rank_ends import rank_end

from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize, to_json

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
    assert value["final"] == {"loss": None, "accuracy": None}
    assert (value["world_size"], value["restarts"]) == (1, 0)
    for key in ("scheduler", "state", "samples_per_s", "step_time_s", "speedup", "verdict"):
        assert value[key] is None, key


def test_the_state_is_the_callers_until_there_is_a_verdict_which_the_json_has(make_run):
    going, ended = make_run("going", verdict=None), make_run("ended", verdict=KILLED)
    states = {"going": "running", "ended": "running"}
    summary = summarize([going, ended], states)
    assert [run.state for run in summary.runs] == ["running", "failed"]
    value = to_json(summary)[1]
    assert value["verdict"] == {"kind": "signal", "message": KILLED.message, "log": KILLED.log}
    assert value["restarts"] == 1


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


def test_the_size_is_that_of_the_ranks_that_ran(make_run, events):
    run = make_run("smaller", nodes=2, gpus=4)
    assert only(run).world_size == 8
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([10.0] * 3)])
    figures = only(run)
    assert (figures.nodes, figures.gpus_per_node, figures.world_size) == (1, 1, 1)
