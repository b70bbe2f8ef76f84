"""Exercise 11: what a rank holds of a model that is copied, and of one that is sharded.

hpcdist submit sharded.py --gpus 2 --local

It runs as it is, and copies the model twice. There is one TODO.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def make_model() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*blocks, nn.Linear(512, 10))


def num_bytes(tensors: list[torch.Tensor]) -> int:
    """Return the bytes that this rank holds."""
    held = [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
    return sum(tensor.nbytes for tensor in held)


def train(model: nn.Module, device: torch.device, steps: int) -> tuple[int, float]:
    """Return the bytes of parameters, gradients and optimizer after some steps, and the loss."""
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        images = torch.rand(32, 512, generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(images), (images.sum(1) % 10).long())
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
    parameters = list(model.parameters())
    gradients = [one.grad for one in parameters]
    states = [value for state in optimizer.state.values() for value in state.values()]
    return num_bytes([*parameters, *gradients, *states]), loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a copied model with a sharded one")
    parser.add_argument("--steps", default=5, type=int)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", dist.get_node_local_rank()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)

    copied, copied_loss = train(
        DistributedDataParallel(make_model().to(device)), device, args.steps
    )
    model = make_model().to(device)
    # TODO: shard each block by torch.distributed.fsdp.fully_shard, then the model, instead:
    model = DistributedDataParallel(model)
    sharded, sharded_loss = train(model, device, args.steps)
    if dist.get_rank() == 0:
        print(f"copied:  {copied / 1e6:.2f} MB per rank, loss {copied_loss:.5f}")
        print(f"sharded: {sharded / 1e6:.2f} MB per rank, loss {sharded_loss:.5f}")
        print(f"{sharded / copied:.2f} of it, on {dist.get_world_size()} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
