"""Where a rank hangs, read from what faulthandler writes."""

import os

import pytest

from hpcdist.agent.forkserver import StackMemory
from hpcdist.agent.inspection import parse
from hpcdist.runs.requests import place_of


def main_frames(text):
    return next((thread.frames for thread in parse(text, {})), [])


@pytest.mark.parametrize(
    ("frames", "where", "calls", "is_waiting"),
    [
        (
            [
                ("/x/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce"),
                ("/x/site-packages/torch/distributed/c10d_logger.py", 8, "wrapper"),
                ("/home/me/train.py", 3, "step"),
            ],
            "train.py:3 (step)",
            "all_reduce of distributed_c10d.py",
            True,
        ),
        (
            [
                ("/x/site-packages/torch/autograd/graph.py", 829, "_engine_run_backward"),
                ("/home/me/train.py", 3, "step"),
            ],
            "train.py:3 (step)",
            "_engine_run_backward of graph.py",
            True,
        ),
        (
            [
                ("/home/me/hooks.py", 2, "hook"),
                ("/x/site-packages/torch/distributed/a.py", 9, "f"),
            ],
            "hooks.py:2 (hook)",
            None,
            False,
        ),
        ([("/x/site-packages/job/main.py", 2, "run")], "main.py:2 (run)", None, False),
    ],
)
def test_who_waits_for_others(frames, where, calls, is_waiting):
    text = 'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in other\n\n'
    text += "Current thread 0x00007f (most recent call first):\n"
    text += "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in frames)
    assert place_of(main_frames(text)) == (where, calls, is_waiting)


@pytest.mark.parametrize("text", ["", "garbage\n", "Thread 0x1 (most recent call first):\n"])
def test_no_stack_is_no_answer(text):
    assert place_of(main_frames(text)) == (None, None, False)


def test_of_two_dumps_the_newer_counts_without_the_thread_that_answers():
    def dump(line):
        return (
            f"Current thread 0x{7:016x} (most recent call first):\n"
            '  File "/x/hpcdist/rank/pipe.py", line 9 in _answer\n\n'
            f'Thread 0x{8:016x} (most recent call first):\n  File "a.py", line {line} in load\n\n'
            f'Thread 0x{9:016x} (most recent call first):\n  File "a.py", line {line} in main\n'
        )

    found = parse(dump(1) + dump(2), {"8": "loader"})
    assert [(one.name, one.frames[0].line) for one in found] == [(None, 2), ("loader", 2)]


def test_stacks_are_in_memory_until_there_are_some_and_are_kept_once(tmp_path):
    memory = StackMemory(2)
    first, second = (tmp_path / f"rank-{rank}.stacks" for rank in range(2))

    pid = os.fork()
    if not pid:  # a rank, which has its own alone
        os.write(memory.only(1), b"one\n")
        os._exit(0)
    os.waitpid(pid, 0)

    assert (memory.read(0), memory.read(1)) == ("", "one\n")
    memory.keep(0, first)
    memory.keep(1, second)
    memory.keep(1, second)
    assert memory.read(1, 2) == "e\n"
    assert not first.exists()
    assert second.read_text() == "one\n"
    assert second.stat().st_mode & 0o777 == 0o600

    memory.clear()  # for the ranks of the next attempt
    assert memory.read(1) == ""
    memory.keep(1, tmp_path / "rank-1.attempt-1.stacks")
    assert list(tmp_path.iterdir()) == [second]
