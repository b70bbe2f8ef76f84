"""Runs the trainer in real ranks: forked processes, a gloo group, a run directory."""

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import connection

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from rank_places import environment_of, place
from torch.distributed import TCPStore
from torch.distributed.checkpoint import FileSystemReader

from hpcdist.job.spec import JOB_TYPES
from hpcdist.rank.board import ProgressBoard, ProgressSlot
from hpcdist.rank.context import RankContext, set_current
from hpcdist.runs.events import EventWriter, read_events
from hpcdist.runs.run import Run
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.workloads import load_workload
from hpcdist.workloads.rank_process import set_main

LIMIT_S = 100
VICTIMS_LIMIT_S = 2  # an agent would end them at once
torch.set_num_threads(1)  # threads of a parent do not live on in forked children


_OF_A_TRAINING = (
    "psutil",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "hpcdist.data.images.samples",
    "hpcdist.training.loop",
    "hpcdist.training.checkpoint.checkpoint",
    "hpcdist.workloads.train",
    "known_before_fork",
)


_OF_LIGHTNING = (
    "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook",
    "torch.distributed.checkpoint.state_dict",
    "torchvision.models",
    "hpcdist.training.lightning",
    *(["omegaconf"] if find_spec("omegaconf") else []),  # Lightning asks for it where it is there
)


def _import_for_ranks(names):
    """Import what each rank would import by itself, before any is forked."""
    for name in names:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or each rank copies, page by page, all that its collector looks through


@pytest.fixture(scope="session", autouse=True)
def imported_before_ranks_are_forked():
    """Only the processes that run these tests need it."""
    _import_for_ranks(_OF_A_TRAINING)
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def lightning_is_imported():
    """Before the ranks are forked, as what a training needs."""
    _import_for_ranks(_OF_LIGHTNING)


@pytest.fixture(scope="session")
def run_ranks(lasting_process):
    """Call it as `_run_ranks`, but for the port of a store, of which each training has its own."""
    process, ports = _serve_stores()
    lasting_process(process.pid)

    def run(*which, **options):
        ports.send("next")
        assert ports.poll(LIMIT_S)
        return _run_ranks(*which, port=ports.recv(), **options)

    yield run
    process.kill()
    process.join()


@pytest.fixture
def train_ranks(tmp_path, run_ranks):
    """Train a job with some ranks, each a process of its own; see `Training`."""

    def start(job, world_size=1, run=None, **options):
        run = run or Run.create(tmp_path / "runs", job.name)
        return Training(run, run_ranks(job, world_size, run, **options))

    return start


@dataclass
class Training:
    """What is left of a training whose ranks have ended."""

    run: Run
    exit_codes: list[int]

    def checkpoints(self):
        return checkpoint_files.list_checkpoints(self.run.checkpoints_folder)

    def state(self):
        """Return the content of the newest checkpoint beside its tensors."""
        return checkpoint.load_state(self.checkpoints()[0])

    def weights(self):
        """Those of the newest checkpoint, whole, in this process alone."""
        path = self.checkpoints()[0]
        stored = FileSystemReader(path).read_metadata().state_dict_metadata
        whole = {
            name: torch.empty(one.size, dtype=one.properties.dtype)
            for name, one in stored.items()
            if name.startswith("model.")
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that no other ranks take part
            dcp.load(whole, checkpoint_id=path, no_dist=True)
        return {name.removeprefix("model."): value for name, value in whole.items()}

    def events(self, kind, rank=0, attempt=0):
        found = read_events(self.run.event_file(rank, attempt))
        return [event for event in found if event["event"] == kind]

    def log(self, rank=0, attempt=0):
        return self.run.log_file(rank, attempt).read_text()


@pytest.fixture
def make_job():
    """Make a job of few and small steps; sections override parts of it."""
    return _make_job


def _make_job(strategy="ddp", workload="train", **sections):
    values = {
        "name": "test",
        "strategy": strategy,
        "data": {"train_samples": 203, "test_samples": 131},
        "train": {"epochs": 2, "batch_size": 16},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return msgspec.convert(values, JOB_TYPES[workload])


NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes):
        layers = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3)
        super().__init__(nn.Flatten(), *layers, nn.Linear(16, num_classes))
"""


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    """The name of a user's model, in the working directory."""
    (tmp_path / "nets_of_mine.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return "nets_of_mine:Net"


class KillingSlot(ProgressSlot):
    """Kills its rank when a step is finished."""

    def __init__(self, slot, at_step):
        self.__dict__.update(slot.__dict__)
        self._at_step = at_step

    def step(self, step):
        super().step(step)
        if step == self._at_step:
            os.kill(os.getpid(), signal.SIGKILL)


def _run_ranks(
    job,
    world_size,
    run,
    *,
    port,
    attempt=0,
    kill_at_step=None,
    stop_after=None,
    overtaken=False,
):
    """Fork the ranks and wait for them; `overtaken`: a newer attempt has begun; `stop_after`: so
    many steps of this attempt, as an agent would ask."""
    while run.newest_attempt() < attempt + overtaken:
        run.claim_attempt()
    board = ProgressBoard(world_size)
    if stop_after is not None:
        board.stop_at(stop_after)
    fork = multiprocessing.get_context("fork")

    def become(rank):
        slot = board.slot(rank)
        log = os.open(run.log_file(rank, attempt), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout, sys.stderr = (os.fdopen(to, "w", buffering=1, closefd=False) for to in (1, 2))
        its_place = place(ranks_per_node=world_size, rank=rank)
        os.environ.update(environment_of(its_place), MASTER_PORT=str(port))
        context = RankContext(
            **its_place.place_fields() | {"attempt": attempt, "restart_count": attempt},
            run=run,
            job=job,
            events=EventWriter(run.event_file(rank, attempt)),
            progress=slot if kill_at_step is None else KillingSlot(slot, kill_at_step),
        )
        try:
            set_main()
            set_current(context)
            load_workload(context.job).run(context)
        except SystemExit as leaving:
            os._exit(leaving.code)
        except BaseException:  # noqa: BLE001 - whatever it is, the log has it
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    processes = [fork.Process(target=become, args=(rank,)) for rank in range(world_size)]
    for process in processes:
        process.start()
    try:
        _wait(processes)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [process.exitcode for process in processes]


def _serve_stores():
    """Serve stores, one after the other, in a process of its own: they have threads, and a fork
    beside threads can block the child on a lock that one of them held."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()

    def serve():
        while theirs.recv():
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            theirs.send(store.port)

    process = fork.Process(target=serve)
    process.start()
    return process, ours


def _wait(processes):
    """Until all have ended; survivors of one that failed wait for it in vain, and are ended."""
    deadline = time.monotonic() + LIMIT_S
    first_failure_s = None
    while time.monotonic() < deadline and any(process.is_alive() for process in processes):
        connection.wait([process.sentinel for process in processes if process.is_alive()], 1.0)
        if any(process.exitcode for process in processes):
            first_failure_s = first_failure_s or time.monotonic()
            deadline = min(deadline, first_failure_s + VICTIMS_LIMIT_S)
