"""What is done to training images: presets and lists of torchvision's v2 transforms.

What an image becomes depends on its pixels and one seed alone. Transforms are applied to images of
PIL, as torchvision applies them; those that take tensors only get the same uint8 pixels.
"""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

Spec = str | Sequence[str | Mapping[str, Any]]
"""data.transform: the name of a preset, or a list of names, each alone or with its arguments."""

_AFFINE = {"RandomAffine": {"degrees": 5, "translate": (0.1, 0.1), "scale": (0.5, 2.0)}}

PRESETS: dict[str, tuple[str | dict[str, Any], ...]] = {
    "none": (),
    "light": (_AFFINE,),
    "heavy": (
        _AFFINE,
        {"RandomPerspective": {"distortion_scale": 0.3, "p": 0.5}},
        {"ColorJitter": {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.05}},
        {"GaussianBlur": {"kernel_size": 5, "sigma": (0.1, 2.0)}},
        {"RandomErasing": {"p": 0.25}},
    ),
}
"""Name -> the list that it stands for."""

_MODULES = ("_augment", "_auto_augment", "_color", "_geometry", "_misc")
_NOT_OFFERED = frozenset(
    {
        *("CutMix", "MixUp"),  # of whole batches, and of labels
        *("FiveCrop", "TenCrop"),  # several images of one
        *("RandomIoUCrop", "SanitizeBoundingBoxes", "SanitizeKeyPoints"),  # need boxes
        *("ConvertImageDtype", "GaussianNoise", "LinearTransformation", "Normalize", "ToDtype"),
        "Lambda",
    }
)
"""What does not make one image of 8 bits per channel of another."""
_TENSORS_ONLY = frozenset({"RandomErasing", "RandomChannelPermutation", "RandomPhotometricDistort"})
_CONSTRUCT = """\
import json, sys
from hpcdist.data.images.transforms import build_transform
try:
    build_transform(json.load(sys.stdin))
except Exception as error:
    sys.exit(str(error) or type(error).__name__)
"""


@dataclass(frozen=True)
class Step:
    """One transform of a list, and what it takes."""

    name: str
    arguments: Mapping[str, Any]


