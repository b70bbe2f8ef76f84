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


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"strategy": "data_parallel", "resources": {"nodes": 2}}, "resources.nodes is 2: it is"),
        ({"strategy": "fsdp", "train": {"static_graph": True}}, "static_graph is true, which stra"),
        ({"strategy": "single", "train": {"gradient_as_bucket_view": False}}, "only ddp has buck"),
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
            "train.activation_checkpointing and train.compile are both true",
        ),
        (
            {"strategy": "fsdp", "train": {"channels_last": True}},
            "channels_last is true, which strategy fsdp",
        ),
        (
            {"train": {"precision": "tf32"}, "launch": {"device": "cpu"}},
            "train.precision is tf32, which only GPUs have",
        ),
    ],
    ids=[
        "data_parallel-nodes",
        "fsdp-static-graph",
        "single-buckets",
        "data_parallel-compile",
        "data_parallel-recompute",
        "no-blocks",
        "recompute-compile",
        "fsdp-channels-last",
        "tf32-cpu",
    ],
)
def test_settings_that_do_not_go_together_are_refused_with_the_reason(sections, said):
    with pytest.raises(JobError, match=said) as error:
        train.check(_job(**sections))
    assert error.value.hint


def test_tf32_is_left_to_the_nodes_where_the_device_is_not_known_and_refused_on_cpus():
    job = _job(train={"precision": "tf32"})
    train.check(job)
    train.check_device(job, "cuda")
    with pytest.raises(JobError, match="the ranks run on CPUs"):
        train.check_device(job, "cpu")


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
        train.check(_job(model={"name": name}))
        return
    with pytest.raises(JobError, match=said) as error:
        train.check(_job(model={"name": name}))
    assert error.value.hint
    assert said != "has no Nett" or error.value.hint.startswith("it has: Net, ")


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
