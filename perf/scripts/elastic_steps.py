"""Steps over the samples of one epoch, with a checkpoint every five, in a world that may shrink.

Under hpcdist each step takes the same samples in any world; under torchrun, which has no rule, they
are those of a DistributedSampler, as its users write it: every rank has batches of its own.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from hpcdist import record

BATCH, SAMPLES, FULL = 8, 12800, 8

folder, world = Path(sys.argv[1]), record.elastic()
is_ours, rank, size = "HPCDIST_RUN_DIR" in os.environ, world.rank, world.size
dist.init_process_group("gloo")
at = torch.tensor([int((folder / "step").read_text()) if (folder / "step").exists() else 0])
dist.broadcast(at, src=0)
per_step = BATCH * (FULL if is_ours else size)
with (folder / f"steps-{size}-{rank}.jsonl").open("a", buffering=1) as file:
    for step in range(int(at), SAMPLES // per_step):
        begin = step * per_step
        if is_ours:
            own = range(begin + per_step * rank // size, begin + per_step * (rank + 1) // size)
        else:
            own = range(begin + rank, begin + per_step, size)
        dist.all_reduce(torch.ones(1000))
        time.sleep(0.05)
        line = {"step": step, "size": size, "from": int(at), "time_s": time.time()}
        file.write(json.dumps(line | {"samples": [*own]}) + "\n")
        dist.barrier()
        if rank == 0 and (step + 1) % 5 == 0:
            (folder / "aside").write_text(str(step + 1))
            (folder / "aside").replace(folder / "step")
