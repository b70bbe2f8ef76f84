"""Runs in trackers while they run: what is there meanwhile, after another life, and at the end."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from mlflow_database import copy_database

from hpcdist import tracking
from hpcdist.agent import script_trackers
from hpcdist.agent.script_trackers import find_mlflow_run, tracker_variables
from hpcdist.runs.verdict import Verdict
from hpcdist.summary.export.live import Live
from hpcdist.summary.export.series import read_history
from hpcdist.summary.export.tensorboard import EventFile

BEGUN_S = 1.7e9
LIMIT_S = 150.0  # a busy machine may stand still for a minute
DONE = Verdict(kind="done", state="done", message="all ranks are done", exit_code_of_run=0)


@pytest.fixture
def growing(make_run, events):
    """A run of one rank that goes on; windows of 10 steps are added to an attempt."""
    run = make_run("ddp-1", gpus=1, verdict=None, train={"lr": 0.25})

    def add(numbers, *, attempt=0, shift_s=0.0):
        windows = [
            events.window(
                step=10 * number,
                times_s=[0.1] * 10,
                samples=100,
                time_s=BEGUN_S + shift_s + number,
                number=number - 1,
                mean_loss=1.0 / number + attempt,
            )
            for number in numbers
        ]
        known = run.event_file(0, attempt)
        before = known.read_bytes() if known.exists() else b""
        events.write(
            run, 0, ([] if before else [events.start(0, world_size=1)]) + windows, attempt=attempt
        )
        known.write_bytes(before + known.read_bytes())

    run.add = add
    return run


def live(run, name, tracker, said=None):
    made = Live(run, name, tracker, (said if said is not None else []).append)
    (run.path / "tracking").mkdir(exist_ok=True)
    return made


# TensorBoard.


def scalars(run, name="loss/train"):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    tags = found.Tags()["scalars"]
    return (
        [(event.step, round(event.value, 4)) for event in found.Scalars(name)]
        if name in tags
        else []
    )


def test_tensorboard_grows_with_the_run_and_forgets_what_a_restart_does_again(growing):
    first = live(growing, "tensorboard", EventFile(growing.path / "tensorboard"))
    growing.add([1, 2])
    first.look()
    assert scalars(growing) == [(10, 1.0), (20, 0.5)]
    growing.add([3, 4])
    first.look()
    first.look()  # nothing is new
    assert [step for step, _ in scalars(growing)] == [10, 20, 30, 40]
    growing.add([3, 4, 5], attempt=1, shift_s=10.0)  # from the checkpoint of step 20
    first.look()
    assert scalars(growing) == [(10, 1.0), (20, 0.5), (30, 1.3333), (40, 1.25), (50, 1.2)]
    growing.write_verdict(DONE)
    first.finish("done", is_over=True)
    after = {
        name: [point.step for point in own] for name, own in read_history(growing.path).items()
    }
    for name, steps in after.items():
        assert [step for step, _ in scalars(growing, name)] == steps
    assert scalars(growing, "final/samples_per_s") == [(50, pytest.approx(100.0))]


def test_another_life_goes_on_where_the_one_before_it_ended(growing):
    folder = growing.path / "tensorboard"
    growing.add([1, 2])
    live(growing, "tensorboard", EventFile(folder)).finish("preempted", is_over=False)
    growing.add([3], attempt=1, shift_s=100.0)
    growing.write_verdict(DONE)
    (folder / f"events.out.tfevents.{time.time():.0f}.hpcdist.{os.getpid()}").unlink(
        missing_ok=True
    )
    live(growing, "tensorboard", EventFile(folder)).finish("done", is_over=True)
    assert [step for step, _ in scalars(growing)] == [30]  # those of the other file were there


def test_a_tracker_that_fails_is_tried_again_and_gets_everything(growing):
    class Failing:
        def __init__(self):
            self.points, self.fails = [], True

        def begin(self, export):
            self.settings = export.settings

        def add(self, points):
            if self.fails:
                raise ConnectionError("the server is away")
            self.points += points

        def end(self, export, *, is_over):
            self.ended = (export.run.state, is_over)

    tracker, said = Failing(), []
    follower = live(growing, "other", tracker, said)
    growing.add([1, 2])
    assert follower.look() == 10.0
    assert follower.look() == 20.0
    assert "ConnectionError: the server is away" in said[0]
    tracker.fails = False
    follower.look()
    assert [each.point.step for each in tracker.points if each.name == "loss/train"] == [10, 20]
    assert tracker.settings["train.lr"] == 0.25
    growing.write_verdict(DONE)
    follower.finish("done", is_over=True)
    assert tracker.ended == ("done", True)


# MLflow.


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory, lasting_process):
    """A real tracking server, by its address."""
    folder = tmp_path_factory.mktemp("mlflow")
    copy_database(folder / "mlflow.db", tmp_path_factory)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder / 'mlflow.db'}",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    command = [sys.executable, "-m", "flask", "--app", "mlflow.server:app", "run"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--port", str(port)], env=environment, cwd=folder, stdout=log, stderr=log
        )
    lasting_process(server.pid)
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                assert answer.status == 200
            break
        except OSError:
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield address
    server.terminate()
    server.wait(LIMIT_S)


@pytest.fixture
def mlflow_client(mlflow_server, monkeypatch):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow's own imports
        import mlflow

    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    mlflow.set_tracking_uri(mlflow_server)
    yield mlflow.MlflowClient(mlflow_server)
    mlflow.set_tracking_uri(None)


quiet = pytest.mark.filterwarnings("ignore:::(mlflow|sqlalchemy|alembic|pydantic|flask)")


@quiet
def test_a_real_mlflow_server_has_one_run_over_all_lives_while_it_runs(growing, mlflow_client):
    from hpcdist.summary.export.mlflow import TrackedRun

    def tracked():
        experiment = mlflow_client.get_experiment_by_name("ddp")
        return mlflow_client.search_runs([experiment.experiment_id])

    def steps(name="loss/train"):
        (run,) = tracked()
        return [one.step for one in mlflow_client.get_metric_history(run.info.run_id, name)]

    growing.add([1, 2])
    first = live(growing, "mlflow", TrackedRun())
    first.look()
    assert tracked()[0].info.status == "RUNNING"
    assert tracked()[0].data.params["train.lr"] == "0.25"
    assert steps() == [10, 20]
    growing.add([3])
    first.finish("preempted", is_over=False)
    assert tracked()[0].info.status == "RUNNING"

    growing.add([4, 5], attempt=1, shift_s=100.0)
    second = live(growing, "mlflow", TrackedRun())
    second.look()
    assert steps() == [10, 20, 30, 40, 50]
    growing.write_verdict(DONE)
    second.finish("done", is_over=True)
    (run,) = tracked()
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.note.content"] == "all ranks are done"
    assert run.data.metrics["final/samples_per_s"] == pytest.approx(100.0)
    assert {file.path for file in mlflow_client.list_artifacts(run.info.run_id)} == {
        *("settings.json", "summary.json")
    }


@quiet
def test_a_scripts_own_runs_go_on_in_a_later_attempt(mlflow_client, monkeypatch):
    import mlflow

    monkeypatch.setattr(script_trackers, "_FIND_LIMIT_S", LIMIT_S)
    variables = tracker_variables("ddp-7", "sweep-1", rank_place(0), os.environ)
    monkeypatch.setenv("MLFLOW_RUN_CONTEXT", variables["MLFLOW_RUN_CONTEXT"])
    assert find_mlflow_run("ddp-7", os.environ) == {}  # the first attempt has none yet
    mlflow.set_experiment("script")
    with mlflow.start_run() as begun:
        mlflow.log_metric("own", 1.0)
    found = find_mlflow_run("ddp-7", os.environ)
    assert found == {"MLFLOW_RUN_ID": begun.info.run_id}
    monkeypatch.setenv("MLFLOW_RUN_ID", found["MLFLOW_RUN_ID"])
    assert find_mlflow_run("ddp-7", os.environ) == {}  # the user's own wins
    with mlflow.start_run() as again:
        assert again.info.run_id == begun.info.run_id


def rank_place(rank):
    from rank_places import place

    return place(rank=rank)


def test_each_rank_has_a_wandb_run_of_its_own_in_one_group_unless_the_user_says_otherwise():
    first, third = (tracker_variables("ddp-7", "sweep-1", rank_place(rank), {}) for rank in (0, 3))
    assert (first["WANDB_RUN_ID"], third["WANDB_RUN_ID"]) == ("ddp-7", "ddp-7-rank3")
    assert first["WANDB_RESUME"] == third["WANDB_RESUME"] == "allow"
    assert first["WANDB_RUN_GROUP"] == third["WANDB_RUN_GROUP"] == "sweep-1"
    assert json.loads(third["MLFLOW_RUN_CONTEXT"])["hpcdist.rank"] == "3"
    own = {"WANDB_RESUME": "never", "WANDB_RUN_GROUP": "g", "MLFLOW_RUN_CONTEXT": "{}"}
    assert tracker_variables("ddp-7", "sweep-1", rank_place(0), own) == {}


# The processes.


def test_a_server_that_never_answers_holds_the_end_no_longer_than_its_limit(
    growing, monkeypatch, script_job_of
):
    with socket.create_server(("127.0.0.1", 0)) as mute:  # it accepts, and says nothing
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{mute.getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(tracking, "END_LIMIT_S", 0.5)
        growing.add([1, 2])
        said = []
        trackers = tracking.Trackers(growing, script_job_of(["mlflow"]), said.append)
        (pid,) = trackers.pids
        mute.settimeout(LIMIT_S)
        connection, _ = mute.accept()  # now it waits for an answer
        trackers.end(DONE, is_over=True)
        connection.close()
    assert said == ["mlflow had not all of the run after 0 s"]
    assert not Path(f"/proc/{pid}").exists()


@pytest.fixture
def script_job_of():
    from hpcdist.job.spec import Record, ScriptJob

    return lambda names: ScriptJob(name="s", script="s.py", record=Record(track=names))


def test_wandb_keeps_one_run_in_files_offline_over_both_lives(growing, monkeypatch, script_job_of):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(growing.path))  # nobody has logged in
    monkeypatch.setenv("WANDB_RUN_ID", "of-the-script")
    job = script_job_of(["wandb"])

    def life(*, is_over):
        said = []
        tracking.Trackers(growing, job, said.append).end(DONE, is_over=is_over)
        assert said == ["wandb has the run"], (growing.path / "tracking" / "wandb.log").read_text()

    monkeypatch.setattr(tracking, "END_LIMIT_S", LIMIT_S)
    growing.add([1, 2])
    life(is_over=False)
    growing.add([3], attempt=1, shift_s=100.0)
    growing.write_verdict(DONE)
    life(is_over=True)

    records = [
        kept_by_wandb(path)
        for path in sorted(growing.path.glob("tracking/wandb/offline-run-*/*.wandb"))
    ]
    assert len(records) == 2
    for kept in records:
        (run,) = [record.run for record in kept if record.HasField("run")]
        assert (run.run_id, run.project) == ("hpcdist-ddp-1", "ddp")
    losses = [
        [
            (values["steps"], values["loss/train"])
            for record in kept
            if record.HasField("history") and "loss/train" in (values := items(record.history.item))
        ]
        for kept in records
    ]
    assert losses == [[(10, 1.0), (20, 0.5)], [(30, pytest.approx(4 / 3))]]
    summaries = [
        items(record.summary.update) for record in records[1] if record.HasField("summary")
    ]
    assert {"state": "done", "verdict": "all ranks are done"}.items() <= summaries[
        -2
    ].items() | summaries[-1].items()


def items(found):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found}


def kept_by_wandb(path):
    """The records in one of wandb's files: LevelDB's log format, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole, records = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            records.append(Record())
            records[-1].ParseFromString(whole)
            whole = b""
    return records
