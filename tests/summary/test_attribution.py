"""Causes of lost time that are built into real runs: the summary names each of them first."""

import json
import re
from pathlib import Path

import attributed
import pytest
from harness import start_run
from summary_text import in_words

from hpcdist.job.load import Flag, LoadedJob, load_job
from hpcdist.summary import summarize, to_json
from hpcdist.summary.report.sentences import NAMES

FOLDER = Path(attributed.__file__).parent
SHORT = ("train.batch_size=16", "train.evaluate_every_epochs=0", "record.window_s=0.05")
SAVE_NEVER = ("train.max_steps=40", "checkpoint.every_epochs=0")


@pytest.fixture
def run_job(tmp_path, running, jobs_zygote):
    """Run a job to its end, which finds models where this file does; returns its cell, and what is
    said of it."""

    def run(loaded):
        change = "attributed:go_to_its_folder"
        launched = running(*start_run(jobs_zygote, loaded, tmp_path / "runs", change=change))
        assert launched.verdict().state == "done", launched.everything_said()
        summary = summarize([launched.run], {})
        (row,) = json.loads(json.dumps(to_json(summary)))
        return row["cell"], in_words(summary)

    return run


@pytest.fixture
def train(run_job, monkeypatch):
    """Train a slowed model with two ranks."""
    monkeypatch.chdir(FOLDER)

    def start(cause, *settings, nodes=1):
        flags = {
            "resources.nodes": nodes,
            "resources.gpus": 2 // nodes,
            "launch.device": "cpu",
        }
        model = ("model.name=attributed:Slowed", f"model.args.cause={cause}")
        flags = {key: Flag(name=key, value=value) for key, value in flags.items()}
        return run_job(load_job("ddp", flags=flags, overrides=[*model, *SHORT, *settings]))

    return start


def assert_named_first(cell, text, share):
    """The share is the largest, in the figures, the sentence and the advice."""
    assert cell["largest"] == share, cell
    assert cell["shares"][share] == max(cell["shares"].values())
    assert re.search(rf"% is not computing: \d+ % {NAMES[share]}", text), text
    assert cell["advice"][0][1:] in text


def test_a_slow_rank_is_told_from_a_slow_network_and_named_with_its_place(train):
    cell, text = train("rank", *SAVE_NEVER, nodes=2)
    assert_named_first(cell, text, "stragglers")
    straggler = cell["straggler"]
    assert (straggler["rank"], straggler["node"]) == (1, 1)
    assert straggler["longer_s"] > 0.5 * attributed.SLEEP_S  # more where the machine is busy
    assert f"rank 1 (node 1, host {straggler['host']})" in cell["advice"][0]


def test_slow_checkpoints_are_saved_less_often(train):
    cell, text = train("saving", "train.max_steps=60", "checkpoint.every_steps=5")
    assert_named_first(cell, text, "checkpoints")
    assert "checkpoint.every_steps=50 would give about" in cell["advice"][0]


SCRIPT = """
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from hpcdist import record

class Slow(Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.randn(64)

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
record.start(model=model)
for images in record.batches(DataLoader(Slow(), batch_size=4)):
    model(images).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    record.step(samples=len(images))
dist.destroy_process_group()
"""


def test_a_slow_loader_of_a_script_is_named_first(run_job, script_job, write_script):
    script = write_script(SCRIPT)
    cell, text = run_job(LoadedJob(job=script_job(script, gpus=2), source=str(script)))
    assert_named_first(cell, text, "data")
    # On a busy machine ranks do wait for each other; but not as long as for what is slowed down.
    assert cell["shares"]["stragglers"] < cell["shares"]["data"] / 2
