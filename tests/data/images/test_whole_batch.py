import msgspec
import numpy as np
import pytest
import torch
from pictures import picture, plain, write_files
from PIL import Image

from hpcdist.base.errors import HpcdistError, JobError
from hpcdist.data.images.preview import load_preview
from hpcdist.data.images.samples import ImageSamples, sample_seed
from hpcdist.data.images.transforms import build_transform
from hpcdist.data.images.whole_batch.choice import (
    check_device_transform,
    device_note,
    divide,
    is_on_device,
    transform_on,
    why_not,
)
from hpcdist.data.images.whole_batch.colours import _to_hsv, _to_rgb
from hpcdist.data.images.whole_batch.transform import make_batch_transform
from hpcdist.job.spec import Data

SIDES = (40, 32)  # width, height
NUMBER = 24
SEEDS = (0, 7, 1234)

WIDE = {"degrees": 30, "translate": [0.2, 0.1], "scale": [0.6, 1.5], "shear": [-8, 8, -5, 5]}


def one_by_one(spec, images, seed):
    """[images, height, width, channels], as torchvision makes them of PIL's."""
    transform = build_transform(spec)
    return np.stack(
        [transform.apply(image, sample_seed(seed, 0, at)) for at, image in enumerate(images)]
    )


def all_at_once(spec, images, seed):
    pixels = np.stack([np.asarray(image).reshape(*image.size[::-1], -1) for image in images])
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    transform = make_batch_transform(divide(spec), tuple(batch.shape[1:]))
    drawn = transform.draw([sample_seed(seed, 0, at) for at in range(len(images))])
    made = transform.apply(batch, drawn)
    assert tuple(made.shape[1:]) == transform.shape
    return made.permute(0, 2, 3, 1).numpy()


def differing(spec, mode="RGB"):
    """Levels between the two ways, over all seeds; they must change something."""
    images = [picture(number, SIDES, mode) for number in range(NUMBER)]
    found = []
    for seed in SEEDS:
        expected, made = one_by_one(spec, images, seed), all_at_once(spec, images, seed)
        assert any(not np.array_equal(x, y) for x, y in zip(made, images, strict=True))
        found.append(np.abs(expected.astype(int) - made))
    return np.concatenate(found)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    "spec",
    [
        "light",
        [{"RandomAffine": {**WIDE, "fill": 99}}],
        [{"RandomAffine": {**WIDE, "fill": 300}}, {"RandomAffine": {**WIDE, "fill": -9}}],
        [{"RandomAffine": {"degrees": 0, "translate": [0.1, 0.3], "scale": [0.3, 3.0]}}],
        [{"RandomAffine": {"degrees": 90, "center": [3, 9]}}],
        [{"RandomRotation": {"degrees": 180}}],
        [{"RandomPerspective": {"p": 0.7, "interpolation": "nearest", "fill": 7}}],
        [{"RandomCrop": {"size": [20, 31]}}],
        [{"RandomCrop": {"size": 40, "padding": [4, 2], "pad_if_needed": True, "fill": 5}}],
        [{"ColorJitter": {"brightness": 0.5, "contrast": 0.5, "saturation": 1, "hue": 0.5}}],
        [{"ColorJitter": {"hue": [0.1, 0.2]}}, "RandomVerticalFlip"],
        [{"RandomErasing": {"p": 0.7, "value": 200}}, "RandomHorizontalFlip"],
        ["RandomInvert", {"RandomGrayscale": {"p": 0.5}}, {"ColorJitter": {"contrast": 0.9}}],
    ],
    ids=str,
)
def test_what_rounds_nothing_is_bit_for_bit_what_is_made_one_by_one(spec, mode):
    assert differing(spec, mode).max() == 0


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    ("spec", "most"),
    [
        ([{"RandomAffine": {**WIDE, "interpolation": "bilinear", "fill": 30}}], 0.01),
        ([{"RandomRotation": {"degrees": 40, "interpolation": 2, "center": [3, 9]}}], 0.01),
        ([{"RandomPerspective": {"p": 1}}], 0.01),
        ([{"GaussianBlur": {"kernel_size": [5, 3]}}], 1e-3),
        ([{"GaussianBlur": {"kernel_size": 9, "sigma": [0.1, 5]}}, "RandomErasing"], 1e-3),
    ],
    ids=str,
)
def test_what_is_interpolated_differs_by_one_level_and_seldom(spec, most, mode):
    levels = differing(spec, mode)
    assert levels.max() <= 1
    assert (levels > 0).mean() < most


@pytest.mark.parametrize("size", [[24, 20], [70, 90]], ids=str)
def test_crops_scaled_to_one_size_differ_by_two_levels_at_most(size):
    levels = differing([{"RandomResizedCrop": {"size": size}}])
    assert levels.max() <= 2
    assert (levels > 1).mean() < 1e-3
    exact = (levels.reshape(len(levels), -1) == 0).all(axis=1)
    assert exact.mean() > 0.4  # Pillow may take rows or columns first


