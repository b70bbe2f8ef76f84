"""The memory of one rank of a training, by torch's trackers on fake tensors: nothing is computed.

For a process of its own, as it imports torch and the user's model. The device is cpu, where the
same tensors live as on a GPU; fake ones on cuda fail in the backward pass without a GPU. FSDP runs
in a process group whose other ranks do not exist.
"""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpcdist.job.spec import TrainingJob, job_from_dict
from hpcdist.machine.process import die_with_parent

_SEARCH_S = 30.0
"""Time after which no larger batch is tried."""


def track(asked: tuple[dict[str, Any], str, float | None]) -> tuple[float, int | None]:
    """Return the bytes of a rank at its peak, on CPUs with the process, its libraries and data, and
    the largest batch that fits: of a job, by its keys, the device of its ranks, and the bytes that
    each has; None: no batch is looked for.

    It goes on in a fork, as ranks are: pages of libraries count where they are used."""
    from hpcdist.data.catalog import load_data
    from hpcdist.workloads import load_workload

    values, device, room_bytes = asked
    job: Any = job_from_dict(values)
    for name in load_workload(job).preload():
        importlib.import_module(name)
    parent_pid = os.getpid()
    if os.fork():
        os.wait()
        os._exit(0)
    die_with_parent(parent_pid)
    data, begin_s = load_data(job.data, seed=job.train.seed), time.monotonic()
    base_bytes = _base_bytes() if device == "cpu" else 0
    # On CPUs, one process takes the batches of all GPUs that it stands for.
    gpus, batch = job.gpus_per_rank if device == "cpu" else 1, job.train.batch_size
    peak_bytes = tried_bytes = base_bytes + _peak(job, data, batch * gpus)
    if room_bytes is None:
        return peak_bytes, None
    low, high, most = 0, 0, len(data.train) // job.num_ranks // gpus
    # Doubled until one does not fit, then bisected.
    while time.monotonic() - begin_s < _SEARCH_S:
        low, high = (batch, high) if tried_bytes <= room_bytes else (low, batch)
        batch = (low + high) // 2 if high else min(2 * low, most)
        if batch - low <= low // 16:
            break
        tried_bytes = base_bytes + _peak(job, data, batch * gpus)
    return peak_bytes, low


def _base_bytes() -> int:
    """Return the memory of this process after a step of a small model, which brings in what every
    training uses of the libraries."""
    import torch
    from torch import nn

    tiny = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    optimizer = torch.optim.AdamW(tiny.parameters(), fused=True)
    torch.autograd.backward(tiny(torch.rand(4, 1, 8, 8)).sum())
    optimizer.step()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak(job: TrainingJob, data: Any, batch: int) -> int:
    """Return the bytes of tensors at the peak: of a step after the first, and of an evaluation,
    whose batches may be larger."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F  # noqa: N812 - its usual name
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    from hpcdist.training.evaluation import BATCH_SIZE
    from hpcdist.training.models import build_model
    from hpcdist.training.strategies import PRECISIONS, STRATEGIES, build_optimizer

    fake, strategy = FakeTensorMode(), getattr(job, "strategy", "")
    with fake:
        model = build_model(job.model, data.image_shape, data.num_classes)
    if strategy == "fsdp":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        store, context = FakeStore(), SimpleNamespace(device="cpu")
        if not dist.is_initialized():
            dist.init_process_group("fake", store=store, rank=0, world_size=job.num_ranks)
        model = STRATEGIES[strategy].wrap(model, context, job.train)  # type: ignore[arg-type]
    optimizer = build_optimizer(model, job.train)
    autocast = PRECISIONS[job.train.precision].autocasting(torch.device("cpu"))

    def compute_gradients() -> None:
        images, labels = torch.rand(batch, *data.image_shape), torch.zeros(batch).long()
        with autocast:
            loss = F.cross_entropy(model(images).float(), labels, reduction="sum")
        torch.autograd.backward(loss)

    # A first step gives the optimizer its state. It is fused, and takes no memory for itself; on
    # fake parameters that are cut up it would.
    keeps_gradients = strategy == "ddp" or (strategy == "auto" and job.num_ranks > 1)  # in buckets
    with fake:
        compute_gradients()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not keeps_gradients)
    tracker: Any = FSDPMemTracker(model, optimizer) if strategy == "fsdp" else MemTracker()
    tracker.track_external(model, optimizer)  # FSDP's has them
    with fake, tracker:
        compute_gradients()
        optimizer.zero_grad(set_to_none=not keeps_gradients)
        if job.train.evaluate_every_epochs:
            tracker.reset_mod_stats()
            model.eval()
            with torch.no_grad(), autocast:
                model(torch.rand(min(BATCH_SIZE, len(data.test)), *data.image_shape))
    return sum(own["Total"] for own in tracker.get_tracker_snapshot("peak").values())
