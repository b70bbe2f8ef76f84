"""Causes of lost time that are built into real runs: the summary names each of them first."""

import io
import json
import re
from pathlib import Path

import attributed
import pytest
from harness import start_run

from hpcdist.job.load import Flag, LoadedJob, load_job
from hpcdist.summary import print_summary, summarize, to_json
from hpcdist.summary.report.sentences import NAMES
from hpcdist.summary.report.text import make_console
from hpcdist.workloads import load_workload

FOLDER = Path(attributed.__file__).parent
SHORT = ("train.batch_size=16", "train.evaluate_every_epochs=0", "record.window_s=0.05")
ADVICE_BEGINS = {
    "data": "data wait is ",
    "stragglers": "waiting for the slowest rank is ",
    "communication": "exposed communication is ",
    "checkpoints": "saving checkpoints is ",
}
SAVE_NEVER = ("checkpoint.every_epochs=0",)


@pytest.fixture
def run_job(tmp_path, running, lightning_zygote):
    """Run a job to its end, which finds models where this file does; returns what is `told` of the
    run."""

    def run(loaded):
        change = "attributed:go_to_its_folder"
        launched = running(*start_run(lightning_zygote, loaded, tmp_path / "runs", change=change))
        assert launched.verdict().state == "done", launched.everything_said()
        return told([launched.run])

    return run


@pytest.fixture
def train(run_job, monkeypatch):
    """Train a slowed model with two ranks."""
    monkeypatch.chdir(FOLDER)

    def start(job, cause, *settings, nodes=1):
        flags = {
            "resources.nodes": nodes,
            "resources.gpus": 2 // nodes,
            "launch.device": "cpu",
        }
        model = ("model.name=attributed:Slowed", f"model.args.cause={cause}")
        loaded = load_job(
            job,
            flags={key: Flag(name=key, value=value) for key, value in flags.items()},
            overrides=[*model, *SHORT, *settings],
        )
        load_workload(loaded.job).check()
        return run_job(loaded)

    return start


def told(runs):
    """The run in the summary's JSON, and the summary's text as one line."""
    summary = summarize(runs, {})
    text = io.StringIO()
    print_summary(summary, make_console(text))
    (row,) = json.loads(json.dumps(to_json(summary)))
    return row, " ".join(text.getvalue().split())


def assert_named_first(row, text, part):
    """The part is the largest loss, in the figures, the sentence and the advice."""
    losses = row["cell"]
    assert losses["largest"] == part, losses
    assert losses["shares"][part] == max(losses["shares"].values())
    assert re.search(rf"% is not computing: \d+ % {NAMES[part]}", text), text
    if part in ADVICE_BEGINS:
        assert losses["advice"][0][1:] in text
        assert losses["advice"][0].startswith(ADVICE_BEGINS[part])


@pytest.mark.parametrize(
    ("job", "cause", "longer_s", "node"),
    [
        ("ddp", "rank", attributed.SLEEP_S, 1),
        ("lightning", "rank", attributed.SLEEP_S, 0),
        ("ddp", "limited", attributed.COMPUTING_S, 0),
    ],
)
def test_a_slow_rank_is_told_from_a_slow_network_and_named_with_its_place(
    train, job, cause, longer_s, node
):
    row, text = train(job, cause, "train.max_steps=40", *SAVE_NEVER, nodes=node + 1)
    assert_named_first(row, text, "stragglers")
    straggler = row["cell"]["straggler"]
    assert (straggler["rank"], straggler["node"]) == (1, node)
    assert straggler["host"] in text
    assert straggler["longer_s"] > 0.5 * longer_s  # more where the machine is busy
    assert f"rank 1 (node {node}, host " in row["cell"]["advice"][0]


def test_a_slow_network_is_no_ranks_fault(train):
    row, text = train("ddp", "network", "train.max_steps=40", *SAVE_NEVER)
    assert_named_first(row, text, "communication")
    assert row["cell"]["shares"]["stragglers"] < 0.2
    assert "train.accumulate=2" in row["cell"]["advice"][0]


def test_slow_checkpoints_are_saved_less_often(train):
    row, text = train("ddp", "saving", "train.max_steps=60", "checkpoint.every_steps=5")
    assert_named_first(row, text, "checkpoints")
    assert "checkpoint.every_steps=50 would give about" in row["cell"]["advice"][0]


def test_a_rank_that_was_killed_costs_a_restart(train):
    settings = ("train.max_steps=100", "launch.max_restarts=1", *SAVE_NEVER)
    row, text = train("ddp", "killed", *settings)
    assert row["restarts"] == 1
    assert_named_first(row, text, "restarts")
    assert "rank 1 (node 0, host" in text
    assert "SIGKILL" in text


SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from hpcdist import record

sys.path.insert(0, {folder!r})
import attributed

cause = sys.argv[1]

class Slow(Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, index):
        time.sleep(0.005 if cause == "loader" else 0)
        return torch.randn(1, 8, 8)

torch.set_num_threads(1)
dist.init_process_group("gloo")
net = attributed.Slowed(cause)
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
record.start(model=model)
for images in record.batches(DataLoader(Slow(), batch_size=4)):
    model(images).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    record.step(samples=len(images))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("cause", "part"),
    [
        ("loader", "data"),
        ("network", "communication"),
    ],
)
def test_what_slows_down_a_script_is_named_first(run_job, script_job, write_script, cause, part):
    script = write_script(SCRIPT.format(folder=str(FOLDER)))
    row, text = run_job(LoadedJob(job=script_job(script, cause, gpus=2), source=str(script)))
    assert_named_first(row, text, part)
    # On a busy machine ranks do wait for each other; but not as long as for what is slowed down.
    shares = row["cell"]["shares"]
    assert shares["stragglers"] < shares[part] / 2