def test_heavy_differs_in_few_pixels_and_by_few_levels():
    levels = differing("heavy")
    assert (levels > 0).mean() < 0.01
    assert (levels > 1).mean() < 1e-3
    assert levels.max() <= 8


def test_an_image_of_one_colour_keeps_it():
    white = [Image.new("RGB", SIDES, "white")] * NUMBER
    for spec in ([{"RandomPerspective": {"p": 1}}], [{"GaussianBlur": {"kernel_size": 5}}]):
        assert set(np.unique(all_at_once(spec, white, 0))) <= {0, 255}


def test_hues_are_those_of_pil_for_colours_of_all_kinds():
    levels = np.arange(0, 256, 5, dtype=np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(
        1, -1, len(levels), 3
    )
    expected = np.asarray(Image.fromarray(colours[0]).convert("HSV"))
    found = torch.stack(_to_hsv(torch.from_numpy(colours)), dim=-1)[0].numpy()
    assert np.array_equal(found, expected)
    expected = np.asarray(Image.fromarray(colours[0], "HSV").convert("RGB"))
    found = _to_rgb(*torch.from_numpy(colours).int().unbind(-1))[0].numpy()
    assert np.array_equal(found, expected)


def test_a_sample_has_the_same_pixels_in_a_batch_of_any_size():
    images = [picture(number, SIDES) for number in range(19)]
    together = all_at_once("heavy", images, 3)
    transform = make_batch_transform(divide("heavy"), (3, 32, 40))
    for at in (0, 8, 18):
        alone = torch.from_numpy(np.array(images[at])).permute(2, 0, 1).unsqueeze(0)
        made = transform.apply(alone, transform.draw([sample_seed(3, 0, at)]))
        assert np.array_equal(made[0].permute(1, 2, 0).numpy(), together[at])


def test_drawing_and_changing_leave_torchs_generator_and_the_images_alone():
    transform = make_batch_transform(divide("heavy"), (3, 32, 40))
    before = torch.default_generator.get_state()
    batch = torch.randint(0, 256, (9, 3, 32, 40), generator=torch.Generator()).to(torch.uint8)
    kept = batch.clone()
    transform.apply(batch, transform.draw(range(9)))
    assert torch.default_generator.get_state().equal(before)
    assert batch.equal(kept)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("light", None),
        ("heavy", None),
        ([{"Resize": {"size": [9, 9]}}, "RandomHorizontalFlip"], None),
        (["RandomHorizontalFlip", {"Resize": {"size": 9}}], "Resize after one that draws"),
        (["ElasticTransform"], "ElasticTransform"),
        (["light", {"RandomErasing": {}}, "light"], "RandomAffine after RandomErasing"),
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
    probe = samples.probe(3)
    for index in range(3):
        assert probe.images[index].equal(plain(files, index, spec=spec, seed=5))


def test_a_crop_larger_than_the_images_is_refused_with_their_size(tmp_path):
    files = write_files(tmp_path / "pictures", 1)
    data = Data(transform=[{"RandomCrop": {"size": 50}}], device_transform=True)
    with pytest.raises(JobError, match="images of 40 x 32 pixels: Required crop size"):
        ImageSamples(files, data, seed=5, on_device=True)


@pytest.mark.parametrize(
    "spec",
    [
        [{"RandomAffine": {"degrees": 5, "fill": [1, 2, 3]}}],
        [{"RandomPerspective": {"p": 1e-9, "fill": [1, 2]}}],
        [{"RandomErasing": {"p": 1e-9, "value": [1, 2]}}],
    ],
    ids=str,
)
def test_colours_of_other_channels_than_the_images_have_are_refused_however_seldom_used(spec):
    with pytest.raises(JobError, match=r"images of 40 x 32 pixels: .*channels"):
        make_batch_transform(divide(spec), (1, 32, 40))


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
    assert f"data.size is unset, and {named} takes images of any size" in device_note(
        auto, "cuda:0"
    )
    assert f"scaled to the size of the first before {named}" in device_note(forced, "cuda:0")


def test_images_that_come_to_a_batch_in_several_sizes_are_refused_with_a_way_out(tmp_path):
    files = write_files(tmp_path / "pictures", 2)
    picture(1, (60, 32)).save(files.root / files.paths[1])
    spec = [{"Resize": {"size": 20}}, {"RandomCrop": {"size": 9}}]
    samples = ImageSamples(files, Data(transform=spec, device_transform=True), 5, on_device=True)
    with pytest.raises(
        HpcdistError, match=r"what comes first in data\.transform makes 37 x 20"
    ) as e:
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
