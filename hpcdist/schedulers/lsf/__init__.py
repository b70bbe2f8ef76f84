"""LSF: jobs by bsub through submitit, states by bjobs."""

from hpcdist.schedulers.lsf.scheduler import LsfScheduler, scheduler

__all__ = ["LsfScheduler", "scheduler"]
