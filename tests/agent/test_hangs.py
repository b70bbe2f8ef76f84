"""The verdict on a hang names the collective operation, and the rank that never reached it."""

import time

import pytest

from hpcdist.agent.messages import HangReport
from hpcdist.agent.outcome.hang import hang_verdict
from hpcdist.cli.main import main
from hpcdist.rank.pipe import collectives_of
from hpcdist.runs.requests import (
    Collectives,
    GroupRecord,
    Operation,
    find_standstills,
    to_blame,
)
from hpcdist.runs.verdict import RankEnd

CASES = """
import os, sys, time
import torch, torch.distributed as dist

case = sys.argv[1:][int(os.environ["TORCHELASTIC_RESTART_COUNT"])]
rank = int(os.environ["RANK"])
print("case", case, flush=True)

def rest():
    time.sleep(1000)

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        if rank == 1 and i == 2:
            rest()
        return torch.ones(4)

if case == "no group" and rank == 2:
    rest()
dist.init_process_group("gloo")
x = torch.ones(10)
dist.all_reduce(x)
if case == "skipped":
    if rank == 0:
        rest()
    dist.all_reduce(x)
elif case == "data loader":
    for batch in torch.utils.data.DataLoader(Slow(), batch_size=1, num_workers=1):
        dist.all_reduce(batch)
rest()
"""

VERDICTS = {
    "skipped": (0, ["rank 0 never reached all_reduce(float[10]), number 2 (at cases.py:", "wait"]),
    "data loader": (
        1,
        ["in __next__ of dataloader.py; rank 1 never reached all_reduce(float"],
    ),
    "no group": (2, ["ranks 0 and 1 wait in init_process_group of distributed_c10d.py"]),
}


def test_what_hangs_is_named_with_the_operation_that_it_never_reached(launch, write_script):
    launched = launch(
        write_script(CASES, "cases.py"),
        *VERDICTS,
        gpus=3,
        max_restarts=len(VERDICTS) - 1,
        hang_timeout_s=1.2,
    )
    final = launched.verdict()
    for attempt, (case, (blamed, words)) in enumerate(VERDICTS.items()):
        assert launched.log(0, attempt).startswith(f"case {case}")
        verdict = launched.run.read_attempt_verdict(attempt) or final
        assert verdict.kind == "hang", (case, verdict.message)
        assert all(word in verdict.message for word in words), (case, verdict.message)
        assert blamed == verdict.first.rank, (case, verdict.message)
    assert "all_reduce" in launched.run.stacks_file(1, 0).read_text()


def operation(number, *, done=True, name="all_reduce", sizes=((4,),), at=0.0):
    tensors = ", ".join(f"float[{'x'.join(map(str, size))}]" for size in sizes)
    return Operation(number=number, name=name, tensors=tensors, begun_s=at, is_done=done)


def account(*operations, group="0", ranks=None):
    return Collectives(groups=[GroupRecord(name=group, ranks=ranks, operations=list(operations))])


DONE, WAITS = operation(1), operation(2, done=False)
GATHERS = [operation(1, name="all_gather", sizes=[(size,)], done=False) for size in (3, 4)]
BROADCAST = operation(2, name="broadcast"), operation(2, name="broadcast", done=False)


@pytest.mark.parametrize(
    ("accounts", "blamed"),
    [
        ([account(DONE, WAITS), account(DONE)], 1),
        ([account(DONE), account(DONE)], None),
        ([account(DONE, WAITS), account(DONE, WAITS)], None),
        # 1 and 2 began the same: 0 is the odd one
        ([account(DONE, operation(2, done=False, name="barrier")), *[account(DONE, WAITS)] * 2], 0),
        # a root of a broadcast goes on at once, and hangs in what comes next
        (
            [
                account(DONE, BROADCAST[0], operation(3, done=False)),
                account(DONE, BROADCAST[1]),
                account(DONE),
            ],
            2,
        ),
        # what a rank gathers may be of another size
        ([*map(account, GATHERS), account()], 2),
        # 0 waits for 1 in the first group, and 1 for 2 in the second, where nobody is
        (
            [
                account(operation(5, done=False), group="a", ranks=[0, 1]),
                account(operation(3, done=False), group="b", ranks=[1, 2]),
                account(),
            ],
            2,
        ),
    ],
)
def test_the_rank_that_never_reached_an_operation_is_to_blame(accounts, blamed):
    accounts = dict(enumerate(accounts))
    assert to_blame(find_standstills(accounts, accounts)) == blamed


def report(rank, **fields):
    end = RankEnd(rank=rank, local_rank=rank, node=0, host="h", time_s=1.0)
    return HangReport(end=end, **{"silent_s": 5.0, "where": "a.py:1 (f)"} | fields)


def test_a_rank_that_has_ended_is_named_where_the_others_wait_for_it():
    begun = operation(2, done=False, at=time.mktime((2026, 1, 2, 10, 42, 7, 0, 0, -1)))
    reports = [report(0, collectives=account(DONE, begun), is_waiting=True)]
    ends = {1: RankEnd(rank=1, local_rank=1, node=0, host="h", time_s=1.0, exit_code=0, step=3)}
    verdict = hang_verdict(reports, 2, ends)
    assert (verdict.first.rank, verdict.victims) == (1, [0])
    assert verdict.message == (
        "rank 1 (node 0, host h) has ended after step 3; rank 1 never reached "
        "all_reduce(float[4]), number 2 (at a.py:1 (f)), in which rank 0 waits since 10:42:07; "
        "rank 0 ended because of it"
    )


def test_what_the_recorder_says_of_nccl_is_read_like_what_it_says_of_gloo():
    entry = {
        "record_id": 7,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 4,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[2, 3]],
        "input_dtypes": ["BFloat16"],
        "state": "started",
        "retired": False,
        "is_p2p": False,
        "time_created_ns": 2_000_000_000,
    }
    sent = entry | {"is_p2p": True, "profiling_name": "nccl:send 0->1"}
    done = entry | {"record_id": 6, "collective_seq_id": 3, "state": "completed"}
    (group,) = collectives_of({"entries": [entry, sent, done]}, {"0": [0, 1]}).groups
    found = [(one.number, one.name, one.is_done) for one in group.operations]
    assert (group.name, found) == ("0", [(3, "all_reduce", True), (4, "all_reduce", False)])
    assert group.operations[1].tensors == "bfloat16[2x3]"


PAUSES = """
import os, pathlib, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["RANK"] == "0":
    while not pathlib.Path(os.environ["HPCDIST_RUN_DIR"], "go").exists():
        time.sleep(0.1)
dist.barrier()
print("goes on", flush=True)
while True:
    time.sleep(1)
    print("works", flush=True)
"""


def test_a_script_that_seems_to_hang_is_told_of_and_goes_on(launch, write_script, capsys):
    script = write_script(PAUSES, "pauses.py")
    launched = launch(script, nodes=2, hang_notice_s=1)
    run = launched.run
    hang = launched.wait(lambda: run.read_hang(0))
    assert hang.rank == 0
    told = "rank 0 never reached barrier, number 1 (at pauses.py:8 (<module>)), in which rank 1"
    assert told in hang.message
    launched.wait(lambda: told in run.agent_log_file(0).read_text())
    assert not run.verdict_file.exists()
    for verb in ("status", "watch"):
        main([verb, str(run.path)])
        assert "seems to hang, in pauses.py:" in " ".join(capsys.readouterr().out.split())
    (run.path / "go").touch()
    launched.wait(lambda: run.read_hang(0) is None)
    run.ask_to_cancel()
    assert launched.verdict().kind == "cancelled"
