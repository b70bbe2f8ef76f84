"""wandb without its server: rank 0 logs, and what it kept is read back."""

import json
import os

import torch.distributed as dist
import wandb

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    run = wandb.init(project="foreign", mode="offline", dir=".", config={"lr": 0.1})
    for step in range(5):
        run.log({"loss": 1 / (step + 1)})
    facts = {
        "steps": run.step,
        "lr": run.config["lr"],
        "program": os.path.basename(run.settings.program or ""),
    }
    run.finish()
    folder = os.path.realpath("wandb/latest-run")
    facts["kept"] = sorted(name for name in os.listdir(folder) if not name.endswith(".wandb"))
    with open("facts-0.json", "w") as file:
        json.dump(facts, file)
dist.barrier()
dist.destroy_process_group()
