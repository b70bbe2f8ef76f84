"""The state that a checkpoint holds of a rank: weights, optimizer state, random generators.

A model may be cut up over the ranks, or not, and so may what it takes over.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcdist.data.order import derive_seed
from hpcdist.training.optimization import get_settings, restore_settings

_MODEL = "model."
_OPTIMIZER = "optimizer."


def take_over(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Go on with the weights (`model`) and moments (`optimizer`) of a state; whole tensors are cut
    up where the model's are: then all ranks must call this. Settings of the optimizer, such as the
    weight decay, stay the job's."""
    model.load_state_dict(weights_like(model, state["model"]))
    moments = moments_like(optimizer, state["optimizer"]["state"])
    settings = get_settings(optimizer)
    optimizer.load_state_dict({**state["optimizer"], "state": moments})
    restore_settings(optimizer, settings)


def weights_like(model: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    """Return weights by name, cut up where the model's are: then all ranks must call this."""
    own = model.state_dict()
    return {name: _like(value, own.get(name)) for name, value in weights.items()}


def moments_like(
    optimizer: torch.optim.Optimizer, moments: dict[int, dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Return an optimizer's state by the number of its parameter, cut up where parameters are."""
    parameters = _trained(optimizer)
    return {
        index: {key: _like(value, parameters[index]) for key, value in entries.items()}
        for index, entries in moments.items()
    }


def flatten(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return all tensors on this rank: `model.<name>`, `optimizer.<parameter's name>.<kind>`."""
    flat = {_MODEL + name: value for name, value in model.state_dict().items()}
    for name, index in _numbers(model, optimizer).items():
        for kind, value in optimizer.state[_trained(optimizer)[index]].items():
            if isinstance(value, Tensor):
                flat[f"{_OPTIMIZER}{name}.{kind}"] = value
    return flat


def empty_like(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    stored: dict[str, tuple[torch.Size, torch.dtype]],
) -> dict[str, Tensor]:
    """Return tensors to read stored ones into, cut up as the model's."""
    flat = {_MODEL + name: torch.empty_like(value) for name, value in model.state_dict().items()}
    numbers, parameters = _numbers(model, optimizer), _trained(optimizer)
    for full, (shape, dtype) in stored.items():
        name, _, _ = full.removeprefix(_OPTIMIZER).rpartition(".")
        if full.startswith(_OPTIMIZER) and name in numbers:
            own = parameters[numbers[name]].detach()
            if shape.numel() > max(1, own.numel()):
                raise ValueError(f"{full} has the shape {tuple(shape)}")
            is_alike = shape == own.shape
            flat[full] = (
                torch.empty_like(own, dtype=dtype) if is_alike else torch.empty(shape, dtype=dtype)
            )
    return flat


def unflatten(
    model: nn.Module, optimizer: torch.optim.Optimizer, flat: dict[str, Tensor]
) -> dict[str, Any]:
    """Return what `flatten` made, as `take_over` wants it."""
    numbers = _numbers(model, optimizer)
    weights: dict[str, Tensor] = {}
    moments: dict[int, dict[str, Tensor]] = {}
    for full, value in flat.items():
        if full.startswith(_MODEL):
            weights[full.removeprefix(_MODEL)] = value
        else:
            name, _, kind = full.removeprefix(_OPTIMIZER).rpartition(".")
            moments.setdefault(numbers[name], {})[kind] = value
    groups = optimizer.state_dict()["param_groups"]
    return {"model": weights, "optimizer": {"state": moments, "param_groups": groups}}


def _trained(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _numbers(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the number that the optimizer gives each parameter, by its name."""
    numbers = {id(parameter): index for index, parameter in enumerate(_trained(optimizer))}
    return {
        name: numbers[id(parameter)]
        for name, parameter in model.named_parameters()
        if id(parameter) in numbers
    }


def _like(value: Any, own: Tensor | None) -> Any:
    """Return the value, cut up as `own` is where it has the same shape."""
    mesh = getattr(own, "device_mesh", None)
    if own is None or mesh is None or hasattr(value, "device_mesh"):
        return value
    if not isinstance(value, Tensor) or value.shape != own.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(own, DTensor)
    return distribute_tensor(value.to(own.device), mesh, own.placements)


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
    """Return the state of python's, numpy's and torch's generators, and of the device's."""
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
