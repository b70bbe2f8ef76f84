import subprocess
import sys

import msgspec
import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.spec import InferenceJob, LightningJob, TrainJob
from hpcdist.training.model.checks import torchvision_sources
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

    assert set(torchvision_sources()) == set(models.list_models(module=models))


@pytest.mark.parametrize(
    ("name", "nearest"), [("fashion_cn", "fashion_cnn"), ("resnet_18", "resnet18")]
)
def test_an_unknown_model_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(JobError, match=f"model.name is '{name}'") as error:
        load_workload(_job(model={"name": name})).check()
    assert f"are: {nearest}," in error.value.hint


def test_single_with_more_than_one_rank_is_refused():
    with pytest.raises(JobError, match="strategy is single, but resources ask for 4 ranks"):
        load_workload(_job(strategy="single", resources={"nodes": 2, "gpus": 2})).check()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"strategy": "data_parallel", "resources": {"nodes": 2}}, "resources.nodes is 2: it is"),
        ({"strategy": "fsdp", "train": {"channels_last": True}}, "channels_last is true, which st"),
        ({"strategy": "data_parallel", "train": {"compile": True}}, "train.compile is true, which"),
        (
            {
                "strategy": "data_parallel",
                "train": {"activation_checkpointing": True},
                "model": {"name": "resnet18"},
            },
            "train.activation_checkpointing is true, which strategy data_parallel",
        ),
        ({"train": {"activation_checkpointing": True}}, "fashion_cnn has no blocks"),
        (
            {
                "train": {"activation_checkpointing": True, "compile": True},
                "model": {"name": "resnet18"},
            },
            "train.activation_checkpointing and train.compile are both set",
        ),
        (
            {"strategy": "fsdp", "train": {"channels_last": True}},
            "channels_last is true, which strategy fsdp",
        ),
        (
            {"train": {"precision": "tf32"}, "launch": {"device": "cpu"}},
            "train.precision is tf32, which only GPUs have",
        ),
        (
            {"train": {"compile": "reduce-overhead"}, "launch": {"device": "cpu"}},
            "train.compile is reduce-overhead, which means CUDA graphs, and the ranks run on CPUs",
        ),
        (
            {"train": {"compile": "reduce-overhead", "accumulate": 2}},
            "train.compile is reduce-overhead, but train.accumulate is 2",
        ),
        (
            {
                "strategy": "fsdp",
                "train": {"compile": "max-autotune"},
                "launch": {"device": "cuda"},
            },
            "train.compile is max-autotune, which strategy fsdp cannot have",
        ),
    ],
    ids=[
        "data_parallel-nodes",
        "fsdp-channels-last",
        "data_parallel-compile",
        "data_parallel-recompute",
        "no-blocks",
        "recompute-compile",
        "fsdp-channels-last",
        "tf32-cpu",
        "graphs-cpu",
        "graphs-accumulate",
        "graphs-fsdp",
    ],
)
def test_settings_that_do_not_go_together_are_refused_with_the_reason(sections, said):
    with pytest.raises(JobError, match=said) as error:
        load_workload(_job(**sections)).check()
    assert error.value.hint


def test_tf32_is_left_to_the_nodes_where_the_device_is_not_known_and_refused_on_cpus():
    job = _job(train={"precision": "tf32"})
    load_workload(job).check()
    load_workload(job).check_device("cuda")
    with pytest.raises(JobError, match="the ranks run on CPUs"):
        load_workload(job).check_device("cpu")


def test_graphs_are_left_to_the_nodes_where_the_device_is_not_known():
    for mode in ("reduce-overhead", "max-autotune"):
        load_workload(_job(train={"compile": mode})).check()
        load_workload(_job(train={"compile": mode})).check_device("cuda")
    with pytest.raises(JobError, match="the ranks run on CPUs"):
        load_workload(_job(train={"compile": "reduce-overhead"})).check_device("cpu")
    job = _job(train={"compile": "max-autotune", "accumulate": 2})  # graphs on GPUs only
    load_workload(job).check()
    load_workload(job).check_device("cpu")
    with pytest.raises(JobError, match=r"train\.accumulate is 2"):
        load_workload(job).check_device("cuda")


def test_data_parallel_is_one_rank_with_all_gpus_of_its_node():
    job = _job(strategy="data_parallel", resources={"gpus": 4, "cpus_per_gpu": 3})
    assert (job.ranks_per_node, job.gpus_per_rank, job.cpus_per_rank) == (1, 4, 12)
    assert job.batch_size_per_rank == 4 * job.train.batch_size


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nets.small:Net", None),
        ("nets.small:brought", None),
        ("nets.open:Anything", None),
        ("nets.small:Nett", "has no Nett"),
        ("nets.large:Net", "there is no module nets.large"),
        ("nowhere:Net", "there is no module nowhere"),
        ("nets.small:", "not of the form package.module:Class"),
        ("nets.broken:Net", "cannot be read"),
    ],
)
def test_a_model_of_the_users_is_looked_for_without_running_its_module(
    tmp_path, monkeypatch, name, said
):
    package = tmp_path / "nets"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('run')\n")
    (package / "small.py").write_text("from a import b as brought\nclass Net: pass\n1 / 0\n")
    (package / "open.py").write_text("from elsewhere import *\n")
    (package / "broken.py").write_text("class\n")
    monkeypatch.chdir(tmp_path)
    if said is None:
        load_workload(_job(model={"name": name})).check()
        return
    with pytest.raises(JobError, match=said) as error:
        load_workload(_job(model={"name": name})).check()
    assert error.value.hint
    assert said != "has no Nett" or error.value.hint.startswith("it has: Net, ")


