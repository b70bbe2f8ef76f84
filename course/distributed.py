"""Exercise 6: what each part of a script for DistributedDataParallel does.

hpcdist submit distributed.py --gpus 2 --local
torchrun --nproc-per-node 2 distributed.py

It runs as it is, but each rank trains by itself: the weights differ. There are three TODOs.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def say(text: str) -> None:
    """Print what this rank has to say, rank after rank."""
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            print(text, flush=True)
        dist.barrier()


def weight(model: nn.Module) -> str:
    return f"{next(model.parameters()).flatten()[0].item():+.4f}"


def main() -> None:
    for name in VARIABLES:
        print(f"{name}={os.environ.get(name)}", flush=True)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()

    # The wrapper: the ranks begin with other weights, as they have other seeds.
    torch.manual_seed(rank)
    model = nn.Linear(4, 1).to(device)
    say(f"weight before the wrapper {weight(model)}")
    # TODO 1: wrap the model by DistributedDataParallel.
    say(f"weight after the wrapper  {weight(model)}")

    # The sampler: each sample belongs to one rank, in another order in each epoch.
    data = TensorDataset(torch.arange(8).float()[:, None].expand(8, 4), torch.arange(8).float())
    sampler = SequentialSampler(data)  # TODO 2: DistributedSampler
    for epoch in range(2):
        # TODO 3: tell the sampler the epoch; what happens without?
        say(f"samples of epoch {epoch}: {list(sampler)}")

    # The barrier: rank 1 gets ready later, as where it has to read more.
    time.sleep(0.5 * rank)
    begin = time.perf_counter()
    dist.barrier()
    say(f"waited {time.perf_counter() - begin:.1f} s at the barrier")

    # A step: other samples, other losses, but one gradient and one weight.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, targets = next(iter(DataLoader(data, batch_size=4, sampler=sampler)))
    loss = nn.functional.mse_loss(model(images.to(device)).squeeze(), targets.to(device))
    loss.backward()
    linear = getattr(model, "module", model)  # inside the wrapper
    gradient = linear.weight.grad[0, 0].item()
    optimizer.step()
    say(f"loss {loss.item():.3f}, gradient {gradient:.3f}, weight {weight(model)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
