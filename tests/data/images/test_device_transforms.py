import sys

import msgspec
import numpy as np
import pytest
import torch
from pictures import picture, write_files

from hpcdist.base.errors import HpcdistError, JobError
from hpcdist.data.images import device_transforms
from hpcdist.data.images.device_transforms import (
    BatchTransform,
    check_device_transform,
    device_note,
    divide,
    is_on_device,
    transform_on,
    why_not,
)
from hpcdist.data.images.preview import load_preview
from hpcdist.data.images.samples import ImageSamples
from hpcdist.data.images.transforms import build_transform
from hpcdist.job.spec import Data

SIDES = (96, 80)  # width, height
NUMBER = 12
BILINEAR = {"interpolation": "bilinear"}


def stack(images):
    pixels = np.stack([np.asarray(image).reshape(*image.size[::-1], -1) for image in images])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    ("name", "arguments", "most"),
    [
        ("RandomAffine", {"degrees": [5, 5], "scale": [1.3, 1.3], **BILINEAR}, 1.5),
        ("RandomAffine", {"degrees": 0, "shear": [9, 9, -4, -4]}, 1.5),
        ("RandomRotation", {"degrees": [20, 20]}, 1.5),
        ("RandomPerspective", {"p": 1, "distortion_scale": 0}, 1),
        ("RandomCrop", {"size": [84, 102], "padding": [3, 2]}, 0),
        ("RandomResizedCrop", {"size": [70, 84], "scale": [1, 1], "ratio": [1.2, 1.2]}, 2),
        ("ColorJitter", {"brightness": [1.2, 1.2]}, 1),
        ("ColorJitter", {"contrast": [0.8, 0.8]}, 1),
        ("ColorJitter", {"saturation": [0.7, 0.7]}, 1),
        ("ColorJitter", {"hue": [0.05, 0.05]}, 1.5),
        ("GaussianBlur", {"kernel_size": [9, 3], "sigma": [2, 2]}, 0.1),
        ("RandomGrayscale", {"p": 1}, 0.1),
        ("RandomInvert", {"p": 1}, 0),
        ("RandomHorizontalFlip", {"p": 1}, 0),
        ("RandomVerticalFlip", {"p": 1}, 0),
    ],
    ids=str,
)
def test_the_same_parameters_give_about_the_pixels_of_the_cpus(name, arguments, most, mode):
    """Ranges of one value leave nothing to draw; the mean deviation, in levels of 255."""
    spec = [{name: arguments}]
    images = [picture(number, SIDES, mode) for number in range(NUMBER)]
    one_by_one = build_transform(spec)
    expected = np.stack([one_by_one.apply(image, 0) for image in images])
    transform = BatchTransform(divide(spec).rest, tuple(stack(images).shape[1:]))
    made = transform.apply(stack(images), seed=0).permute(0, 2, 3, 1).numpy()
    assert made.shape == expected.shape
    assert np.abs(expected.astype(int) - made).mean() <= most


@pytest.mark.parametrize("spec", ["light", "heavy", [{"RandomErasing": {"p": 1, "value": 200}}]])
def test_each_image_is_changed_in_its_own_way_which_the_seed_alone_decides(spec):
    batch = stack([picture(0, SIDES)] * NUMBER)
    transform = BatchTransform(divide(spec).rest, tuple(batch.shape[1:]))
    made = transform.apply(batch, seed=1)
    assert made.dtype == torch.uint8
    assert all(not made[0].equal(other) for other in made[1:])
    assert made.equal(transform.apply(batch, seed=1))
    assert not made.equal(transform.apply(batch, seed=2))


def test_changing_leaves_torchs_generator_and_the_images_alone():
    transform = BatchTransform(divide("heavy").rest, (3, 32, 40))
    before = torch.default_generator.get_state()
    batch = torch.randint(0, 256, (9, 3, 32, 40), generator=torch.Generator()).to(torch.uint8)
    kept = batch.clone()
    transform.apply(batch, seed=3)
    assert torch.default_generator.get_state().equal(before)
    assert batch.equal(kept)


@pytest.fixture
def no_kornia(monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia", None)
    monkeypatch.setattr(device_transforms, "find_spec", lambda _name: None)


def test_where_kornia_is_missing_it_is_said_how_to_install_it(no_kornia):
    with pytest.raises(JobError, match=r"kornia, .* is not installed") as error:
        check_device_transform(Data(transform="light", device_transform=True))
    assert "pip install kornia" in error.value.hint
    with pytest.raises(JobError, match=r"kornia, .* is not installed"):
        BatchTransform(divide("light").rest, (3, 32, 40))
    auto = Data(transform="light", decoder="fast")
    assert transform_on(auto, "cuda:0") == "cpu"
    assert "kornia" in device_note(auto, "cuda:0")


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("light", None),
        ("heavy", None),
        ([{"Resize": {"size": [9, 9]}}, "RandomHorizontalFlip"], None),
        (
            ["RandomHorizontalFlip", {"Resize": {"size": 9}}],
            "Resize after one that draws random numbers",
        ),
        (["ElasticTransform"], "ElasticTransform"),
        ([{"RandomAffine": {"degrees": 5, "fill": 9}}], "RandomAffine with fill=9"),
        (
            [{"RandomAffine": {"degrees": 5, "interpolation": "bicubic"}}],
            "RandomAffine with interpolation=bicubic",
        ),
        ([{"RandomRotation": {"degrees": 5, "expand": True}}], "with expand=true"),
        ([{"RandomErasing": {"value": "random"}}], "RandomErasing with value=random"),
        ([{"RandomErasing": {"value": [0, 256, 0]}}], "RandomErasing with value=[0, 256, 0]"),
        ([{"RandomCrop": {"size": 5, "padding_mode": "edge"}}], "with padding_mode=edge"),
    ],
    ids=str,
)
def test_what_there_is_not_for_batches_is_refused_where_it_is_asked_for(spec, named):
    data = Data(transform=spec, device_transform=True)
    if named is None:
        check_device_transform(data)
        assert is_on_device(data, "cpu")
        return
    with pytest.raises(
        JobError, match=r"data\.device_transform is true, but data\.transform has"
    ) as e:
        check_device_transform(data)
    assert named in e.value.message
    assert "RandomAffine" in e.value.hint
    auto = msgspec.structs.replace(data, device_transform="auto", decoder="fast")
    check_device_transform(auto)
    assert transform_on(auto, "cuda:0") == "cpu"
    assert named in device_note(auto, "cuda:0")


