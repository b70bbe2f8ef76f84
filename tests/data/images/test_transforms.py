import sys

import numpy as np
import pytest
import torch
from pictures import picture

from hpcdist.base.errors import JobError
from hpcdist.data.images.transforms import build_transform, check_transform, try_transform


def test_a_list_names_transforms_with_and_without_arguments_and_may_end_as_for_torchvision():
    try_transform(["RandomHorizontalFlip", {"RandomRotation": {"degrees": 10}}, "light"])
    spec = ["light", "ToTensor"]
    try_transform(spec)
    found, expected = (build_transform(one).apply(picture(1), 7) for one in (spec, "light"))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("hevy", "'hevy'", "heavy"),
        (["RandomAfine"], "'RandomAfine'", "RandomAffine"),
        ([{"RandomAffine": {"degree": 5}}], "'degree'", "torchvision"),
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


def test_a_trial_tells_the_shape_that_images_get_and_draws_nothing_or_why_it_fails():
    before = torch.default_generator.get_state()
    crop = [{"RandomResizedCrop": {"size": [24, 48]}}]
    assert build_transform(crop).try_on(picture(1)) == (3, 24, 48)
    assert build_transform("light").try_on(picture(1)) == (3, 32, 40)
    assert torch.default_generator.get_state().equal(before)
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
