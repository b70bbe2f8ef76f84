"""Exercise 8, solved: a training with DistributedDataParallel whose steps are recorded.

hpcdist submit two_gpus_solved.py --local --sweep "gpus=1,2" --repeat 3
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from fashion_cnn import FashionCNN, load_data
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from hpcdist import record


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on one GPU or several")
    parser.add_argument("--epochs", default=3, type=int)
    train(parser.parse_args())


def train(args: argparse.Namespace) -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, gpu = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", gpu) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(0)
    model = DistributedDataParallel(FashionCNN().to(device))
    data, _ = load_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    record.start(model=model)  # forward and backward, communication, optimizer
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in record.batches(loader):  # waiting for data
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record.step(samples=len(images), loss=loss)
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs}, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
