"""Causes of lost time that are built into real runs: the summary names each of them first."""

import re

import pytest
from summary_text import in_words

from hpcdist.summary import summarize
from hpcdist.summary.report.sentences import NAMES

SLEEP_S = 0.05
SCRIPT = f"""
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from hpcdist import record

class Items(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        time.sleep(0.005 if cause == "data" else 0)
        return torch.randn(64)

cause = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
record.start(model=model)
for images in record.batches(DataLoader(Items(), batch_size=4)):
    loss = model(images).square().mean()
    time.sleep({SLEEP_S} if cause == "stragglers" and dist.get_rank() == 1 else 0)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    record.step(samples=len(images))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("share", ["data", "stragglers"])
def test_a_slow_loader_or_a_slow_rank_is_named_first_with_its_place(launch, write_script, share):
    launched = launch(write_script(SCRIPT), share, nodes=2, window_s=0.05)
    assert launched.verdict().state == "done", launched.everything_said()
    summary = summarize([launched.run], {})
    cell, text = summary.runs[0].cell, in_words(summary)
    assert cell.largest == share, cell
    assert cell.shares[share] == max(cell.shares.values())
    assert re.search(rf"% is not computing: \d+ % {NAMES[share]}", text), text
    assert cell.advice[0][1:] in text
    if share == "data":
        # On a busy machine ranks do wait for each other; but not as long as for what is slow.
        assert cell.shares["stragglers"] < cell.shares["data"] / 2
    else:
        straggler = cell.straggler
        assert (straggler.rank, straggler.node) == (1, 1)
        assert straggler.longer_s > 0.5 * SLEEP_S  # more where the machine is busy
        assert f"rank 1 (node 1, host {straggler.host})" in cell.advice[0]
