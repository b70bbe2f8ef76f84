"""Runs in TensorBoard and in MLflow, read back with these tools' own readers."""

from __future__ import annotations

import importlib.util

import msgspec
import pytest
from mlflow_database import copy_database

from hpcdist.base.errors import UserError
from hpcdist.cli.main import main
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize
from hpcdist.summary.export.series import need_package, read_history, settings_of
from hpcdist.summary.export.tensorboard import write_event_files

BEGUN_S = 1.7e9
FAILED = Verdict(kind="exit", state="failed", message="rank 0 left with 3", exit_code_of_run=1)


@pytest.fixture
def trained(make_run, events):
    """A run of two ranks: four windows of 10 steps, 100 samples/s of each rank, an evaluation."""

    def make(name="ddp-2", *, num_windows=4, verdict=Verdict, **settings):
        known = {} if verdict is Verdict else {"verdict": verdict}
        run = make_run(name, gpus=2, **known, **settings)
        add(run, num_windows=num_windows)
        return run

    def add(run, *, num_windows):
        for rank in range(2):
            windows = [
                events.window(
                    step=10 * number,
                    times_s=[0.1] * 10,
                    samples=100,
                    phases_s={"data_wait": [0.02] * 10, "optimizer": [0.03] * 10},
                    time_s=BEGUN_S + number,
                    loss=2.0 / number + rank,
                )
                for number in range(1, num_windows + 1)
            ]
            evaluation = {
                "event": "evaluate",
                "time_s": BEGUN_S + 9,
                "step": 10 * num_windows,
                "loss": 0.25,
                "accuracy": 0.9,
            }
            memory = {
                "event": "memory",
                "time_s": BEGUN_S + 1,
                "step": 1,
                "peak_bytes": 2**20,
                "parameter_bytes": 4,
                "gradient_bytes": 4,
                "optimizer_bytes": 8,
            }
            start = events.start(rank, world_size=2)
            events.write(run, rank, [start, *windows, evaluation, memory, events.end()])

    make.add = add
    return make


# The series.


def test_series_have_steps_wall_times_and_values_of_all_ranks_where_they_say_so(trained):
    history = read_history(trained().path)

    moments = [(10 * number, BEGUN_S + number) for number in (1, 2, 3, 4)]
    assert [point[:2] for point in history["loss/train"]] == moments
    assert [point.value for point in history["loss/train"]] == [2.0, 1.0, pytest.approx(2 / 3), 0.5]
    assert [point[:2] for point in history["speed/samples_per_s"]] == moments
    rates = [point.value for point in history["speed/samples_per_s"]]
    assert rates == pytest.approx([200.0] * 4)
    assert [point.value for point in history["speed/step_time_s"]] == pytest.approx([0.1] * 4)
    shares = {
        name.partition("/")[2]: points[0].value
        for name, points in history.items()
        if name.startswith("phase_share/")
    }
    assert shares == pytest.approx({"data_wait": 0.2, "optimizer": 0.3, "other": 0.5})
    assert history["loss/test"] == [(40, BEGUN_S + 9, 0.25)]
    assert history["accuracy/test"] == [(40, BEGUN_S + 9, 0.9)]
    assert history["memory/peak_bytes"] == [(1, BEGUN_S + 1, 2**20)]


def test_what_a_restart_did_again_counts_once_and_the_rate_needs_every_rank(trained, events):
    run = trained()
    again = events.steady([50.0, 50.0], first_step=20)
    events.write(run, 0, [events.start(0, world_size=2), *again], attempt=1)
    history = read_history(run.path)
    assert [point.step for point in history["loss/train"]] == [10, 20, 30, 40]
    assert [point.value for point in history["loss/train"]][2:] == [1.0, 1.0]
    assert [point.step for point in history["speed/samples_per_s"]] == [10, 20]
    steps = [point.step for point in history["speed/step_time_s"]]
    assert steps == sorted(set(steps))


def test_what_was_used_is_of_all_nodes_and_stands_at_the_step_of_its_moment(trained):
    run = trained()
    write_usage(run, node=0, clock_ahead_s=0.0, cpus_busy=[1.0, 2.0], utilization=[0.5, 0.75])
    write_usage(run, node=1, clock_ahead_s=-90.0, cpus_busy=[3.0, 5.0], utilization=[0.25, 1.0])
    history = read_history(run.path)

    moments = [(10, BEGUN_S + 1.5), (30, BEGUN_S + 3.5)]
    expected = {
        "usage/cpus_busy": [4.0, 7.0],
        "usage/gpu_utilization": [0.375, 0.875],
        "usage/gpu_power_w": [100.0, 100.0],
        "usage/max_gpu_memory_bytes": [2**31, 2**31],
    }
    used = {name: points for name, points in history.items() if name.startswith("usage/")}
    assert {name: [point.value for point in points] for name, points in used.items()} == expected
    assert all([point[:2] for point in points] == moments for points in used.values())

    run.usage_file(1, 0).write_bytes(b"torn")
    assert [point.value for point in read_history(run.path)["usage/cpus_busy"]] == [1.0, 2.0]


