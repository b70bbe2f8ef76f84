"""What a program that has imported torch finds, and what of its main script workers can load.

Programs that are given as arguments run after that: torch is imported once for all.
"""

import json
import os
import runpy
import sys
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return [index]


def collate(items):
    return torch.tensor(items)


def loaded():
    options = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "fork"}
    loader = DataLoader(Numbers(), collate_fn=collate, persistent_workers=True, **options)
    return [batch.tolist() for batch in loader]


facts = {
    "filters": [[f[0], getattr(f[1], "pattern", f[1]), f[2].__name__] for f in warnings.filters],
    "modules": sorted(name for name in sys.modules if name.partition(".")[0] == "torch"),
    "threads": torch.get_num_threads(),
    "grad": torch.is_grad_enabled(),
    "cudnn": [torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark],
    "cuda": [torch.cuda.is_available(), torch.cuda.is_initialized(), torch.cuda.device_count()],
    "sharing": mp.get_sharing_strategy(),
    "distributed": [dist.is_initialized(), dist.is_torchelastic_launched()],
    "start method": mp.get_start_method(allow_none=True),
    "sum": (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item(),
    "threads of the process": len(os.listdir("/proc/self/task")),
}
if __name__ == "__main__":
    # Spawned workers, which import torch anew: tests/agent/test_script.py.
    facts["loaded"] = loaded()
    torch.set_num_threads(3)
    torch.set_num_interop_threads(3)
    facts["set threads"] = [torch.get_num_threads(), torch.get_num_interop_threads()]
    with open(f"facts-{os.environ['RANK']}.json", "w") as file:
        json.dump(facts, file)
    for program in sys.argv[1:]:
        sys.argv = program.split()
        runpy.run_path(sys.argv[0], run_name="__main__")
