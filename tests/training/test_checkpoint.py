import hashlib
import json
import multiprocessing
import os
import random
import time
import zipfile

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception
from waiting import wait_for

from hpcdist.base.errors import HpcdistError, JobError
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files


def _flip(content, place, draw):
    mutated = bytearray(content)
    mutated[place] ^= 1 << draw.randrange(8)
    return bytes(mutated)


DAMAGES = {
    "a flipped bit": _flip,
    "cut off": lambda content, place, _: content[:place],
    "zeros": lambda content, place, _: (
        content[:place] + bytes(len(content[place : place + 64])) + content[place + 64 :]
    ),
    "a stretch twice": lambda content, place, draw: (
        content[:place] + content[max(0, place - draw.randrange(1, 99)) :]
    ),
}


def test_a_checkpoint_loads_as_it_was_saved(tmp_path):
    path = tmp_path / checkpoint_files.file_name(3)
    checkpoint.save(path, _state(3), is_current=_yes)
    assert path.stat().st_mode & 0o777 == 0o600
    assert checkpoint.load(path)["weights"].equal(_state(3)["weights"])
    assert os.listdir(tmp_path) == [path.name]


def test_kill_9_at_any_moment_leaves_a_checkpoint_that_is_whole(tmp_path):
    checkpoint.save(tmp_path / checkpoint_files.file_name(0), _state(0), is_current=_yes)
    fork = multiprocessing.get_context("fork")
    for number in range(12):
        saver = fork.Process(target=_save_for_ever, args=(tmp_path,))
        saver.start()
        begin = _newest_step(tmp_path)
        wait_for(lambda begin=begin: _newest_step(tmp_path) > begin)
        time.sleep(number * 0.0007)  # so that it is killed at another moment each time
        saver.kill()
        saver.join()
        newest = checkpoint_files.list_checkpoints(tmp_path)[0]
        assert checkpoint_files.is_intact(newest)
        step = int(newest.stem.removeprefix("step-"))
        assert checkpoint.load(newest)["weights"].equal(_state(step)["weights"])
    checkpoint_files.remove_unfinished(tmp_path)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_an_attempt_that_is_out_of_date_leaves_nothing(tmp_path):
    path = tmp_path / checkpoint_files.file_name(1)
    with pytest.raises(checkpoint.StaleAttemptError):
        checkpoint.save(path, _state(1), is_current=lambda: False)
    assert os.listdir(tmp_path) == []


def test_a_save_that_fails_leaves_the_one_before(tmp_path):
    path = tmp_path / checkpoint_files.file_name(1)
    checkpoint.save(path, _state(1), is_current=_yes)
    with pytest.raises((AttributeError, TypeError)):
        checkpoint.save(path, {"cannot be pickled": lambda: None}, is_current=_yes)
    assert os.listdir(tmp_path) == [path.name]
    assert checkpoint_files.is_intact(path)


def test_a_full_disk_is_told_in_words_and_other_errors_are_as_they_were(tmp_path):
    path = tmp_path / checkpoint_files.file_name(1)
    said = f"no room is left for the checkpoint {path}: the disk or your quota there is full"
    with (
        pytest.raises(HpcdistError) as error,
        checkpoint.telling_of_no_room(path),
        open("/dev/full", "wb") as file,
    ):
        torch.save(_state(1), file)
    assert error.value.message == said
    assert "checkpoint.keep" in error.value.hint
    short = RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 704 vs 598")
    sent = CheckpointException("", {1: _wrap_exception(short)})  # as the other ranks get it
    with pytest.raises(HpcdistError, match="no room is left"), checkpoint.telling_of_no_room(path):
        raise sent
    with pytest.raises(PermissionError), checkpoint.telling_of_no_room(path):
        raise PermissionError


def test_the_newest_k_are_kept_and_foreign_files_are_left_alone(tmp_path):
    for step in (2, 100_000_000, 30, 4):
        (tmp_path / checkpoint_files.file_name(step)).touch()
    (tmp_path / "notes.txt").touch()
    checkpoint_files.remove_old(tmp_path, keep=2)
    left = [path.name for path in checkpoint_files.list_checkpoints(tmp_path)]
    assert left == ["step-100000000.pt", "step-00000030.pt"]
    assert (tmp_path / "notes.txt").exists()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_no_damage_to_a_checkpoint_goes_unnoticed(tmp_path, damage):
    path, whole = _saved(tmp_path)
    for mutated in _mutations(whole, damage):
        path.write_bytes(mutated)
        assert checkpoint.newest_intact([path], _pass_over) is None


def test_a_damaged_attribute_that_has_torch_load_memory_as_it_lies_is_found(tmp_path):
    path, whole = _saved(tmp_path)
    with zipfile.ZipFile(path) as archive:
        first = archive.getinfo("archive/data.pkl")
    entry = whole.rindex(b"PK\1\2", 0, whole.rindex(b"archive/data/0"))
    assert first.external_attr == 0
    as_folder = bytearray(whole)
    as_folder[entry + 38] ^= 0x10  # MS-DOS: the entry is a folder, of which nothing is read
    path.write_bytes(as_folder)
    assert not checkpoint_files.is_intact(path)


def test_one_without_a_digest_is_passed_over(tmp_path):
    path = tmp_path / checkpoint_files.file_name(2)
    before = tmp_path / checkpoint_files.file_name(1)
    checkpoint.save(before, _few(), is_current=_yes)
    torch.save(_few(), path)
    passed = []
    assert checkpoint.newest_intact([path, before], passed.append) == before
    assert passed == [path]


