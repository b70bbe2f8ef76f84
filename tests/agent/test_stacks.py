"""Where a rank hangs, read from what faulthandler writes."""

import pytest

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
