"""Profiled steps of a living run."""

import gzip
import itertools
import json
import re
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from hpcdist.cli.main import main
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.profiling import Profiler, busy_us
from hpcdist.rank.recorder import StepRecorder
from hpcdist.rank.timing import GpuTimer
from hpcdist.summary import summarize


def event(name, begin, end, *, device=DeviceType.CPU, is_async=False):
    span = SimpleNamespace(start=begin, end=end)
    return SimpleNamespace(name=name, time_range=span, device_type=device, is_async=is_async)


def test_the_time_in_which_any_operation_ran_counts_once():
    on_cpu = [
        event("aten::addmm", 10, 20),
        event("aten::mm", 12, 14),  # within the other
        event("aten::mul", 18, 30),  # of another thread
        event("gloo:all_reduce", 25, 90, is_async=True),
    ]
    assert busy_us(on_cpu, on_gpu=False) == 20
    kernels = [
        event("ncclDevKernel_AllReduce_Sum_f32_RING", 5, 15, device=DeviceType.CUDA),
        event("ampere_sgemm_128x64_tn", 0, 8, device=DeviceType.CUDA),
        event("aten::addmm", 0, 100),
    ]
    assert busy_us(kernels, on_gpu=True) == 15


LIVING = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from hpcdist import record

told = Path(sys.argv[1])
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
where = torch.zeros(1)

def train_until(name):
    is_over = torch.zeros(1)
    while not is_over:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if name != "tell":
            record.step(samples=4)
        time.sleep(0.002)
        is_over = torch.tensor([float((told / name).exists())])
        torch.distributed.broadcast(is_over, 0)

print("here", flush=True)
train_until("tell")
record.start(model=model)
train_until("end")
"""


def test_a_living_run_is_profiled_between_steps_and_one_that_tells_none_says_so(
    launch, write_script, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("hpcdist.cli.profile._WAIT_S", 1.0)
    launched = launch(write_script(LIVING, "living.py"), tmp_path, gpus=2)
    launched.wait(lambda: "here" in launched.log(0) and "here" in launched.log(1))
    run, path = launched.run, str(launched.run.path)
    assert main(["profile", path, "--ranks", "1"]) == 1
    assert "rank 1: its loop has told no step within 1 s" in capsys.readouterr().err

    (tmp_path / "tell").touch()
    launched.wait(lambda: any(event["event"] == "steps" for event in launched.events(1)))
    assert main(["profile", path, "--steps", "3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["ranks"]
    assert {rank: one["steps"] for rank, one in shown.items()} == {"0": 3, "1": 3}
    calls = {one["name"]: one["calls"] / 3 for one in shown["0"]["operations"]}
    assert calls["c10d::allreduce_"] == pytest.approx(1, abs=0.5)
    assert 0 < shown["0"]["busy_s"] < shown["0"]["wall_s"]
    assert shown["0"]["trace"] == "traces/rank-00000.profile-00000001.json.gz"
    trace = json.loads(gzip.decompress((run.path / shown["0"]["trace"]).read_bytes()))
    assert any(event["name"] == "gloo:all_reduce" for event in trace["traceEvents"])

    assert main(["profile", path, "--steps", "2", "--ranks", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{run.id}: 2 steps of rank 0, ")
    table = lines[2 : lines.index("", 2)]
    assert table[0].split() == ["OPERATION", "CALLS", "MS", "%"]
    assert max(map(len, table)) <= 80
    assert any(row.startswith("outside of operations: Python, waiting") for row in table)
    step, unit = re.search(r" ([\d.]+) (m?s) each under the profiler", lines[0]).groups()
    step_ms = float(step) * {"ms": 1, "s": 1000}[unit]
    assert sum(float(row.split()[-2]) for row in table[1:]) == pytest.approx(step_ms, rel=0.01)
    assert sum(int(row.split()[-1]) for row in table[1:]) == pytest.approx(100, abs=8)
    (tmp_path / "end").touch()

    assert launched.verdict().kind == "done", launched.log(0)
    (summary,) = summarize([launched.run], {}).runs
    windows = [event for event in launched.events(0) if event["event"] == "steps"]
    assert [window["steps"] for window in windows if window.get("profiled")] == [3, 2]
    assert "the profiler slowed down 5 steps, which are in no figure" in summary.notes
    assert not [event for event in launched.events(0) if event["event"] == "note"]


def test_a_gpu_that_lags_behind_gets_one_profile_and_a_profiler_that_fails_ends_no_training(
    monkeypatch, tmp_path
):
    """A rank's loop with a profile that is none, and a GPU that lags two steps behind."""
    begun, written, passed = [], [], itertools.count(1)
    lag, now = 2, [0]
    board = ProgressBoard(1)
    run = SimpleNamespace(traces_folder=tmp_path / "traces")
    events = SimpleNamespace(write=written.append, numbers=itertools.count())
    context = SimpleNamespace(
        progress=board.slot(0), events=events, device="cpu", rank=0, attempt=0, run=run
    )

    def mark():
        number = now[0] = next(passed)
        return SimpleNamespace(
            record=lambda: None,
            query=lambda: now[0] >= number + lag,
            synchronize=lambda: None,
            elapsed_time=lambda _: 1.0,
        )

    def profile(**_options):
        begun.append("begun")
        if len(begun) == 2:
            raise RuntimeError("busy")
        done = dict.fromkeys(("start", "stop", "export_chrome_trace"), lambda *_: None)
        return SimpleNamespace(events=list, key_averages=list, **done)

    monkeypatch.setattr("torch.profiler.profile", profile)
    timer = GpuTimer(
        lambda clock: StepRecorder(events, context.progress, window_s=99, clock=clock), mark
    )
    Profiler(context, timer)

    def steps_after_wish(wish, number):
        wished = board.wish_for(0, wish)
        for _ in range(number):
            timer.step(samples=1)
        return board.pipes[0].report_on(wished)

    for _ in range(10):
        timer.step(samples=1)
    report = steps_after_wish(3, 12)
    assert 3 <= report.steps <= 3 + lag
    windows = [one.steps for one in written if one.__struct_config__.tag == "steps"]
    assert windows[0] == report.last_step - report.steps  # what went before
    assert begun == ["begun"]
    assert steps_after_wish(2, 5).error == "RuntimeError: busy"
    timer.finish()
    windows = [one.steps for one in written if one.__struct_config__.tag == "steps"]
    assert sum(windows) == 10 + 12 + 5
