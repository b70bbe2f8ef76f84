"""Runs of one job with different settings are told apart, and never compared."""

import io
import json
import re

from hpcdist.cli.main import main
from hpcdist.summary import print_summary, summarize
from hpcdist.summary.report.text import make_console


def printed(runs):
    text = io.StringIO()
    print_summary(summarize(runs, {}), make_console(text))
    return text.getvalue()


def test_runs_with_other_settings_have_them_in_a_column_and_none_is_the_headline(add_run):
    runs = [add_run(100.0), add_run(180.0, train={"precision": "bf16-mixed"})]
    text = printed(runs)
    assert " ".join(text.split("\n\n")[0].split()) == (
        "ddp: its runs differ in train.precision, so they are not compared: 100 ± 0 samples/s on "
        "1 rank with precision=fp32; 180 ± 0 samples/s on 1 rank with precision=bf16-mixed."
    )
    header, first, second = (
        line.split() for line in text.splitlines() if re.match(r"# +run|[12] +ddp", line)
    )
    assert header[:4] == ["#", "run", "precision", "state"]
    assert (first[2], second[2]) == ("fp32", "bf16-mixed")


def test_the_settings_of_the_sizes_that_lead_are_named(add_run):
    runs = [add_run(100.0), add_run(190.0, gpus=2), add_run(900.0, train={"precision": "tf32"})]
    text = printed(runs)
    assert text.startswith("ddp with precision=fp32: 2 ranks (1 x 2) are 1.90 times as fast as 1")
    summary = summarize(runs, {})
    assert [run.differs_in for run in summary.runs] == [
        {"train.precision": precision} for precision in ("fp32", "fp32", "tf32")
    ]


def test_what_repeats_and_sizes_may_differ_in_is_no_setting(add_run):
    weak = [add_run(100.0, train={"seed": 1}), add_run(190.0, gpus=2, train={"seed": 2})]
    strong = [add_run(100.0, job="strong", train={"batch_size": 32})]
    strong += [add_run(190.0, gpus=2, job="strong", train={"batch_size": 16})]
    never_began = add_run(100.0)
    never_began.event_file(0, 0).unlink()
    summary = summarize([*weak, *strong, never_began], {})
    assert [run.differs_in for run in summary.runs] == [{}] * 5
    assert "precision" not in printed(weak)


def test_arguments_stand_as_a_command_line(add_run):
    runs = [add_run(100.0), add_run(50.0)]
    for run, args in zip(runs, ([], ["--name", "a b"]), strict=True):
        spec = json.loads(run.spec_file.read_text())
        spec["job"] |= {"workload": "script", "args": args}
        run.spec_file.write_text(json.dumps(spec))
    assert [run.differs_in for run in summarize(runs, {}).runs] == [
        {"args": "none"},
        {"args": "--name 'a b'"},
    ]


def test_many_settings_are_counted(add_run):
    train = {"precision": "tf32", "batch_size": 8, "accumulate": 2, "epochs": 3}
    runs = [add_run(100.0), add_run(50.0, train=train)]
    _, other = summarize(runs, {}).runs
    assert other.settings_text == "accumulate=2, batch_size=8, 2 more"
    lines = [line.split() for line in printed(runs).splitlines()]
    assert ["2", "ddp-01", "2", "8", "3,", "tf32", "done"] in [line[:7] for line in lines]


def test_one_process_without_its_gpus_has_the_size_that_was_asked_for_and_no_speed_up(
    make_run, events, monkeypatch, capsys, tmp_path
):
    runs = []
    for gpus in (1, 2, 2, 4):
        run = make_run(f"dp-{gpus}-{len(runs)}", gpus=gpus, strategy="data_parallel")
        events.write(run, 0, [events.start(0, world_size=1), *events.steady([100.0 * gpus] * 5)])
        runs.append(run)
    summary = summarize(runs, {})
    assert [(run.nodes, run.gpus_per_node) for run in summary.runs] == [
        (1, gpus) for gpus in (1, 2, 2, 4)
    ]
    assert [run.speedup for run in summary.runs] == [None] * 4
    assert [run.cell and run.cell.num_measured for run in summary.runs] == [*(1, 2, 2, 1)]
    monkeypatch.setenv("HPCDIST_RUNS", str(tmp_path / "runs"))
    assert main(["runs", "--json"]) == 0
    listed = {run["run"]: run["gpus_per_node"] for run in json.loads(capsys.readouterr().out)}
    assert listed == {run.run: run.gpus_per_node for run in summary.runs}
