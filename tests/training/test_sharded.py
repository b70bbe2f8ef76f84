"""Checkpoints in parts: whole or passed over, and read by any number of ranks."""

import os
import pickle
import resource
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from hpcdist.base.errors import HpcdistError
from hpcdist.job.spec import Model
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.checkpoint import sharded
from hpcdist.training.model.models import build_model

MLP = {"name": "mlp", "args": {"hidden": [1100]}}


@pytest.fixture
def job(make_job):
    """A job whose `train` and `checkpoint` sections can be added to."""

    def make(strategy="fsdp", checkpoint=None, **train):
        return make_job(
            strategy,
            model=MLP,
            train={"epochs": 1, "batch_size": 8, **train},
            checkpoint={"every_steps": 2, **(checkpoint or {})},
        )

    return make


def test_a_killed_fsdp_training_resumes_to_the_weights_of_an_uninterrupted_one(
    train_ranks, train_whole, job
):
    whole = train_whole(job(), 2)
    killed = train_ranks(job(), 2, kill_at_step=8)
    assert killed.state()["position"]["samples"] > 0
    resumed = train_ranks(job(), 2, run=killed.run, attempt=1)
    assert resumed.exit_codes == [0, 0], resumed.log(attempt=1)
    assert resumed.events("resume", attempt=1)[0]["exact"]
    _assert_same(resumed.weights(), whole.weights())
    assert len(resumed.checkpoints()) == 2
    assert not [name for name in os.listdir(resumed.run.checkpoints_folder) if name[0] == "."]


@pytest.mark.parametrize(
    ("strategy", "world_size"),
    [("fsdp", 3), ("single", 1), ("ddp", 2)],
    ids=["3 ranks", "a single process", "ddp"],
)
def test_a_checkpoint_in_parts_is_taken_over_by(train_ranks, job, strategy, world_size):
    first = train_ranks(job(max_steps=4), 2)
    resume = {"resume": str(first.checkpoints()[0])}
    taken = train_ranks(job(strategy, checkpoint=resume, max_steps=4), world_size)
    assert taken.exit_codes == [0] * world_size, taken.log()
    _assert_same(taken.weights(), first.weights())
    further = train_ranks(job(strategy, checkpoint=resume, max_steps=6), world_size)
    assert further.exit_codes == [0] * world_size, further.log()
    assert further.state()["position"]["step"] == 6


def test_a_whole_checkpoint_is_cut_up_for_fsdp(train_ranks, job):
    first = train_ranks(job("ddp", max_steps=4), 2)
    resume = {"resume": str(first.run.path)}
    further_ddp = train_ranks(job("ddp", checkpoint=resume, max_steps=6), 2)
    further = train_ranks(job("fsdp", checkpoint=resume, max_steps=6), 2)
    assert further.exit_codes == [0, 0], further.log()
    expected = further_ddp.weights()
    for name, value in further.weights().items():  # adam's moments were taken over, too
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5)


def test_a_damaged_part_has_the_checkpoint_before_taken(train_ranks, job):
    killed = train_ranks(job(checkpoint={"keep": 3}), 2, kill_at_step=8)
    newest, before, *_ = killed.checkpoints()
    assert checkpoint_files.is_intact(newest)
    part = newest / "__1_0.distcp"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    assert not checkpoint_files.is_intact(newest)
    resumed = train_ranks(job(), 2, run=killed.run, attempt=1)
    assert resumed.exit_codes == [0, 0]
    assert resumed.events("resume", attempt=1)[0]["checkpoint"] == before.name


def test_a_few_lines_of_torch_load_the_weights_elsewhere(train_ranks, job):
    done = train_ranks(job(max_steps=2), 2)
    [path] = done.checkpoints()
    model = build_model(Model(**MLP), (1, 8, 8), 10)
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp.load(weights, checkpoint_id=path, no_dist=True)
    _assert_same(model.state_dict(), done.weights())


def test_a_list_of_tensors_that_would_run_code_is_refused(tmp_path):
    model = torch.nn.Linear(2, 2)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(_RunsCode()))
    with pytest.raises(HpcdistError, match=r"asks for posix\._exit"):
        sharded.read(tmp_path, model, torch.optim.SGD(model.parameters()))


def _metadata(path, shape=(2, 2)):
    name = "optimizer.weight.exp_avg"
    properties = TensorProperties(dtype=torch.float32)
    tensor = TensorStorageMetadata(properties=properties, size=torch.Size(shape), chunks=[])
    place = _StorageInfo(path, 0, 100)
    return pickle.dumps(
        Metadata(state_dict_metadata={name: tensor}, storage_data={MetadataIndex(name): place})
    )


_PATH = b"cpathlib\nPosixPath\n"
_MANY_VALUES = b"\x80\x02Nr\xff\xff\xff\x07."
_LONG_BYTES = b"\x80\x05\x96" + (1 << 31).to_bytes(8, "little") + b"."
_LONG_PATH = _PATH + b"(Vaaaaaaaaaa\ntR" + b"2" + b"p0\n0" + (_PATH + b"(g0\ng0\ntRp0\n0") * 28


@pytest.mark.parametrize(
    "content",
    [
        *(_MANY_VALUES, _LONG_BYTES, _LONG_PATH + b"g0\n."),
        *(_metadata("../fifo"), _metadata("fifo"), _metadata("__0_0.distcp", (1 << 20, 1 << 20))),
    ],
    ids=["values", "bytes", "path", "elsewhere", "pipe", "shape"],
)
def test_a_list_of_tensors_takes_no_memory_and_does_not_block(tmp_path, content):
    folder = tmp_path / "step-00000001.dcp"
    folder.mkdir()
    for fifo in (tmp_path / "fifo", folder / "fifo"):
        os.mkfifo(fifo)
    (folder / "__0_0.distcp").write_bytes(b"")
    (folder / ".metadata").write_bytes(content)
    model = torch.nn.Linear(2, 2)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HpcdistError, match="is not a checkpoint that"):
        sharded.read(folder, model, torch.optim.SGD(model.parameters()))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 200_000


def test_a_list_of_tensors_that_is_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / ".metadata")
    model = torch.nn.Linear(2, 2)
    with pytest.raises(HpcdistError, match="it is a pipe"):
        sharded.read(tmp_path, model, torch.optim.SGD(model.parameters()))


def test_an_attempt_that_is_out_of_date_leaves_no_part(train_ranks, job):
    done = train_ranks(job(), 2, overtaken=True)
    assert 1 in done.exit_codes
    assert "a newer attempt of this run has begun" in done.log()
    assert list(done.run.checkpoints_folder.iterdir()) == []


class _RunsCode:
    def __reduce__(self):
        return os._exit, (3,)


def _assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
