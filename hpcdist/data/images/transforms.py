"""Transforms of training images: presets and lists of torchvision's v2 transforms.

What an image becomes depends on its pixels and one seed alone. Transforms are applied to images of
PIL, as torchvision applies them; those that take tensors only get the same uint8 pixels.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first
from hpcdist.data.trial import try_apart

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
_DONE_ANYWAY = frozenset(("ToTensor", "PILToTensor", "ToImage"))
"""How lists for torchvision end; a job makes tensors of all images, whatever its list says."""
_TENSORS_ONLY = frozenset({"RandomErasing", "RandomChannelPermutation", "RandomPhotometricDistort"})


class Transform:
    """Transforms one image after the other."""

    def __init__(self, calls: Sequence[tuple[Any, bool]]) -> None:
        """Transforms of torchvision, each with whether it takes tensors only."""
        self._calls = calls

    def __bool__(self) -> bool:
        """Return whether there is a transform."""
        return bool(self._calls)

    def apply(self, image: Image.Image, seed: int) -> NDArray[np.uint8]:
        """The pixels [height, width, channels] of the changed image; whatever torchvision raises.
        Sets torch's generator on the CPU to `seed`: who needs its state keeps it."""
        import numpy as np
        import torch

        torch.default_generator.manual_seed(seed)
        changed: Any = image
        for transform, takes_tensors_only in self._calls:
            changed = _change(transform, changed, takes_tensors_only)
        if isinstance(changed, torch.Tensor):
            changed = changed.permute(1, 2, 0).numpy()
        return np.atleast_3d(np.asarray(changed))

    def try_on(self, image: Image.Image) -> tuple[int, int, int]:
        """Return the (channels, height, width) that it makes of an image; JobError if it fails."""
        try:
            with kept_random_state():
                height, width, channels = self.apply(image, seed=0).shape
        except Exception as error:  # noqa: BLE001 - torchvision raises whatever it likes
            raise JobError(
                f"data.transform fails with images of {image.width} x {image.height} pixels: "
                f"{error or type(error).__name__}",
                hint="its arguments must fit the images, or set data.size so that they do",
            ) from None
        return channels, height, width


def _change(transform: Any, image: Any, takes_tensors_only: bool) -> Any:
    """Transform a single image, without torchvision's search for images in whatever is given."""
    from PIL import Image
    from torchvision.transforms import v2

    if takes_tensors_only and isinstance(image, Image.Image):
        image = v2.functional.pil_to_tensor(image)
    if type(transform).forward is v2.Transform.forward and hasattr(transform, "make_params"):
        return transform.transform(image, transform.make_params([image]))
    return transform(image)


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
    """Raise JobError for transforms that do not exist, or are given wrong arguments: a list is made
    as a trial, beside this process."""
    if steps_of(spec) and not (isinstance(spec, str) and spec in PRESETS):
        try_apart("hpcdist.data.images.transforms:try_transform", spec)


def try_transform(spec: Spec) -> None:
    """Make the transforms, and raise JobError for what torchvision does not take."""
    verb = "is" if isinstance(spec, str) else "has"
    try:
        from torchvision.transforms import v2
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises
        raise JobError(
            f"data.transform {verb} {json.dumps(spec)}, but torchvision cannot be used: {error}",
            hint="install it with: pip install torchvision",
        ) from None
    offered = {
        name
        for name, member in vars(v2).items()
        if inspect.isclass(member) and member.__module__.rpartition(".")[2] in _MODULES
    }
    for name, _ in steps_of(spec):
        if name not in offered:
            names = nearest_first(name, [*PRESETS, *offered])[:6]
            raise JobError(
                f"data.transform {verb} {name!r}, which is no preset and no transform of "
                "torchvision",
                hint=f"the nearest are: {', '.join(names)}; presets are {', '.join(PRESETS)}",
            )
    try:
        build_transform(spec)
    except Exception as error:  # noqa: BLE001 - torchvision raises whatever it likes
        raise JobError(
            f"data.transform is {json.dumps(spec)}: torchvision cannot make it: "
            f"{error or type(error).__name__}",
            hint="its arguments are those of torchvision.transforms.v2",
        ) from None


def is_unchanged(spec: Spec) -> bool:
    return not steps_of(spec)


def build_transform(spec: Spec) -> Transform:
    steps = steps_of(spec)
    if not steps:
        return Transform(())
    from torchvision.transforms import v2

    return Transform(
        [(getattr(v2, name)(**arguments), name in _TENSORS_ONLY) for name, arguments in steps]
    )


def steps_of(spec: Spec) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the transforms that `spec` stands for, presets as what they are, each with its
    arguments; JobError."""
    steps: list[tuple[str, Mapping[str, Any]]] = []
    for item in [spec] if isinstance(spec, str) else spec:
        named = {item: {}} if isinstance(item, str) else item
        if len(named) != 1 or not all(isinstance(value, Mapping) for value in named.values()):
            raise JobError(
                f"data.transform has the item {json.dumps(item, default=str)}, which must be one "
                "name with its arguments by their names",
                hint="for example {RandomAffine: {degrees: 5}}",
            )
        [(name, arguments)] = named.items()
        if name in PRESETS:
            steps += steps_of(PRESETS[name])
        elif name not in _DONE_ANYWAY or arguments:
            steps.append((name, arguments))
    return steps