def test_programs_that_know_of_no_digest_read_a_checkpoint(tmp_path):
    path, whole = _saved(tmp_path)
    for options in ({}, {"mmap": True}):
        assert torch.load(path, weights_only=True, **options)["weights"].equal(_few()["weights"])
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"hpcdist sha256 ")
    assert archive.comment == f"hpcdist sha256 {_sha256(_unsealed(whole))}".encode()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda parts: parts.pop("__1_0.distcp"), id="a part that is not listed"),
        pytest.param(lambda parts: parts.pop("training.pt"), id="the state is not listed"),
        pytest.param(lambda parts: parts.pop(".metadata"), id="the list of tensors is not listed"),
        pytest.param(
            lambda parts: parts.update(
                {f"../{checkpoint_files.file_name(1, '.dcp')}/__0_0.distcp": parts["__0_0.distcp"]}
            ),
            id="elsewhere",
        ),
        pytest.param(lambda parts: parts.update({"__2_0.distcp": [3, 4]}), id="a part is gone"),
        pytest.param(lambda parts: parts["training.pt"].reverse(), id="another size"),
    ],
)
def test_a_checkpoint_in_parts_is_whole_if_all_its_parts_are_as_listed(tmp_path, damage):
    folder = tmp_path / checkpoint_files.file_name(1, ".dcp")
    folder.mkdir()
    for name in ("__0_0.distcp", "__1_0.distcp", ".metadata", "training.pt"):
        (folder / name).write_text(name)
    parts = {part.name: checkpoint_files.describe(part) for part in folder.iterdir()}
    complete = folder / checkpoint_files.COMPLETE
    complete.write_text(json.dumps({"world_size": 2, "parts": parts}))
    assert checkpoint_files.is_intact(folder)
    damage(parts)
    complete.write_text(json.dumps({"world_size": 2, "parts": parts}))
    assert not checkpoint_files.is_intact(folder)


def test_an_old_checkpoint_that_is_a_link_to_another_runs_goes_and_the_other_runs_stays(tmp_path):
    own, others = tmp_path / "own", tmp_path / "others"
    name = checkpoint_files.file_name(1, ".dcp")
    (others / name).mkdir(parents=True)
    (others / name / checkpoint_files.COMPLETE).write_text("{}")
    own.mkdir()
    (own / name).symlink_to(others / name)
    checkpoint_files.remove_old(own, keep=0)
    assert os.listdir(own) == []
    assert os.listdir(others / name) == [checkpoint_files.COMPLETE]


def test_a_checkpoint_that_is_a_pipe_is_passed_over_and_does_not_block(tmp_path):
    path = tmp_path / checkpoint_files.file_name(1)
    os.mkfifo(path)
    assert not checkpoint_files.is_intact(path)


@pytest.mark.parametrize("content", [b"", b"garbage" * 99, None], ids=["empty", "garbage", "torn"])
def test_a_file_that_is_no_checkpoint_is_passed_over(tmp_path, content):
    good, bad = (tmp_path / checkpoint_files.file_name(step) for step in (1, 2))
    checkpoint.save(good, _state(1), is_current=_yes)
    whole = good.read_bytes()
    bad.write_bytes(whole[: len(whole) // 2] if content is None else content)
    passed_over = []
    candidates = checkpoint_files.list_checkpoints(tmp_path)
    assert checkpoint.newest_intact(candidates, passed_over.append) == good
    assert passed_over == [bad]


def test_a_foreign_checkpoint_is_refused_and_runs_no_code(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"weights": torch.ones(2)}, path)
    with pytest.raises(HpcdistError, match="it does not say that its format is 1"):
        checkpoint.load(path)
    torch.save({"pytorch-lightning_version": "2.6.0", "epoch": 3}, path)
    with pytest.raises(HpcdistError, match="Lightning saved it, and the job lightning goes on"):
        checkpoint.load(path)
    torch.save(_RunsCode(), path)
    with pytest.raises(HpcdistError, match="is not a checkpoint"):
        checkpoint.load(path)


def test_resume_from_nothing_says_what_it_may_name(tmp_path):
    with pytest.raises(JobError, match="which does not exist"):
        checkpoint_files.resume_candidates(str(tmp_path / "nowhere"))
    with pytest.raises(JobError, match="which holds no checkpoint"):
        checkpoint_files.resume_candidates(str(tmp_path))


def _saved(folder):
    """A checkpoint so small that most of its bytes are of the archive and not of tensors."""
    path = folder / checkpoint_files.file_name(1)
    checkpoint.save(path, _few(), is_current=_yes)
    return path, path.read_bytes()


def _unsealed(content):
    """The same checkpoint as versions before the digest wrote it."""
    return content[: content.rindex(b"hpcdist sha256") - 2] + bytes(2)


def _mutations(content, damage):
    """Damage the content at many places, and everywhere at its end."""
    draw = random.Random(1)
    places = range(len(content))
    for place in [*draw.sample(places, 60), *places[-110:]]:
        mutated = damage(content, place, draw)
        if mutated != content:
            yield mutated


def _sha256(content):
    return hashlib.sha256(content).hexdigest()


def _pass_over(*_):
    pass


def _few():
    return {
        "format": checkpoint.FORMAT,
        "weights": torch.arange(1.0, 30.0),
        "bias": torch.ones(3),
        "identity": {"model.name": "mlp"},
    }


class _RunsCode:
    def __reduce__(self):
        return os._exit, (3,)


def _yes():
    return True


def _state(step):
    return {"format": checkpoint.FORMAT, "weights": torch.full((50_000,), float(step))}


def _newest_step(folder):
    newest = checkpoint_files.list_checkpoints(folder)[0]
    return int(newest.stem.removeprefix("step-"))


def _save_for_ever(folder):
    step = _newest_step(folder)
    while True:
        step += 1
        path = folder / checkpoint_files.file_name(step)
        checkpoint.save(path, _state(step), is_current=_yes)
        checkpoint_files.remove_old(folder, keep=2)
