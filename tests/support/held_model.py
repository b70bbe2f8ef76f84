"""A model whose training lasts until it is released."""

HELD_MODEL = """\
import time
from pathlib import Path

from hpcdist.training.models import FashionCNN


class HeldModel(FashionCNN):
    def forward(self, images):
        if self.training and not Path("released").exists():
            time.sleep(0.1)
        return super().forward(images)
"""
"""For held.py: it steps slowly until there is a file `released`. However quick a machine is, its
training does not end before a test has seen or stopped it."""
