"""Photographs made for tests, and the plain way to load them."""

import io

import numpy as np
import torch
from PIL import Image

from hpcdist.data.images.samples import sample_seed
from hpcdist.data.images.transforms import PRESETS
from hpcdist.data.splits import ImageFiles


def picture(number, size=(40, 32), mode="RGB"):
    """Smooth enough for JPEG to have something to do at every frequency."""
    width, height = size
    random = np.random.default_rng(number)
    small = Image.fromarray(random.integers(0, 256, (9, 9, 3), np.uint8))
    noise = random.integers(0, 40, (height, width, 3), np.uint8)
    pixels = np.asarray(small.resize(size, Image.Resampling.BICUBIC)) // 2 + noise
    return Image.fromarray(pixels).convert(mode)


def encoded(image, kind="JPEG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write_files(folder, number, **options):
    """Files of two classes, in the order of their names."""
    folder.mkdir(exist_ok=True)
    paths = [f"picture {index:03} é.jpg" for index in range(number)]
    for index, path in enumerate(paths):
        (folder / path).write_bytes(encoded(picture(index, **options)))
    return ImageFiles(
        root=folder,
        paths=tuple(paths),
        labels=tuple(index % 2 for index in range(number)),
        classes=("even", "odd"),
    )


def plain(files, index, *, spec="none", seed=0, epoch=0, size=None):
    """A sample as PIL and torchvision make it: float32 [channels, height, width]."""
    from torchvision.transforms import functional, v2

    image = Image.open(files.root / files.paths[index]).convert("RGB")
    if size:
        image = v2.Resize((size, size))(image)
    torch.manual_seed(sample_seed(seed, epoch, index))
    for item in PRESETS[spec] if isinstance(spec, str) else spec:
        [(name, arguments)] = item.items()
        if name == "RandomErasing":
            image = v2.functional.pil_to_tensor(image)
        image = getattr(v2, name)(**arguments)(image)
    if isinstance(image, torch.Tensor):
        image = image.permute(1, 2, 0).numpy()
    return functional.normalize(functional.to_tensor(image), [0.5] * 3, [0.5] * 3)
