"""DistributedDataParallel on gloo with a snapshot that training goes on from."""

import argparse
import csv
import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Line(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.rand(size, 20, generator=generator)
        self.targets = self.inputs.sum(1, keepdim=True)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Trainer:
    def __init__(self, model, data, optimizer, snapshot):
        self.rank = int(os.environ["RANK"])
        self.model, self.data, self.optimizer, self.snapshot = model, data, optimizer, snapshot
        self.first_epoch = 0
        if os.path.exists(snapshot):
            state = torch.load(snapshot, map_location="cpu")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.first_epoch = state["epoch"] + 1
        self.model = DistributedDataParallel(self.model)

    def train(self, epochs):
        for epoch in range(self.first_epoch, epochs):
            self.data.sampler.set_epoch(epoch)
            for inputs, targets in self.data:
                self.optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
                loss.backward()
                self.optimizer.step()
            log.writerow([epoch, repr(loss.item())])
            if self.rank == 0:
                state = {
                    "model": self.model.module.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "epoch": epoch,
                }
                torch.save(state, self.snapshot)
            dist.barrier()
        return loss


def train_from_snapshot(epochs, options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    data = Line(512)
    loader = DataLoader(data, batch_size=options.batch_size, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return Trainer(model, loader, optimizer, "snapshot.pt").train(epochs)


parser = argparse.ArgumentParser()
parser.add_argument("epochs", type=int)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--no-destroy", action="store_true")
options = parser.parse_args()

dist.init_process_group("gloo")
log = csv.writer(open(f"losses-{dist.get_rank()}.csv", "w", buffering=1))
train_from_snapshot(options.epochs // 2, options)
loss = train_from_snapshot(options.epochs, options)
total = loss.detach().clone()
dist.all_reduce(total)
gathered = [None] * dist.get_world_size()
dist.all_gather_object(gathered, {"rank": dist.get_rank(), "loss": loss.item()})
with open(f"last-{dist.get_rank()}.json", "w") as file:
    json.dump([repr(total.item()), gathered], file)
if not options.no_destroy:
    dist.destroy_process_group()
