"""A model that leaves itself 1 GiB of memory (RLIMIT_AS), and needs more where it is wide."""

import os
import resource
from pathlib import Path

from torch import nn


class Net(nn.Sequential):
    def __init__(self, width):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))


def go_to_its_folder():
    """A change of agents: their ranks find the model as a run in its folder would."""
    os.chdir(Path(__file__).parent)
