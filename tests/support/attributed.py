"""Models with a cause of lost time built in, which their arguments name.

What is slowed down sleeps, or is stopped: that takes no CPU time from others, and is long beside
all noise.
"""

import ctypes
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

SLEEP_S = 0.05
SAVE_S = 0.3
RUNNING_S, STOPPED_S = 0.01, 0.07
COMPUTING_S = 0.01
PR_SET_PDEATHSIG = 1
KILLED_AT_STEP = 90


def go_to_its_folder() -> None:
    """A change of agents: their ranks find the models as a run in this folder would."""
    os.chdir(Path(__file__).parent)


class Slowed(nn.Module):
    """A small model for images of 8 x 8."""

    def __init__(self, cause: str, num_classes: int = 10) -> None:
        """`cause`: rank, limited (its CPU), network, saving, or a rank that is killed."""
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.last = nn.Linear(32, num_classes)
        self._cause = cause
        self._num_calls = 0
        self._is_rank_1 = os.environ.get("RANK") == "1"
        if cause == "saving":
            self.register_state_dict_post_hook(lambda *_: time.sleep(SAVE_S))
        if cause == "network":
            delay_all_reduces()
        if cause == "limited" and self._is_rank_1:
            limit_cpu()

    def forward(self, images):
        self._num_calls += self.training
        if self._cause == "rank" and self._is_rank_1 and self.training:
            time.sleep(SLEEP_S)
        if self._cause == "limited":
            spin(COMPUTING_S)
        is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        is_due = self._num_calls == KILLED_AT_STEP and self._is_rank_1
        if self._cause == "killed" and is_first and is_due:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.last(self.layers(images))


def limit_cpu():
    """Stop this process again and again, as cpulimit does: an eighth of a CPU is left to it."""
    pid = os.getpid()
    if os.fork() == 0:
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            while os.getppid() == pid:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                time.sleep(RUNNING_S)
        finally:
            os._exit(0)


def spin(cpu_s):
    """Compute for so much CPU time."""
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


def delay_all_reduces():
    """Gradients reach all ranks later, whichever is asked."""
    whole = nn.parallel.DistributedDataParallel
    make = whole.__init__

    def make_delayed(self, *args, **options):
        make(self, *args, **options)
        self.register_comm_hook(None, all_reduce_late)

    whole.__init__ = make_delayed


def all_reduce_late(_state, bucket):
    """A communication hook of DistributedDataParallel: the mean, but late."""
    sent = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    def wait(done: torch.futures.Future) -> torch.Tensor:
        time.sleep(SLEEP_S)
        return done.value()[0] / dist.get_world_size()

    return sent.then(wait)
