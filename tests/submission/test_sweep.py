"""What a sweep is made of, before anything is submitted."""

import msgspec
import pytest

from hpcdist.base.errors import JobError, RunNotFoundError, UserError
from hpcdist.monitor.states import exit_code_of_all
from hpcdist.runs.run import Run, Sweep, find_runs
from hpcdist.runs.verdict import Verdict
from hpcdist.submission.dependencies import find_after
from hpcdist.submission.points import (
    make_axes,
    make_points,
    parse_sweeps,
)


def axes(*texts):
    return parse_sweeps(texts)


def values(*texts, **options):
    return [point.values for point in make_points(axes(*texts), **options)]


def test_keys_multiply_within_one_option_and_between_several():
    expected = [
        {"resources.nodes": nodes, "resources.gpus": gpus, "train.lr": lr}
        for nodes in (1, 2)
        for gpus in (1, 2)
        for lr in (0.1, 0.01)
    ]
    assert values("nodes=1,2 gpus=1,2", "train.lr=0.1,0.01") == expected
    assert values("nodes=1,2", "gpus=1,2 train.lr=1e-1,0.01") == expected
    assert values("nodes=1 gpus=1,2", "resources.nodes=2 train.lr=0.1,0.01") == expected


def test_repeats_of_a_point_follow_each_other():
    points = make_points(axes("nodes=1,2"), num_repeats=2)
    assert [(point.index, point.repeat) for point in points] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert points[1].label == "nodes=1 repeat=1"
    assert values(num_repeats=3) == [{}, {}, {}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("k=[1,2],[3]", [[1, 2], [3]]),
        ("k={a: 1, b: [2,3]},{a: 4}", [{"a": 1, "b": [2, 3]}, {"a": 4}]),
        ("k=it's,that", ["it's", "that"]),
        ("k=['it, is',x],y", [["it, is", "x"], "y"]),
        ("k=docker://a/b:1,c", ["docker://a/b:1", "c"]),
        ("k='',null,true,1e-3", ["", None, True, 1e-3]),
    ],
)
def test_commas_and_spaces_within_brackets_and_quotes_do_not_split(text, expected):
    assert [flag.value for flag in axes(text)["k"]] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes", "'nodes' must be key=value,value"),
        ("a..b=1", "'a..b=1' must be key=value,value"),
        ("nodes=", "'nodes=' must be key=value,value"),
        ("nodes=1,,2", "'nodes=1,,2' must be key=value,value"),
        ("args=[a,b", "'args=[a,b' must be key=value,value"),
    ],
)
def test_a_mistake_names_the_option_and_what_is_wrong(text, message):
    with pytest.raises(JobError) as caught:
        axes(text)
    assert message in caught.value.message
    assert caught.value.message.startswith("--sweep")
    assert caught.value.hint


def test_more_points_than_anyone_wants_are_refused_before_they_are_made():
    many = ",".join(map(str, range(300)))
    with pytest.raises(JobError, match="has 27000000 points, must be from 1 to 10000"):
        make_points(axes(f"a={many} b={many} c={many}"))


def test_values_from_python_are_axes_too():
    made = make_axes({"nodes": [1, 2], "train.lr": [0.1]}.items(), origin="over")
    labels = [point.label for point in make_points(made)]
    assert labels == ["nodes=1 train.lr=0.1", "nodes=2 train.lr=0.1"]
    with pytest.raises(JobError, match="the sweep has 0 points"):
        make_points(make_axes([("nodes", [])], origin="over"))


def ended(code):
    return Verdict(kind="done", state="done", message="", exit_code_of_run=code)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([0, 1], 1), ([0, 75], 75), ([75, 1], 1), ([0, None], 1)],
)
def test_the_exit_code_of_a_sweep_is_that_of_its_worst_run(codes, expected):
    verdicts = [None if code is None else ended(code) for code in codes]
    assert exit_code_of_all(verdicts) == expected


@pytest.fixture
def runs(tmp_path):
    """A sweep of three runs, and a run by itself that is older."""

    def make(name, created_s, sweep=None):
        run = Run(tmp_path / name)
        run.make()
        spec = {"created_s": created_s} | ({"sweep": {"id": sweep}} if sweep else {})
        run.spec_file.write_bytes(msgspec.json.encode(spec))
        return run

    make("ddp-1", 1)
    sweep = Sweep(tmp_path / "ddp-2")
    sweep.path.mkdir()
    sweep.write()
    for index in (2, 0, 1):
        make(f"ddp-2-00{index}", 2, sweep="ddp-2")
    return tmp_path


@pytest.mark.parametrize("name", ["ddp-2", "last", "{path}"])
def test_the_name_of_a_sweep_stands_for_its_runs_in_their_order(runs, name):
    found = find_runs(runs, name.format(path=runs / "ddp-2"))
    assert [run.id for run in found] == ["ddp-2-000", "ddp-2-001", "ddp-2-002"]


@pytest.mark.parametrize("text", ["ddp-1", "ok:ddp-1", "any:ddp-1"])
def test_after_is_a_kind_and_a_run(runs, text):
    for other in ("oks:last", "notok:last", "any:"):
        with pytest.raises(UserError, match="KIND one of ok, any"):
            find_after(runs, other)
    kind, name, (run,) = find_after(runs, text)
    assert (kind, name, run.id) == (text.partition(":")[0] if ":" in text else "ok", *["ddp-1"] * 2)


def test_the_beginning_of_a_name_must_be_one_sweeps_only(runs):
    assert [run.id for run in find_runs(runs, "ddp-1")] == ["ddp-1"]
    assert [run.id for run in find_runs(runs, "ddp-2-001")] == ["ddp-2-001"]
    for name, number in (("ddp-", 4), ("ddp-2-", 3)):  # more than a sweep's id is no name of it
        with pytest.raises(RunNotFoundError, match=rf"{number} runs in .* begin with '{name}'"):
            find_runs(runs, name)
    with pytest.raises(RunNotFoundError, match="begins with 'ddpp'") as raised:
        find_runs(runs, "ddpp")
    assert raised.value.hint.endswith("list them with: hpcdist runs")
