"""Which models there are, known without importing torchvision, whose import takes seconds."""

from __future__ import annotations

import functools
import re
from importlib.util import find_spec
from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first
from hpcdist.training.model.own_model import check_own_model, is_own

BUILT_IN_CLASSES = {"fashion_cnn": "FashionCNN", "mlp": "MLP"}
"""model.name -> class in hpcdist.training.model.models."""
OWN_MODELS = tuple(BUILT_IN_CLASSES)

_REGISTERED = re.compile(r"^@register_model\(\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
_SHOWN = 8


@functools.cache
def torchvision_models() -> frozenset[str]:
    """Names of torchvision's classification models, read from its sources."""
    return frozenset(torchvision_sources())


@functools.cache
def torchvision_sources() -> dict[str, Path]:
    """The file that makes each of torchvision's classification models."""
    package = find_spec("torchvision")
    if package is None or package.origin is None:
        return {}
    sources = (Path(package.origin).parent / "models").glob("*.py")
    return {
        name: source
        for source in sources
        for name in _REGISTERED.findall(source.read_text("utf-8"))
    }


def is_torchvision(name: str) -> bool:
    """Whether the model is one of torchvision's, and not our own."""
    return name not in OWN_MODELS and not is_own(name)


def check_model_name(name: str) -> None:
    """Raise JobError, with the nearest known names, for a name that no model has."""
    if is_own(name):
        check_own_model(name)
        return
    if name in OWN_MODELS or name in torchvision_models():
        return
    nearest = nearest_first(name, [*OWN_MODELS, *sorted(torchvision_models())])
    raise JobError(
        f"model.name is {name!r}, which is no model that is known",
        hint=f"the nearest of {len(nearest)} are: {', '.join(nearest[:_SHOWN])}; a class of your "
        "own is named as package.module:Class",
    )