def test_what_a_benchmark_without_steps_used_stands_at_no_step(make_run):
    run = make_run("allreduce-1")
    run.event_file(0).write_bytes(b"")
    write_usage(run, node=0, clock_ahead_s=0.0, cpus_busy=[1.0, 2.0], utilization=[0.5, 0.75])
    assert [point.step for point in read_history(run.path)["usage/cpus_busy"]] == [0, 0]


def write_usage(run, *, node, clock_ahead_s, cpus_busy, utilization):
    """Two windows, that end 1.5 and 3.5 s after the run began, with a GPU."""
    begun_s = BEGUN_S + clock_ahead_s

    def even(value):
        return {"mean": value, "max": value}

    events = [{"event": "node", "time_s": begun_s, "begin_s": begun_s, "node": node}]
    for end_s, cpus, busy in zip((1.5, 3.5), cpus_busy, utilization, strict=True):
        gpu = {
            "utilization": even(busy),
            "memory_bytes": {"mean": 2**30, "max": 2**31},
            "power_w": even(100.0),
        }
        events.append(
            {
                "event": "usage",
                "time_s": begun_s + end_s,
                "wall_s": 1.5,
                "samples": 3,
                "cpus_busy": even(cpus),
                "gpus": [gpu],
            }
        )
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    run.usage_file(node, 0).write_bytes(lines)


def test_settings_are_flat_and_hold_no_secret():
    spec = {
        "job": {
            "name": "ddp",
            "train": {"lr": 0.1, "max_steps": None, "compile": False},
            "environment": {"API_KEY": "abcdefgh123", "MODE": "fast"},
            "args": ["--token", "abcdefgh123", "--n", "3"],
        },
        "versions": {"torch": "2.15.0"},
    }
    assert settings_of(RunSpec.decode(spec)) == {
        "train.lr": 0.1,
        "train.compile": False,
        "environment.API_KEY": "***",
        "environment.MODE": "fast",
        "args": '["--token", "***", "--n", "3"]',
        "torch": "2.15.0",
    }


def test_a_package_that_is_not_there_is_an_error_that_names_the_command():
    name = "hpcdist-no-such-package"
    assert importlib.util.find_spec(name) is None
    with pytest.raises(UserError, match=f"--{name} needs the package {name}") as raised:
        need_package(name)
    assert raised.value.hint == f"install it: pip install 'hpcdist[{name}]'"


# TensorBoard.


@pytest.fixture
def read(tmp_path):
    """Write event files, and read them back with TensorBoard's own reader, by folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "tensorboard"

    def read(*runs):
        write_event_files(summarize(runs, {}), folder)
        found = {}
        for path in sorted(path for path in folder.iterdir() if path.is_dir()):
            found[path.name] = EventAccumulator(str(path), size_guidance={"scalars": 0})
            found[path.name].Reload()
        return found

    read.folder = folder
    return read


def test_tensorboard_reads_every_run_with_its_steps_and_times(trained, read):
    found = read(trained("ddp-2"), trained("ddp-2b", num_windows=2))
    assert list(found) == ["ddp-2", "ddp-2b"]
    loss = found["ddp-2"].Scalars("loss/train")
    assert [(event.step, event.wall_time) for event in loss] == [
        (10 * number, BEGUN_S + number) for number in (1, 2, 3, 4)
    ]
    assert [event.value for event in loss] == pytest.approx([2.0, 1.0, 2 / 3, 0.5])
    (final,) = found["ddp-2"].Scalars("final/samples_per_s")
    assert (final.step, final.value) == (40, pytest.approx(200.0))


def test_tensorboard_compares_runs_by_their_settings(trained, read):
    from tensorboard.plugins.hparams import metadata

    found = read(trained(train={"lr": 0.25}))["ddp-2"]
    content = found.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["train.lr"].number_value == 0.25
    assert start.hparams["world_size"].number_value == 2
    assert start.hparams["strategy"].string_value == "ddp"
    assert start.group_name == "ddp-2"
    end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
    assert end.status == 1  # success


def test_event_files_written_again_replace_ours_and_nothing_else(trained, read):
    run = trained(num_windows=2)
    first = read(run)["ddp-2"]
    assert len(first.Scalars("loss/train")) == 2
    foreign = read.folder / "ddp-2" / "events.out.tfevents.1.other"
    foreign.write_bytes(b"")
    trained.add(run, num_windows=4)
    again = read(run)["ddp-2"]
    assert [event.step for event in again.Scalars("loss/train")] == [10, 20, 30, 40]
    assert foreign.exists()
    assert len(list(read.folder.rglob("*"))) == 3


def test_a_run_that_recorded_nothing_still_has_its_settings(make_run, read):
    (found,) = read(make_run("bare", verdict=FAILED)).values()
    assert found.Tags()["scalars"] == ["final/restarts"]
    assert "_hparams_/session_start_info" in found.PluginTagToContent("hparams")


def test_event_files_that_cannot_be_written_are_an_error_with_the_path(trained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="event files cannot be written"):
        write_event_files(summarize([trained()], {}), tmp_path / "file")


# MLflow.


@pytest.fixture
def mlflow_store(tmp_path, monkeypatch, tmp_path_factory):
    """A database of its own, in a working directory of its own: artifacts go there."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow's own imports
        import mlflow
        import mlflow.store.tracking.sqlalchemy_store

    monkeypatch.chdir(tmp_path)
    copy_database(tmp_path / "mlflow.db", tmp_path_factory)
    return mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.fixture