NETS = """
import dataclasses
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, width, *, depth=2, heads):
        raise RuntimeError("made")

def make(width=3):
    return Net(10, width, heads=1)

class Open(nn.Module):
    def __init__(self, width, **options):
        pass

class Derived(Net):
    def __init__(self, width):
        pass

@dataclasses.dataclass
class Decorated:
    width: int

class Silent(nn.Module):
    pass

class Twice(nn.Module):
    def __init__(self):
        pass

Twice = make

class None_(nn.Module):
    def __init__(self, image_shape):
        pass
"""


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (("nets:Net", {"width": 3, "heads": 1}), None),
        (("nets:Net", {"num_classes": 7, "width": 3, "heads": 1}), None),
        (
            ("nets:Net", {"width": 3, "head": 1}),
            (
                "model.args has head, which nets:Net does not take",
                "it takes, the nearest first: heads, depth,",
            ),
        ),
        (
            ("nets:Net", {"depth": 3}),
            (
                "model.args has no width, which nets:Net needs",
                "add --set model.args.width=VALUE; it needs: width, heads",
            ),
        ),
        (("nets:make", {"width": 3}), None),
        (("nets:make", {"wide": 3}), ("model.args has wide", "it takes, the nearest first: width")),
        (("nets:Open", {"anything": 3}), None),
        (("nets:Derived", {"anything": 3}), None),
        (("nets:Decorated", {"anything": 3}), None),
        (("nets:Silent", {"anything": 3}), None),
        (("nets:Twice", {"anything": 3}), None),
        (("nets:None_", {}), None),
        (
            ("mlp", {"hiden": [3]}),
            ("model.args has hiden, which mlp does not take", "first: hidden, dropout"),
        ),
        (("fashion_cnn", {"channels": [8], "hidden": 9, "dropout": 0.1}), None),
        (("fashion_cnn", {"num_classes": 7}), ("model.args has num_classes", "it takes")),
        (("resnet18", {"zero_init_residual": True}), None),
        (("googlenet", {"aux_logits": False, "init_weights": True}), None),
        (("vit_b_16", {"dropout": 0.1}), None),
        (("resnet18", {"hidden": [9]}), ("has hidden, which resnet18 does not", "model.args={}")),
        (("resnet18", {"num_classes": 7}), ("resnet18 has one output for each class", "leave it")),
        (("resnet18", {"weights": "DEFAULT"}), ("starts from freshly drawn weights", "leave it")),
    ],
)
@pytest.mark.parametrize("workload", [TrainJob, LightningJob, InferenceJob])
def test_arguments_that_a_model_does_not_take_are_told_without_running_its_module(
    tmp_path, monkeypatch, workload, model, expected
):
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    name, args = model
    job = msgspec.convert({"name": "x", "model": {"name": name, "args": args}}, workload)
    if expected is None:
        load_workload(job).check()
        return
    said, hint = expected
    with pytest.raises(JobError, match=said) as error:
        load_workload(job).check()
    assert hint in error.value.hint


def test_fewer_samples_than_ranks_are_refused():
    with pytest.raises(JobError, match="with 4 ranks 4 samples per step, but digits trains on 3"):
        load_workload(
            _job(
                resources={"nodes": 2, "gpus": 2},
                data={"train_samples": 3},
                train={"batch_size": 1},
            )
        ).check()


def test_the_lightning_job_is_refused_what_the_torch_loop_is_refused():
    sections = {"train": {"activation_checkpointing": True}}
    with pytest.raises(JobError, match="fashion_cnn has no blocks"):
        load_workload(_lightning(**sections)).check()
    with pytest.raises(JobError, match=r"train\.precision is tf32, which only"):
        load_workload(_lightning(train={"precision": "tf32"}, launch={"device": "cpu"})).check()


def _lightning(**sections):
    return msgspec.convert({"name": "test", **sections}, LightningJob)


def test_a_batch_that_is_larger_than_the_training_set_is_refused_with_the_largest_possible():
    with pytest.raises(JobError, match="with 8 ranks 3,200 samples per step, but digits") as error:
        load_workload(_job(resources={"nodes": 2, "gpus": 4}, train={"batch_size": 400})).check()
    assert "set train.batch_size to 179 or less" in error.value.hint
    assert "use fewer ranks: at most 3" in error.value.hint
    with pytest.raises(JobError, match="with 1 rank 2,000 samples per step, but digits") as alone:
        load_workload(_job(train={"batch_size": 2000})).check()
    assert alone.value.hint == "set train.batch_size to 1438 or less"


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
