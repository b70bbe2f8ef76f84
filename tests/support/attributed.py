"""Models with a cause of lost time built in, which their arguments name.

What is slowed down sleeps: that takes no CPU time from others, and is long beside all noise.
"""

import os
import time
from pathlib import Path

from torch import nn

SLEEP_S = 0.05
SAVE_S = 0.3


def go_to_its_folder() -> None:
    """A change of agents: their ranks find the models as a run in this folder would."""
    os.chdir(Path(__file__).parent)


class Slowed(nn.Module):
    """A small model for images of 8 x 8."""

    def __init__(self, cause: str, num_classes: int = 10) -> None:
        """`cause`: rank or saving."""
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.last = nn.Linear(32, num_classes)
        self._is_slow = cause == "rank" and os.environ.get("RANK") == "1"
        if cause == "saving":
            self.register_state_dict_post_hook(lambda *_: time.sleep(SAVE_S))

    def forward(self, images):
        if self._is_slow and self.training:
            time.sleep(SLEEP_S)
        return self.last(self.layers(images))