def import_into(mlflow_store):
    from hpcdist.summary.export.mlflow import import_runs

    def import_into(*runs: Run, states=None):
        return import_runs(summarize(runs, states or {}), mlflow_store.tracking_uri)

    return import_into


def tracked(client, job="ddp"):
    experiment = client.get_experiment_by_name(job)
    found = client.search_runs([experiment.experiment_id])
    return {run.info.run_name: run for run in found}


pytestmark_mlflow = pytest.mark.filterwarnings("ignore:::(mlflow|sqlalchemy|alembic|pydantic)")


@pytestmark_mlflow
def test_mlflow_has_an_experiment_per_job_with_params_metrics_and_why_a_run_ended(
    trained, mlflow_store, import_into
):
    done = trained("ddp-2", train={"lr": 0.25})
    failed = trained("ddp-3", verdict=FAILED)
    assert import_into(done, failed) == {"new": 2, "updated": 0, "unchanged": 0}
    found = tracked(mlflow_store)
    run = found["ddp-2"]
    assert run.info.status == "FINISHED"
    assert run.data.params["train.lr"] == "0.25"
    assert run.data.metrics["final/samples_per_s"] == pytest.approx(200.0)
    history = mlflow_store.get_metric_history(run.info.run_id, "loss/train")
    assert [(one.step, one.timestamp, one.value) for one in history] == [
        (10 * number, round((BEGUN_S + number) * 1e3), pytest.approx(2 / number))
        for number in (1, 2, 3, 4)
    ]
    assert {file.path for file in mlflow_store.list_artifacts(run.info.run_id)} == {
        "settings.json",
        "summary.json",
    }
    assert found["ddp-3"].info.status == "FAILED"
    assert found["ddp-3"].data.tags["mlflow.note.content"] == FAILED.message


@pytestmark_mlflow
def test_runs_that_are_imported_again_are_not_there_twice(trained, mlflow_store, import_into):
    going = trained("ddp-2", num_windows=2, verdict=None)
    assert import_into(going, states={"ddp-2": "running"})["new"] == 1
    (run,) = tracked(mlflow_store).values()
    assert run.info.status == "RUNNING"

    trained.add(going, num_windows=4)
    going.write_verdict(FAILED)
    assert import_into(going) == {"new": 0, "updated": 1, "unchanged": 0}
    (run,) = tracked(mlflow_store).values()
    assert run.info.status == "FAILED"
    history = mlflow_store.get_metric_history(run.info.run_id, "loss/train")
    assert [one.step for one in history] == [10, 20, 30, 40]
    assert import_into(going) == {"new": 0, "updated": 0, "unchanged": 1}


@pytestmark_mlflow
def test_figures_that_come_with_other_runs_are_added_to_a_run_that_is_there(
    trained, make_run, events, mlflow_store, import_into
):
    large = trained("ddp-2")
    import_into(large)
    small = make_run("ddp-1", gpus=1)
    events.write(small, 0, [events.start(0, world_size=1), *events.steady([125.0] * 4)])
    assert import_into(small, large) == {"new": 1, "updated": 1, "unchanged": 0}
    metrics = tracked(mlflow_store)["ddp-2"].data.metrics
    assert metrics["final/speedup"] == pytest.approx(1.6)
    assert metrics["final/efficiency"] == pytest.approx(0.8)


@pytestmark_mlflow
def test_the_command_says_what_an_import_did_and_what_is_no_address(trained, mlflow_store, capsys):
    trained()
    assert main(["summary", "--mlflow", mlflow_store.tracking_uri]) == 0
    assert "runs in MLflow: 1 new, 0 updated, 0 unchanged" in capsys.readouterr().err
    assert main(["summary", "--mlflow", "folder"]) == 2
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith("error: --mlflow folder: ")
    assert hint.startswith("hint: ")


@pytestmark_mlflow
def test_mlflow_that_cannot_be_reached_is_an_error_with_its_address(trained, monkeypatch):
    from hpcdist.summary.export.mlflow import import_runs

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match=r"--mlflow http://\*\*\*@127\.0\.0\.1:9: ") as raised:
        import_runs(summarize([trained()], {}), "http://me:hidden@127.0.0.1:9")
    assert "hidden" not in raised.value.message
    assert "sqlite:///" in raised.value.hint
