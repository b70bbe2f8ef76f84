"""The state of a rank's random generators, as plain values that load with weights_only."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from hpcdist.data.order import derive_seed


def seed_weights(seed: int) -> None:
    """Seed all generators alike in all ranks: a user's model may draw its weights from any."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator, which a model would take
    torch.manual_seed(seed)


def seed_rank(seed: int, *, rank: int, step: int, device: torch.device) -> None:
    """Seed all generators of this rank for what follows a step: each rank drops out other units."""
    own = derive_seed(seed, rank, step, 1)  # the 1 tells it from the seeds of epochs
    random.seed(own)
    np.random.seed(own)  # noqa: NPY002 - models and transforms draw from the global generator
    torch.manual_seed(own)
    if device.type == "cuda":
        torch.cuda.manual_seed(own)


def get_rng_state(device: torch.device) -> dict[str, Any]:
    """The state of python's, numpy's and torch's generators, and of the device's."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - the global generator
    return {
        "python": [version, list(words), gauss],
        "numpy": [
            str(name),
            [int(key) for key in keys],
            int(position),
            int(has_gauss),
            float(cached),
        ],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Go on where `get_rng_state` was called."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    numpy_state = (name, np.array(keys, np.uint32), position, has_gauss, cached)
    np.random.set_state(numpy_state)  # noqa: NPY002 - the global generator, as above
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
