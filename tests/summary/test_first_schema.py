"""Events of schema 1 are read with the figures that those of today give."""

from __future__ import annotations

import json
import shutil

import pytest
from step_histories import Shape, make_history, write

from hpcdist.runs.run import Run
from hpcdist.summary import summarize, to_json

WINDOW = (
    b'{"event":"steps","time_s":1795314429.5,"epoch":1,"step":8,"steps":4,"samples":256,'
    b'"wall_s":0.5,"step_time_s":{"sum":0.5,"sumsq":0.07,"min":0.1,"max":0.2},'
    b'"phases_s":{"data_wait":{"sum":0.1,"sumsq":0.0025,"min":0.025,"max":0.025},'
    b'"optimizer":{"sum":0.3,"sumsq":0.03,"min":0.05,"max":0.1}},'
    b'"histogram":{"-116":3,"-81":1},"loss":0.5}\n'
)
SHAPES = {
    "two nodes": Shape(nodes=2, ranks_per_node=2, skew=True, uneven_windows=True),
    "torn and foreign lines": Shape(ranks_per_node=2, lines_of_others=True),
    "restarts, the newest torn": Shape(
        ranks_per_node=2, stretches=((0, 80), (50, 90)), torn_rank=1
    ),
    "checkpoints in steps": Shape(ranks_per_node=3, saves="in steps", stretches=((0, 200),)),
}


def as_of_schema_1(line):
    """An event as it was written then; what is no event stays as it is."""
    try:
        event = json.loads(line)
    except ValueError:
        return line
    if event.get("schema") == 2:
        event["schema"] = 1
    if "mean_loss" in event:
        event["loss"] = event.pop("mean_loss")  # of the last batch then: it had no other
    for phase, time_s in event.get("phases_s", {}).items():
        event["phases_s"][phase] = {"sum": time_s, "sumsq": 9.0, "min": 9.0, "max": 9.0}
    if "histogram" in event:
        event["histogram"] = {
            str(int(first) + place): count
            for first, counts in event["histogram"].items()
            for place, count in enumerate(counts)
            if count
        }
    return json.dumps(event).encode() + b"\n"


@pytest.fixture
def figures():
    def read(run):
        summary = summarize([run], {})
        [found] = to_json(summary)
        faults = [text.removeprefix(str(run.path)) for text in summary.skipped]
        return found | {"path": None}, faults

    return read


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_runs_of_schema_1_have_the_same_figures(make_run, tmp_path, figures, shape):
    run = make_run("ddp-1", nodes=shape.nodes, gpus=shape.ranks_per_node)
    write(make_history(shape, seed=1), run)
    first = Run(tmp_path / "first" / run.id)
    shutil.copytree(run.path, first.path)
    for _, _, path in first.event_files():
        path.write_bytes(b"".join(map(as_of_schema_1, path.read_bytes().splitlines(keepends=True))))
    assert figures(first) == figures(run)
    assert figures(first)[0]["step_time_s"]["p95"] is not None


@pytest.mark.parametrize("torn", [b"", b'{"event":"steps","ti'], ids=["whole", "torn"])
def test_a_window_of_schema_1_is_read_as_it_was_written(make_run, figures, torn):
    run = make_run("ddp-1", gpus=1)
    start = b'{"event":"start","time_s":1795314428.0,"schema":1,"world_size":1}\n'
    run.event_file(0).write_bytes(start + WINDOW + torn)
    found, faults = figures(run)
    assert found["step_time_s"]["mean"] == pytest.approx(0.125)
    assert found["step_time_s"]["p50"] == pytest.approx(0.1, rel=0.01)
    assert found["step_time_s"]["p95"] == pytest.approx(0.2, rel=0.01)
    assert found["phase_s"] == pytest.approx(
        {"data_wait": 0.025, "optimizer": 0.075, "other": 0.025}
    )
    assert found["samples_per_s"]["mean"] == pytest.approx(512)
    assert len(faults) == bool(torn)
