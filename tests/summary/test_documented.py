"""The keys of the JSON and of the CSV are those that docs/summary-keys.md lists, with null for what
is not known."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from hpcdist.base.statistics import Interval
from hpcdist.bench.cells import CellTable, Findings, TimedCell
from hpcdist.runs.spec import Accounting
from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize, to_json
from hpcdist.summary.report.text import to_csv
from hpcdist.summary.values import (
    SCHEMA,
    AttemptSummary,
    Cell,
    ModelStates,
    RunSummary,
    VerdictSummary,
)

PAGE = Path(__file__).parent.parent.parent / "docs" / "summary-keys.md"
EVENTS_PAGE = PAGE.with_name("events.md")


def words(page):
    return {*re.findall(r"`(\w+)`", page.read_text())}


def test_the_page_lists_every_key_of_a_run_and_no_other_and_names_those_within():
    text = PAGE.read_text()
    table = text[text.index("| key | meaning |") :].split("\n\n")[0]
    cells = [re.sub(r"\{.*\}", "", line.split("|")[1]) for line in table.splitlines()[2:]]
    listed = [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(["schema", *RunSummary.__struct_fields__])
    assert f"version of these keys: {SCHEMA} |" in text
    for kind in (Cell, ModelStates, AttemptSummary, VerdictSummary, Accounting, Interval):
        assert {*kind.__struct_fields__} <= words(PAGE)
    for kind in (CellTable, TimedCell, Findings):
        assert {*kind.__struct_fields__} - {"cells"} <= words(EVENTS_PAGE)


def test_every_column_of_the_csv_is_a_documented_key(make_scaled):
    header, *_ = csv.reader(io.StringIO(to_csv(summarize(make_scaled(2), {}))))
    heads = {column.partition(".")[0] for column in header}
    assert heads <= {"schema", *RunSummary.__struct_fields__}


def test_json_has_every_key_and_null_for_what_is_not_known(make_run):
    (value,) = to_json(summarize([make_run("bare", verdict=None, scheduler=None)], {}))
    assert json.loads(json.dumps(value)) == value
    assert value["final"] == {"loss": None, "accuracy": None}
    assert (value["world_size"], value["restarts"]) == (1, 0)
    for key in ("scheduler", "state", "samples_per_s", "step_time_s", "speedup", "verdict"):
        assert value[key] is None, key


def test_the_state_is_the_callers_until_there_is_a_verdict_which_the_json_has(make_run):
    killed = Verdict(kind="signal", state="failed", message="m", exit_code_of_run=1, log="l")
    going, ended = make_run("going", verdict=None), make_run("ended", verdict=killed)
    states = {"going": "running", "ended": "running"}
    summary = summarize([going, ended], states)
    assert [run.state for run in summary.runs] == ["running", "failed"]
    value = to_json(summary)[1]
    assert value["verdict"] == {"kind": "signal", "message": "m", "log": "l"}


def test_a_rank_that_recorded_no_steps_makes_the_rate_unknown(make_run, events):
    run = make_run("half", gpus=2)
    events.write(run, 0, [events.start(0, world_size=2), *events.steady([100.0] * 4)])
    events.write(run, 1, [events.start(1, world_size=2)])
    (figures,) = summarize([run], {}).runs
    assert figures.samples_per_s is None
    assert figures.step_time_s.mean == pytest.approx(0.1)
    assert figures.not_compared_because == "only 1 of 2 ranks recorded steps"
