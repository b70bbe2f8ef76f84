import sys

import numpy as np
import pytest
import torch
from pictures import picture

from hpcdist.base.errors import JobError
from hpcdist.data.images.transforms import PRESETS, build_transform, check_transform, try_transform


def test_light_is_the_affine_transform_of_torchvision():
    from torchvision.transforms import v2

    image = picture(1)
    torch.manual_seed(7)
    expected = np.asarray(v2.RandomAffine(5, (0.1, 0.1), (0.5, 2.0))(image))
    found = build_transform("light").apply(image, 7)
    assert np.array_equal(found, expected)
    assert not np.array_equal(found, np.asarray(image))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_the_same_pixels_for_the_same_seed_and_others_for_another(name, mode):
    transform = build_transform(name)
    image = picture(1, mode=mode)
    first, again, other = (transform.apply(image, seed) for seed in (1, 1, 2))
    assert first.dtype == np.uint8
    assert first.shape == (32, 40, 3 if mode == "RGB" else 1)
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) == (name == "none")


def test_a_list_names_transforms_with_and_without_arguments():
    spec = ["RandomHorizontalFlip", {"RandomRotation": {"degrees": 10}}, "light"]
    try_transform(spec)
    assert build_transform(spec).apply(picture(1), 3).shape == (32, 40, 3)


def test_a_list_may_end_as_for_torchvision():
    spec = ["light", "ToTensor"]
    try_transform(spec)
    assert np.array_equal(
        build_transform(spec).apply(picture(1), 7), build_transform("light").apply(picture(1), 7)
    )


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("hevy", "'hevy'", "heavy"),
        (["RandomAfine"], "'RandomAfine'", "RandomAffine"),
        ([{"RandomAffine": {"degree": 5}}], "'degree'", "torchvision"),
        ([{"RandomHorizontalFlip": {"q": 1}}], "'q'", "torchvision"),
        ([{"RandomAffine": {"degrees": -5}}], "degrees", "torchvision"),
        ([{"RandomAffine": {}, "light": {}}], "one name", "RandomAffine"),
        ([{"RandomAffine": 5}], "one name with its arguments", "RandomAffine"),
        (["os.system"], "'os.system'", ""),
    ],
)
def test_a_wrong_transform_is_refused_with_what_is_near(spec, message, hint):
    with pytest.raises(JobError, match=message) as caught:
        try_transform(spec)
    assert hint in caught.value.hint


def test_a_trial_in_a_process_of_its_own_says_what_is_wrong_with_a_list(monkeypatch):
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(JobError, match="has 'RandomAfine', which is no preset") as caught:
        check_transform(["light", "RandomAfine"])
    assert "RandomAffine" in caught.value.hint


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ([{"RandomCrop": {"size": 20}}], (3, 20, 20)),
        ([{"RandomResizedCrop": {"size": [24, 48]}}], (3, 24, 48)),
        (["light"], (3, 32, 40)),
    ],
    ids=str,
)
def test_a_trial_tells_the_shape_that_images_get_and_draws_nothing(spec, shape):
    before = torch.default_generator.get_state()
    assert build_transform(spec).try_on(picture(1)) == shape
    assert torch.default_generator.get_state().equal(before)


def test_a_crop_larger_than_the_images_is_refused_with_their_size():
    with pytest.raises(JobError, match="images of 40 x 32 pixels: Required crop size"):
        build_transform([{"RandomCrop": {"size": 50}}]).try_on(picture(1))


def test_transforms_are_tried_without_a_module_of_the_working_directory(tmp_path, monkeypatch):
    for planted in ("json.py", "torchvision.py"):
        (tmp_path / planted).write_text("open('attacked', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(JobError, match="degree"):
        check_transform([{"RandomAffine": {"degree": 5}}])
    assert not (tmp_path / "attacked").exists()