def test_float32_is_not_handed_over_to_be_changed():
    data = Data(transform="light", device_transform=True, handover="float32")
    with pytest.raises(JobError, match=r"data\.handover is float32"):
        check_device_transform(data)


@pytest.mark.parametrize(
    ("keys", "device", "expected"),
    [
        ({"decoder": "fast"}, "cuda:1", "device"),
        ({"decoder": "fast"}, "cpu", "cpu"),
        ({"decoder": "exact"}, "cuda:0", "cpu"),
        ({"decoder": "fast", "device_transform": False}, "cuda:0", "cpu"),
        ({"device_transform": True}, "cuda:0", "device"),
        ({"device_transform": True}, "cpu", "device"),
        ({"device_transform": True, "transform": ["CenterCrop"]}, "cuda:0", "cpu"),
        ({"device_transform": True, "transform": "none"}, "cuda:0", None),
        ({"decoder": "fast", "handover": "float32"}, "cuda:0", "cpu"),
    ],
    ids=str,
)
def test_a_gpu_is_used_unasked_only_by_who_has_given_up_exact_pixels(keys, device, expected):
    assert transform_on(Data(**{"transform": "light", **keys}), device) == expected


def test_what_draws_nothing_is_done_to_each_image_as_ever(tmp_path):
    files = write_files(tmp_path / "pictures", 3)
    spec = [{"Resize": {"size": [24, 26]}}, {"RandomCrop": {"size": [20, 22]}}]
    data = Data(transform=spec, device_transform=True)
    assert why_not(data) is None
    samples = ImageSamples(files, data, seed=5, on_device=True)
    assert (samples.filled_shape, samples.shape) == ((3, 24, 26), (3, 20, 22))
    assert samples.probe(3).images.shape == (3, 3, 20, 22)


def test_a_crop_larger_than_the_images_is_refused_with_their_size(tmp_path):
    files = write_files(tmp_path / "pictures", 1)
    data = Data(transform=[{"RandomCrop": {"size": 50}}], device_transform=True)
    with pytest.raises(JobError, match="images of 40 x 32 pixels: a crop of 50 x 50"):
        ImageSamples(files, data, seed=5, on_device=True)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"transform": [{"RandomCrop": {"size": 9}}]}, "RandomCrop"),
        (
            {"transform": [{"Resize": {"size": 30}}, {"RandomResizedCrop": {"size": 9}}]},
            "RandomResizedCrop",
        ),
        ({"transform": [{"RandomCrop": {"size": 9}}], "size": 30}, None),
        ({"transform": [{"Resize": {"size": [30, 30]}}, {"RandomCrop": {"size": 9}}]}, None),
        ({"transform": [{"CenterCrop": {"size": 30}}, {"RandomCrop": {"size": 9}}]}, None),
    ],
    ids=str,
)
def test_crops_of_images_of_any_size_are_made_in_batches_only_where_that_is_asked_for(keys, named):
    auto = Data(decoder="fast", **keys)
    forced = Data(device_transform=True, **keys)
    check_device_transform(forced)
    assert is_on_device(forced, "cuda:0")
    if named is None:
        assert is_on_device(auto, "cuda:0")
        assert "scaled" not in device_note(forced, "cuda:0")
        return
    assert transform_on(auto, "cuda:0") == "cpu"
    assert f"data.size is not set, and {named} takes images of any size" in device_note(
        auto, "cuda:0"
    )
    assert f"scaled to the size of the first before {named}" in device_note(forced, "cuda:0")


def test_images_that_come_to_a_batch_in_several_sizes_are_refused_with_a_way_out(tmp_path):
    files = write_files(tmp_path / "pictures", 2)
    picture(1, (60, 32)).save(files.root / files.paths[1])
    spec = [{"Resize": {"size": 20}}, {"RandomCrop": {"size": 9}}]
    samples = ImageSamples(files, Data(transform=spec, device_transform=True), 5, on_device=True)
    with pytest.raises(HpcdistError, match=r"the beginning of data\.transform makes 37 x 20") as e:
        samples.batch([0, 1], epoch=0)
    assert e.value.hint.startswith("set data.device_transform to false")


def test_a_preview_shows_what_it_showed(faces_at, write_classes):
    keys = {"transform": "heavy", "size": 20}
    root = write_classes({"A": 3, "B": 2})
    shown = [
        load_preview(faces_at(root, device_transform=on, **keys), seed=1, number=4)
        for on in (False, True)
    ]
    for one, other in zip(*shown, strict=True):
        assert np.array_equal(one.after, other.after)
