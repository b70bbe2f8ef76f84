"""Slurm: jobs by sbatch through submitit, states by squeue and sacct."""

from hpcdist.schedulers.slurm.scheduler import SlurmScheduler, scheduler

__all__ = ["SlurmScheduler", "scheduler"]
