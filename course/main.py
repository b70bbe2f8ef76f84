"""Exercise 7: a script that starts its processes itself, as many tutorials have it.

python main.py --nodes 1 --gpus 2 --epochs 2 --nr 0

On two nodes it is started twice, with --nr 0 and --nr 1, and with the first node's address in
MASTER_ADDR. It runs as it is, but not under torchrun or hpcdist. There are three TODOs.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fashion_cnn import FashionCNN, load_data
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on several nodes")
    parser.add_argument("-n", "--nodes", default=1, type=int, help="number of nodes")
    parser.add_argument("-g", "--gpus", default=1, type=int, help="GPUs per node")
    parser.add_argument("-nr", "--nr", default=0, type=int, help="number of this node")
    parser.add_argument("--epochs", default=2, type=int)
    args = parser.parse_args()
    # TODO 1: leave out what starts processes and says where they meet.
    args.world_size = args.gpus * args.nodes
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "28888"
    mp.spawn(train, nprocs=args.gpus, args=(args,))


def train(gpu: int, args: argparse.Namespace) -> None:
    # TODO 2: find the rank in the environment.
    rank = args.nr * args.gpus + gpu
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=args.world_size)
    device = torch.device("cuda", gpu) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(0)
    model = DistributedDataParallel(FashionCNN().to(device))
    data, _ = load_data()
    # TODO 3: ask the process group for the number of ranks and the rank.
    sampler = DistributedSampler(data, num_replicas=args.world_size, rank=rank)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1}/{args.epochs}, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
