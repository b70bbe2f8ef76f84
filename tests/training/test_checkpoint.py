import multiprocessing
import os
import time

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception

from hpcdist.base.errors import HpcdistError, JobError
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files

LIMIT_S = 100


def test_a_checkpoint_loads_as_it_was_saved(tmp_path):
    path = tmp_path / checkpoint_files.file_name(3)
    checkpoint.save(path, _state(3), is_current=_yes)
    assert path.stat().st_size == checkpoint_files.num_bytes(path)
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
        _wait_until(lambda begin=begin: _newest_step(tmp_path) > begin)
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


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path, share):
    path = tmp_path / checkpoint_files.file_name(1)
    checkpoint.save(path, _state(1), is_current=_yes)
    content = bytearray(path.read_bytes())
    content[int(len(content) * share)] ^= 4
    path.write_bytes(content)
    found = checkpoint.newest_intact([path], damaged=lambda _path: None)
    # A bit in the padding between entries changes nothing that is read.
    assert found is None or checkpoint.load(path)["weights"].equal(_state(1)["weights"])


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


def _wait_until(condition):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)
