"""Requests to a living run: the files, what node 0's agent makes of them, and what ranks tell."""

import os
import signal
import threading

import msgspec
import pytest

from hpcdist.agent.leader import take_request
from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, UserError
from hpcdist.cli.main import main
from hpcdist.monitor import living
from hpcdist.monitor.living import ask, view_stacks
from hpcdist.runs.requests import (
    Answer,
    Request,
    send,
    take_answer,
)
from hpcdist.runs.run import Run

PLACES = """
import ctypes, os, signal, sys, threading, time
import torch, torch.distributed as dist
from hpcdist import record

rank = int(os.environ["RANK"])

def rest():
    time.sleep(1000)

record.step(samples=1)
if rank == 4:
    if os.path.exists("/bin/sleep"):
        print("here", flush=True)
        os.execv("/bin/sleep", ["sleep", "1000"])
if rank == 3:
    print("here", flush=True)
    rest()
dist.init_process_group("gloo", world_size=3)
dist.barrier()
threading.Thread(target=rest, name="prefetch", daemon=True).start()
print("here", flush=True)
if rank == 0:
    rest()
if rank == 2:
    here, _ = os.pipe()
    ctypes.PyDLL(None).read(here, ctypes.create_string_buffer(1), 1)
dist.all_reduce(torch.ones(2))
"""
"""Rank 0 sleeps, 1 waits for it, 2 is in C code that keeps Python's lock, 3 has no process group,
and 4 is no Python any more."""


@pytest.fixture
def make_run(tmp_path):
    return Run.create(tmp_path, "train")


def test_where_all_ranks_are_is_told_whatever_they_do_and_they_go_on(
    launch, write_script, up, capsys, monkeypatch
):
    launched = up(launch(write_script(PLACES, "places.py"), gpus=5), 5, "here")
    view = launched.wait(lambda: _waiting(launched))
    of = {one.of.rank: one.of for one in view.ranks}
    mains = [group for group in view.groups if group.thread is None]
    group_of = {rank: group for group in mains for rank in group.ranks}
    assert [frame.function for frame in group_of[0].frames] == ["rest", "<module>"]
    assert [frame.function for frame in group_of[1].frames][-1] == "<module>"
    assert [thread.name for thread in of[1].threads[1:]] == ["prefetch"]
    assert "C code holds Python's lock" in of[2].note
    assert [frame.function for frame in group_of[2].frames] == ["<module>"]
    assert [frame.function for frame in group_of[3].frames] == ["rest", "<module>"]
    assert "not a Python program" in of[4].note
    assert (of[0].step, of[0].state) == (1, "S")
    assert of[0].rss_bytes > 1e7
    assert (of[1].collectives.groups[0].operations[-1].name, view.blamed) == ("all_reduce", 0)
    assert not list(launched.run.logs_folder.glob("*.stacks"))
    assert not list(launched.run.launch_folder.glob("answer-*"))

    assert main(["stacks", str(launched.run.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("rank 0 never reached all_reduce(float[2]), number 2 (at places")
    assert lines[4] == "rank 0"
    assert max(map(len, lines[3:])) <= 80
    assert main(["stacks", str(launched.run.path), "--rank", "3-4", "--json"]) == 0
    shown = msgspec.json.decode(capsys.readouterr().out)
    assert [group["ranks"] for group in shown["groups"]] == [[3], [4]]

    with pytest.raises(UserError, match="has no rank 7"):
        ask(launched.run, Request(limit_s=30, ranks=[7]))
    os.kill(launched.agent_pid(0), signal.SIGSTOP)
    monkeypatch.setattr(living, "_BEYOND_S", 0.5)
    with pytest.raises(HpcdistError, match="did not answer within"):
        ask(launched.run, Request(limit_s=0.5))
    os.kill(launched.agent_pid(0), signal.SIGCONT)
    os.kill(launched.agent_pid(0), signal.SIGTERM)
    launched.verdict()
    with pytest.raises(UserError, match="has ended"):
        ask(launched.run, Request(limit_s=30))


def _waiting(launched):
    """Where ranks are, once rank 1 has begun what rank 0 never does, and rank 2 does not answer."""
    view = view_stacks(ask(launched.run, Request(limit_s=30)))
    has_lock = any("lock" in (one.of.note or "") for one in view.ranks)
    return view if view.finding is not None and has_lock else None


def test_a_request_is_taken_once_and_another_waits_until_then(make_run):
    requests = [Request(limit_s=2, ranks=[3]), Request(limit_s=1)]
    assert take_request(make_run) is None
    send(make_run, requests[0])
    assert make_run.request_file.stat().st_mode & 0o777 == 0o600
    second = threading.Thread(target=send, args=(make_run, requests[1]))
    second.start()
    assert take_request(make_run) == requests[0]
    second.join()
    assert take_request(make_run) == requests[1]
    assert take_request(make_run) is None
    assert not list(make_run.launch_folder.glob("request*"))


def test_a_request_that_others_could_have_written_is_not_read(make_run, tmp_path):
    request = Request(limit_s=1)
    send(make_run, request)
    make_run.request_file.chmod(0o620)
    assert take_request(make_run) is None
    files.write_whole(tmp_path / "elsewhere", msgspec.json.encode(request))
    make_run.request_file.symlink_to(tmp_path / "elsewhere")
    assert take_request(make_run) is None
    assert (tmp_path / "elsewhere").exists()


def test_an_answer_is_removed_by_its_command_and_one_that_is_none_is_refused(make_run):
    request = Request(limit_s=1)
    answer = Answer(attempt=1, time_s=2.0, world_size=2, reports={}, troubles={0: "no memory"})
    assert take_answer(make_run, request) is None
    files.write_whole(make_run.answer_file(request.id), msgspec.json.encode(answer))
    assert make_run.answer_file(request.id).stat().st_mode & 0o777 == 0o600
    assert take_answer(make_run, request) == answer
    make_run.answer_file(request.id).unlink()
    assert not list(make_run.launch_folder.glob("*-*"))
    os.mkfifo(make_run.answer_file(request.id))
    with pytest.raises(OSError, match="not a regular file"):
        take_answer(make_run, request)


SLEEPS = "import time; print('here', flush=True); time.sleep(600)"


def test_a_late_agent_is_left_out_of_the_answer(launch, write_script, up):
    launched = up(launch(write_script(SLEEPS), nodes=2), 2, "here")
    os.kill(launched.agent_pid(1), signal.SIGSTOP)
    try:
        answer = ask(launched.run, Request(limit_s=0.8))
    finally:
        os.kill(launched.agent_pid(1), signal.SIGCONT)
    assert [one.rank for one in answer.reports[0].ranks] == [0]
    assert answer.troubles == {1: "its agent did not answer in time"}
