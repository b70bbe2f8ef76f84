"""TensorBoard's writer and MLflow's store, neither of them closed."""

import os

import mlflow
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

dist.init_process_group("gloo")
rank = dist.get_rank()
writer = SummaryWriter(f"board-{rank}")
for step in range(5):
    writer.add_scalar("loss", 1 / (step + 1), step)
if rank == 0:
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment("foreign")
    mlflow.start_run(run_name="first")
    mlflow.log_params({"lr": 0.1})
    for step in range(5):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
dist.barrier()
dist.destroy_process_group()
