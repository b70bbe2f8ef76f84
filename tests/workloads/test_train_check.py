import subprocess
import sys

import msgspec
import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.spec import InferenceJob, LightningJob, TrainJob
from hpcdist.training.checks import torchvision_models
from hpcdist.workloads import load_workload


def test_the_default_job_is_right():
    load_workload(_job()).check()


def test_checking_a_job_imports_no_heavy_library():
    code = (
        "import sys; from hpcdist.workloads import load_workload\n"
        "from hpcdist.job.spec import Model, TrainJob\n"
        "job = TrainJob(name='x', model=Model(name='resnet50'))\n"
        "workload = load_workload(job)\n"
        "workload.check(); workload.prepare(); workload.preload()\n"
        "print({'torch', 'numpy', 'torchvision', 'sklearn', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_models_read_from_the_sources_are_those_that_torchvision_lists():
    from torchvision import models

    assert set(torchvision_models()) == set(models.list_models(module=models))


@pytest.mark.parametrize(
    ("name", "nearest"), [("fashion_cn", "fashion_cnn"), ("resnet_18", "resnet18")]
)
def test_an_unknown_model_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(JobError, match=f"model.name is '{name}'") as error:
        load_workload(_job(model={"name": name})).check()
    assert f"are: {nearest}," in error.value.hint


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"strategy": "data_parallel", "resources": {"nodes": 2}}, "resources.nodes is 2: it is"),
        (
            {"strategy": "single", "resources": {"gpus": 2}},
            "resources ask for 2 ranks: 1 node",
        ),
    ],
    ids=["data_parallel-nodes", "single-gpus"],
)
def test_settings_that_do_not_go_together_are_refused_with_the_reason(sections, said):
    with pytest.raises(JobError, match=said) as error:
        load_workload(_job(**sections)).check()
    assert error.value.hint


def test_data_parallel_is_one_rank_with_all_gpus_of_its_node():
    job = _job(strategy="data_parallel", resources={"gpus": 4, "cpus_per_gpu": 3})
    assert (job.ranks_per_node, job.gpus_per_rank, job.cpus_per_rank) == (1, 4, 12)
    assert job.batch_size_per_rank == 4 * job.train.batch_size


NETS = """
import dataclasses, torch
from collections import Counter as brought
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, width, *, depth=2, heads):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(10**12))  # no memory is taken for it

def make(width=3):
    return Net(10, width, heads=1)

class Derived(Net):
    def __init__(self, width):
        nn.Module.__init__(self)

class NeedsGpu(nn.Module):
    def __init__(self, image_shape):
        raise RuntimeError("no GPU")
"""
WRONG_MODELS = {
    "another argument": ("nets:Net", {"width": 3, "head": 1}, "unexpected keyword argument 'head'"),
    "an argument less": ("nets:Net", {"depth": 3}, "'width'"),
    "of a function": ("nets:make", {"wide": 3}, "unexpected keyword argument 'wide'"),
    "of a derived class": ("nets:Derived", {"width": 3, "depth": 1}, "argument 'depth'"),
    "no module of torch": ("nets:brought", {}, "which gives a Counter, not a torch.nn.Module"),
    "another name": ("nets:Nett", {}, "nets.py has no Nett"),
    "no such module": ("nets.large:Net", {}, "no module nets.large is in"),
    "nowhere": ("nowhere:Net", {}, "no module nowhere is in"),
    "no class": ("nets:", {}, "nets.py has no "),
    "ours": ("fashion_cnn", {"hiden": 3}, "fashion_cnn cannot be made with it: .*'hiden'"),
    "torchvision": ("resnet18", {"hidden": [9]}, "resnet18 cannot be made with it: .*'hidden'"),
    "outputs": (
        "resnet18",
        {"num_classes": 7},
        "multiple values .*'num_classes'",
    ),
    "weights": (
        "resnet18",
        {"weights": "DEFAULT"},
        "multiple values .*'weights'",
    ),
}


@pytest.fixture
def check_model(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)

    def check(name, args, workload=TrainJob):
        model = {"name": name, "args": args}
        workload = load_workload(msgspec.convert({"name": "x", "model": model}, workload))
        workload.check()
        workload.try_code()

    return check


@pytest.mark.parametrize(("name", "args", "said"), WRONG_MODELS.values(), ids=WRONG_MODELS)
def test_a_model_that_cannot_be_made_is_refused_where_it_is_submitted(
    check_model, name, args, said
):
    with pytest.raises(JobError, match=said) as error:
        check_model(name, args)
    assert error.value.hint


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("nets:Net", {"width": 3, "heads": 1}),
        ("nets:Net", {"num_classes": 7, "width": 3, "heads": 1}),
        ("nets:make", {"width": 3}),
        ("nets:NeedsGpu", {}),  # the ranks will say it
        ("fashion_cnn", {"hidden": 9, "dropout": 0.1}),
        ("googlenet", {"aux_logits": False, "init_weights": True}),
        ("vit_b_16", {"dropout": 0.1}),
    ],
)
def test_a_model_that_can_be_made_is_not_refused(check_model, name, args):
    check_model(name, args)


def test_a_model_that_the_user_has_mended_is_looked_at_anew(check_model, tmp_path):
    for workload in (LightningJob, InferenceJob):
        with pytest.raises(JobError, match="has no Late"):
            check_model("nets:Late", {}, workload)
    (tmp_path / "nets.py").write_text(NETS + "\nLate = make\n")
    check_model("nets:Late", {})


def test_early_stopping_without_evaluations_is_refused():
    for key, value in {"patience": 3, "keep_best": True}.items():
        with pytest.raises(JobError, match=f"train.{key} is set, but train.evaluate_every"):
            load_workload(_job(train={key: value, "evaluate_every_epochs": 0})).check()


def test_fewer_samples_than_ranks_are_refused():
    with pytest.raises(JobError, match="with 4 ranks 4 samples per step, but digits trains on 3"):
        load_workload(
            _job(
                resources={"nodes": 2, "gpus": 2},
                data={"train_samples": 3},
                train={"batch_size": 1},
            )
        ).check()


def _lightning(**sections):
    return msgspec.convert({"name": "test", **sections}, LightningJob)


def test_a_batch_that_is_larger_than_the_training_set_is_refused_with_the_largest_possible():
    with pytest.raises(JobError, match="with 8 ranks 3,200 samples per step, but digits") as error:
        load_workload(_job(resources={"nodes": 2, "gpus": 4}, train={"batch_size": 400})).check()
    assert error.value.hint == "set train.batch_size to 179 or less, or use fewer ranks"


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
        load_workload(_job(**sections)).check()
    assert said in error.value.message
    assert error.value.exit_code == 2
    assert error.value.hint


def _job(**sections):
    return msgspec.convert({"name": "test", **sections}, TrainJob)
