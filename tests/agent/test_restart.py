"""After a failure the ranks start again, with a store of their own, and give up in the end."""

import json
import os
import signal
import socket

import pytest

SCRIPT = """
import json, os, random, signal
import torch, torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print(json.dumps({"attempt": attempt, "total": total.item(), "port": os.environ["MASTER_PORT"],
                  "max": os.environ["TORCHELASTIC_MAX_RESTARTS"],
                  "cpus": sorted(os.sched_getaffinity(0)),
                  "drawn": [torch.rand(2).tolist(), random.random()]}), flush=True)
if attempt == 0:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(total)
dist.barrier()
"""


def test_ranks_that_failed_start_again_and_finish(launch, write_script):
    launched = launch(write_script(SCRIPT), nodes=2, max_restarts=3)
    verdict = launched.verdict()
    assert (verdict.kind, verdict.restarts, verdict.attempt) == ("done", 1, 1)
    assert verdict.message == "every rank ended well after 1 restart"
    drawn = set()
    for attempt in range(2):
        told = [json.loads(launched.log(rank, attempt).splitlines()[0]) for rank in range(2)]
        facts = {(line["attempt"], line["total"], line["max"]) for line in told}
        assert facts == {(attempt, 1.0, "3")}
        if len(os.sched_getaffinity(0)) > 1:
            assert {*told[0]["cpus"]}.isdisjoint(told[1]["cpus"])
        drawn |= {number for line in told for number in map(str, line["drawn"])}
        for rank in range(2):
            start = launched.events(rank, attempt)[0]
            assert start["attempt"] == start["restart_count"] == attempt
    assert len(drawn) == 8  # each rank of each attempt has numbers of its own
    failed = launched.run.read_attempt_verdict(0)
    assert (failed.kind, failed.first.rank, failed.attempt) == ("signal", 1, 0)
    assert launched.run.read_attempt_verdict(1) is None
    assert launched.run.newest_attempt() == 1


def test_an_older_attempt_has_no_say_once_a_newer_one_has_begun(launch, write_script, up):
    script = write_script("print('up', flush=True)\nimport time; time.sleep(600)")
    launched = up(launch(script, nodes=2), 2)
    place = ("127.0.0.1", json.loads(launched.run.meeting_file.read_text())["port"])
    with pytest.raises(ConnectionRefusedError):  # nobody else is let in
        socket.create_connection(place)
    launched.run.claim_attempt()
    os.kill(launched.agent_pid(0), signal.SIGKILL)
    launched.wait(lambda: not launched.agents_alive())
    assert launched.run.read_verdict() is None
    assert launched.run.newest_attempt() == 1