class Transform:
    """Transforms one image after the other."""

    def __init__(self, calls: Sequence[Callable[[Any], Any]]) -> None:
        self._calls = calls

    def __bool__(self) -> bool:
        """Whether anything is done."""
        return bool(self._calls)

    def apply(self, image: Image.Image, seed: int) -> NDArray[np.uint8]:
        """The pixels [height, width, channels] of the changed image; whatever torchvision raises.

        Sets torch's generator on the CPU to `seed`: who needs its state keeps it.
        """
        import numpy as np
        import torch

        torch.default_generator.manual_seed(seed)
        changed: Any = image
        for call in self._calls:
            changed = call(changed)
        if isinstance(changed, torch.Tensor):
            changed = changed.permute(1, 2, 0).numpy()
        pixels: NDArray[np.uint8] = np.asarray(changed)
        return pixels if pixels.ndim > 2 else pixels[..., None]

    def try_on(self, image: Image.Image) -> tuple[int, int, int]:
        """(channels, height, width) of what becomes of an image; torch's generator is kept.

        JobError where that fails.
        """
        try:
            with kept_random_state():
                height, width, channels = self.apply(image, seed=0).shape
        except Exception as error:  # noqa: BLE001 - torchvision raises whatever it likes
            raise JobError(
                f"data.transform fails with images of {image.width} x {image.height} pixels: "
                f"{error or type(error).__name__}",
                hint="its arguments must fit the images, or data.size be such that they do",
            ) from None
        return channels, height, width


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Dropout and the like go on as if no transform had drawn anything."""
    import torch

    before = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def check_transform(spec: Spec) -> None:
    """JobError for what is no transform, or is given wrong arguments.

    Names and the arguments' names are held against torchvision's source without importing it; a
    list is then made as a trial in a process of its own, as that takes seconds.
    """
    if isinstance(spec, str) and spec in PRESETS:
        return
    for step in steps_of(spec):
        _check_step(step)
    done = subprocess.run(
        [sys.executable, "-c", _CONSTRUCT],
        input=json.dumps(spec),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        raise JobError(
            f"data.transform is {_shown(spec)}: torchvision cannot make it: {reason}",
            hint="its arguments are those of torchvision.transforms.v2",
        )


def is_unchanged(spec: Spec) -> bool:
    """Whether nothing is done to an image."""
    return not steps_of(spec)


def build_transform(spec: Spec) -> Transform:
    """What `spec` says, ready to be applied."""
    steps = steps_of(spec)
    if not steps:
        return Transform(())
    from torchvision.transforms import v2
    from torchvision.transforms.v2 import functional

    calls: list[Callable[[Any], Any]] = []
    for step in steps:
        if step.name in _TENSORS_ONLY:
            calls.append(functools.partial(_to_tensor, functional.pil_to_tensor))
        calls.append(_call(getattr(v2, step.name)(**step.arguments)))
    return Transform(calls)


def _call(transform: Any) -> Callable[[Any], Any]:
    """The transform for a single image, without the search for images in whatever is given."""
    from torchvision.transforms import v2

    plain = type(transform).forward is v2.Transform.forward and hasattr(transform, "make_params")
    return functools.partial(_draw_and_change, transform) if plain else transform


def _draw_and_change(transform: Any, image: Any) -> Any:
    return transform.transform(image, transform.make_params([image]))


def _to_tensor(convert: Callable[[Any], Any], image: Any) -> Any:
    import torch

    return image if isinstance(image, torch.Tensor) else convert(image)


def steps_of(spec: Spec) -> list[Step]:
    """The transforms that `spec` stands for, presets as what they are; JobError."""
    if isinstance(spec, str):
        if spec in PRESETS:
            return steps_of(PRESETS[spec])
        if spec not in _known():
            names = nearest_first(spec, [*PRESETS, *_known()])[:6]
            raise JobError(
                f"data.transform is {spec!r}, which is neither a preset nor a transform of "
                "torchvision that is known",
                hint=f"near to it are: {', '.join(names)}; presets are {', '.join(PRESETS)}",
            )
        return [Step(spec, {})]
    return [step for item in spec for step in _item_steps(item)]


def _item_steps(item: str | Mapping[str, Any]) -> list[Step]:
    if isinstance(item, str):
        return steps_of(item)
    if len(item) != 1:
        raise JobError(
            f"data.transform has the item {_shown(item)}, which must be one name with its "
            "arguments",
            hint="for example {RandomAffine: {degrees: 5}}",
        )
    [(name, arguments)] = item.items()
    if not isinstance(arguments, Mapping):
        raise JobError(
            f"data.transform: the arguments of {name} are {_shown(arguments)}, must be names with "
            "values",
            hint="for example {RandomAffine: {degrees: 5}}",
        )
    if name in PRESETS:
        return steps_of(PRESETS[name])
    return [Step(name, dict(arguments))]


def _check_step(step: Step) -> None:
    known = _known()
    if step.name not in known:
        names = nearest_first(step.name, known)[:6]
        raise JobError(
            f"data.transform has {step.name!r}, which is no transform that is known",
            hint=f"near to it are: {', '.join(names)}",
        )
    arguments = known[step.name]
    for name in step.arguments:
        if name not in arguments:
            raise JobError(
                f"data.transform: {step.name} has no argument {name!r}",
                hint="its arguments are: " + ", ".join(nearest_first(name, arguments)),
            )


@functools.cache
def _known() -> dict[str, tuple[str, ...]]:
    """Transform -> names of its arguments, from torchvision's source."""
    package = find_spec("torchvision")
    if package is None or package.origin is None:
        raise JobError(
            "data.transform needs torchvision, which is not installed",
            hint="install it with: pip install torchvision",
        )
    folder = Path(package.origin).parent / "transforms" / "v2"
    trees = {name: ast.parse((folder / f"{name}.py").read_text()) for name in _MODULES}
    init = ast.parse((folder / "__init__.py").read_text())
    public = {
        alias.name
        for node in init.body
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES
        for alias in node.names
    }
    base = ast.parse((folder / "_transform.py").read_text())
    classes = {
        node.name: node
        for tree in (*trees.values(), base)
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    return {name: _arguments(name, classes) for name in sorted(public - _NOT_OFFERED)}


def _arguments(name: str, classes: Mapping[str, ast.ClassDef]) -> tuple[str, ...]:
    """Of the constructor, which may be that of a base."""
    while name in classes:
        definition = classes[name]
        for node in definition.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                named = [*node.args.args[1:], *node.args.kwonlyargs]
                return tuple(argument.arg for argument in named)
        bases = [base.id for base in definition.bases if isinstance(base, ast.Name)]
        name = bases[0] if bases else ""
    return ()


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)
