"""What is wrong with a training is said where it is submitted."""

import subprocess
import sys
from importlib import import_module

import msgspec
import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.spec import TrainJob
from hpcdist.training.checks import torchvision_models
from hpcdist.workloads import load_workload


def _job(**sections):
    return msgspec.convert({"name": "test", **sections}, TrainJob)


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


def test_data_parallel_is_one_rank_with_all_gpus_of_its_node():
    job = _job(strategy="data_parallel", resources={"gpus": 4, "cpus_per_gpu": 3})
    assert (job.ranks_per_node, job.gpus_per_rank, job.cpus_per_rank) == (1, 4, 12)
    assert job.batch_size_per_rank == 4 * job.train.batch_size


TWO = {"nodes": 2, "gpus": 2}
WRONG = {
    "an unknown model": ({"model": {"name": "resnet_18"}}, "is 'resnet_18'", "resnet18,"),
    "nodes": ({"strategy": "data_parallel", "resources": TWO}, "resources.nodes is 2: it is", ""),
    "ranks": ({"strategy": "single", "resources": {"gpus": 2}}, "ask for 2 ranks: 1 node", ""),
    "patience": (
        {"train": {"patience": 3, "evaluate_every_epochs": 0}},
        *("train.patience is set, but train.evaluate_every", ""),
    ),
    "few samples": (
        {"resources": TWO, "data": {"train_samples": 3}, "train": {"batch_size": 1}},
        *("with 4 ranks 4 samples per step, but digits trains on 3", "use fewer ranks"),
    ),
    "a large batch": (
        {"resources": {"nodes": 2, "gpus": 4}, "train": {"batch_size": 400}},
        "with 8 ranks 3,200 samples per step, but digits",
        "set train.batch_size to 179 or less, or use fewer ranks",
    ),
    "data": ({"data": {"name": "mnist"}}, "data.root is not set", ""),
    "resume": ({"checkpoint": {"resume": "/nowhere"}}, "checkpoint.resume is '/nowhere'", ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_or_missing_is_named_with_its_key_and_value(name):
    sections, said, how = WRONG[name]
    load_workload(_job()).check()
    with pytest.raises(JobError) as error:
        load_workload(_job(**sections)).check()
    assert said in error.value.message
    assert error.value.exit_code == 2
    assert error.value.hint
    assert how in error.value.hint


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

class NeedsGpu(nn.Module):
    def __init__(self, image_shape):
        raise RuntimeError("no GPU")
"""


@pytest.fixture
def trial_here(tmp_path, monkeypatch):
    """The trial is made in this process, which has torch already."""

    def try_here(function, argument):
        module, _, name = function.partition(":")
        try:
            getattr(import_module(module), name)(argument)
        except JobError:
            raise
        except Exception:  # noqa: BLE001 - as in a process of its own
            pass

    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("hpcdist.training.checks.try_apart", try_here)
    yield
    sys.modules.pop("nets", None)


@pytest.mark.usefixtures("trial_here")
@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("nets:Net", {"width": 3, "head": 1}, "unexpected keyword argument 'head'"),
        ("nets:Net", {"depth": 3}, "'width'"),
        ("nets:make", {"wide": 3}, "unexpected keyword argument 'wide'"),
        ("nets:brought", {}, "which gives a Counter, not a torch.nn.Module"),
        ("nets:Nett", {}, "nets.py has no Nett"),
        ("nowhere:Net", {}, "no module nowhere is in"),
        ("fashion_cnn", {"hiden": 3}, "fashion_cnn cannot be made with it: .*'hiden'"),
        ("resnet18", {"weights": "DEFAULT"}, "multiple values .*'weights'"),
        # These can be made.
        ("nets:Net", {"width": 3, "heads": 1}, None),
        ("nets:NeedsGpu", {}, None),  # the ranks will say it
        ("fashion_cnn", {"hidden": 9, "dropout": 0.1}, None),
    ],
)
def test_a_model_that_cannot_be_made_is_refused_where_it_is_submitted(name, args, said):
    workload = load_workload(_job(model={"name": name, "args": args}))
    workload.check()
    if said is None:
        workload.try_code()
        return
    with pytest.raises(JobError, match=said) as error:
        workload.try_code()
    assert error.value.hint
