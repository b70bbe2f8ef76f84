import subprocess
import sys

import msgspec
import pytest

from hpcdist.errors import JobError
from hpcdist.spec import TrainJob
from hpcdist.training.model_names import torchvision_models
from hpcdist.workloads import train


def test_the_default_job_is_right():
    train.check(_job())


def test_checking_a_job_imports_no_heavy_library():
    code = (
        "import sys; from hpcdist import workloads; from hpcdist.spec import Model, TrainJob\n"
        "job = TrainJob(name='x', model=Model(name='resnet50'))\n"
        "workloads.check(job); workloads.prepare(job); workloads.preload(job)\n"
        "print({'torch', 'numpy', 'torchvision', 'sklearn', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_models_read_from_the_sources_are_those_that_torchvision_lists():
    from torchvision import models

    assert torchvision_models() == set(models.list_models(module=models))


@pytest.mark.parametrize(
    ("name", "nearest"), [("fashion_cn", "fashion_cnn"), ("resnet_18", "resnet18")]
)
def test_an_unknown_model_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(JobError, match=f"model.name is '{name}'") as error:
        train.check(_job(model={"name": name}))
    assert f"are: {nearest}," in error.value.hint


def test_single_with_more_than_one_rank_is_refused():
    with pytest.raises(JobError, match="strategy is single, but resources ask for 4 ranks"):
        train.check(_job(strategy="single", resources={"nodes": 2, "gpus": 2}))


def test_a_batch_that_is_larger_than_the_training_set_is_refused_with_the_largest_possible():
    with pytest.raises(JobError, match="with 8 ranks 3,200 samples per step, but digits") as error:
        train.check(_job(resources={"nodes": 2, "gpus": 4}, train={"batch_size": 400}))
    assert "set train.batch_size to 179 or less" in error.value.hint


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": {"name": "mnist"}}, "data.root is not set"),
        ({"data": {"name": "mnist", "root": "/nowhere"}}, "data.root is '/nowhere'"),
        ({"data": {"name": "imagenet"}}, "data.name is 'imagenet'"),
        ({"checkpoint": {"resume": "/nowhere"}}, "checkpoint.resume is '/nowhere'"),
    ],
    ids=["root-unset", "root-missing", "data-unknown", "resume-missing"],
)
def test_what_is_missing_is_named_with_its_key_and_value(sections, said):
    with pytest.raises(JobError) as error:
        train.check(_job(**sections))
    assert said in error.value.message
    assert error.value.exit_code == 2
    assert error.value.hint


def _job(**sections):
    return msgspec.convert({"name": "test", **sections}, TrainJob)
