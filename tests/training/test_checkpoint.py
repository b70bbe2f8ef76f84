"""Checkpoints by themselves: whole or passed over, and nothing that is read runs code."""

import json
import multiprocessing
import os
import pickle
import resource
import time

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from waiting import wait_for

from hpcdist.base.errors import HpcdistError, JobError
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files


def save(folder, step=1, *, is_current=True, state=None):
    """A checkpoint whose one tensor says its step."""
    path = folder / checkpoint_files.file_name(step)
    tensors = {"weights": torch.full((5_000,), float(step))}
    state = state or {"step": step}
    checkpoint.save(path, tensors, state, is_current=lambda: is_current, together=False)
    return path


def load(path, model=None, optimizer=None):
    model = model or torch.nn.Linear(2, 2)
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    checkpoint.load_tensors(path, model, optimizer, apart=False)


def test_a_checkpoint_is_private_and_a_save_that_fails_leaves_the_one_before(tmp_path):
    path = save(tmp_path, 3)
    assert path.stat().st_mode & 0o777 == 0o700
    with pytest.raises((AttributeError, TypeError)):
        save(tmp_path, 4, state={"cannot be pickled": lambda: None})
    assert os.listdir(tmp_path) == [path.name]
    assert checkpoint_files.is_intact(path)
    assert checkpoint.load_state(path)["step"] == 3


def test_a_model_and_its_optimizer_go_on_exactly_but_for_settings(tmp_path):
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(first.parameters(), fused=True)
    first(torch.ones(4, 2)).square().sum().backward()
    optimizer.step()
    flat = checkpoint.flatten(first, optimizer)
    path = tmp_path / checkpoint_files.file_name(3)
    checkpoint.save(path, flat, {}, is_current=lambda: True, together=False)
    other = torch.optim.AdamW(second.parameters(), weight_decay=0.5, fused=True)
    load(path, second, other)
    found = checkpoint.flatten(second, other)
    assert found.keys() == flat.keys()
    assert all(torch.equal(found[name], flat[name]) for name in flat)
    assert other.param_groups[0]["weight_decay"] == 0.5


def test_kill_9_at_any_moment_leaves_a_checkpoint_that_is_whole(tmp_path):
    def save_for_ever():
        for step in range(newest() + 1, 10**6):
            save(tmp_path, step)
            checkpoint_files.remove_old(tmp_path, keep=2)

    def newest():
        return checkpoint_files.step_of(checkpoint_files.list_checkpoints(tmp_path)[0])

    save(tmp_path, 0)
    fork = multiprocessing.get_context("fork")
    for number in range(3):
        saver = fork.Process(target=save_for_ever)
        begin = newest()
        saver.start()
        wait_for(lambda begin=begin: newest() > begin)
        time.sleep(number * 0.0034)  # so that it is killed at another moment each time
        saver.kill()
        saver.join()
        path = checkpoint_files.list_checkpoints(tmp_path)[0]
        assert checkpoint_files.is_intact(path)
        assert checkpoint.load_state(path)["step"] == newest()
    checkpoint_files.remove_unfinished(tmp_path)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_full_disk_is_told_in_words(tmp_path):
    path = tmp_path / checkpoint_files.file_name(1)
    said = f"no room is left for the checkpoint {path}: the disk or your quota there is full"
    with (
        pytest.raises(HpcdistError) as error,
        checkpoint.report_full_disk(path),
        open("/dev/full", "wb") as file,
    ):
        torch.save({"a": torch.ones(99)}, file)
    assert error.value.message == said
    assert "checkpoint.keep" in error.value.hint


def test_the_newest_and_the_best_are_kept_and_what_is_not_the_runs_is_left_alone(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for step in (2, 100_000_000, 30, 4):
        (own / checkpoint_files.file_name(step)).mkdir()
    (own / "notes.txt").touch()
    others = save(tmp_path, 1)
    (own / others.name).symlink_to(others)
    checkpoint_files.mark_best(own / checkpoint_files.file_name(2))
    checkpoint_files.remove_old(own, keep=2)
    left = [checkpoint_files.step_of(path) for path in checkpoint_files.list_checkpoints(own)]
    assert left == [100_000_000, 30, 2]
    assert (own / "notes.txt").exists()
    assert not (own / others.name).is_symlink()
    assert checkpoint_files.is_intact(others)
    [best] = checkpoint_files.resume_candidates(str(own / "best"))
    assert best.name == checkpoint_files.file_name(2)


def overwrite(listed, path):
    part = path / "__0_0.distcp"
    part.write_bytes(part.read_bytes().swapcase())


DAMAGES = {
    "another byte": overwrite,
    "a part that is not listed": lambda listed, _: listed.pop("__0_0.distcp"),
    "elsewhere": lambda listed, _: listed.update({"../a": listed["training.pt"]}),
}
"""What tests/fuzz does not come to."""


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_no_damage_to_a_checkpoint_goes_unnoticed(tmp_path, damage):
    path = save(tmp_path)
    complete = path / checkpoint_files.COMPLETE
    content = json.loads(complete.read_text())
    damage(content["files"], path)
    complete.write_text(json.dumps(content))
    assert not checkpoint_files.is_intact(path)


class RunsCode:
    def __reduce__(self):
        return os._exit, (3,)


def test_a_foreign_state_is_refused_and_runs_no_code(tmp_path):
    path = save(tmp_path)
    torch.save({"weights": torch.ones(2)}, path / checkpoint_files.STATE)
    with pytest.raises(HpcdistError, match="it does not say that its format is 2"):
        checkpoint.load_state(path)
    torch.save(RunsCode(), path / checkpoint_files.STATE)
    with pytest.raises(HpcdistError, match="is not a checkpoint"):
        checkpoint.load_state(path)
    (path / ".metadata").write_bytes(pickle.dumps(RunsCode()))
    with pytest.raises(HpcdistError, match=r"asks for posix\._exit"):
        load(path)


def list_tensors(path, shape=(2, 2)):
    name = "model.weight"
    properties = TensorProperties(dtype=torch.float32)
    tensor = TensorStorageMetadata(properties=properties, size=torch.Size(shape), chunks=[])
    place = _StorageInfo(path, 0, 100)
    return pickle.dumps(
        Metadata(state_dict_metadata={name: tensor}, storage_data={MetadataIndex(name): place})
    )


_MANY_VALUES = b"\x80\x02Nr\xff\xff\xff\x07."
_LONG_BYTES = b"\x80\x05\x96" + (1 << 31).to_bytes(8, "little") + b"."


@pytest.mark.parametrize(
    "content",
    [
        *(_MANY_VALUES, _LONG_BYTES, None, list_tensors("../fifo")),
        list_tensors("__0_0.distcp", (1 << 20, 1 << 20)),
    ],
    ids=["values", "bytes", "is a pipe", "elsewhere", "shape"],
)
def test_a_list_of_tensors_takes_no_memory_and_does_not_block(tmp_path, content):
    folder = tmp_path / "step-00000001.dcp"
    folder.mkdir()
    os.mkfifo(tmp_path / "fifo")
    (folder / "__0_0.distcp").write_bytes(b"")
    if content is None:
        os.mkfifo(folder / ".metadata")
    else:
        (folder / ".metadata").write_bytes(content)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HpcdistError, match="is not a checkpoint that"):
        load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 200_000


def test_resume_from_nothing_says_what_it_may_name(tmp_path):
    with pytest.raises(JobError, match="which does not exist"):
        checkpoint_files.resume_candidates(str(tmp_path / "nowhere"))
    with pytest.raises(JobError, match="which holds no checkpoint"):
        checkpoint_files.resume_candidates(str(tmp_path))
